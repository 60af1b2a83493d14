"""The threads that wait for the disk: outcomes in order, errors as values, an end that loses nothing."""

from __future__ import annotations

import errno
import select
import threading
from collections.abc import Sequence

import pytest

from tailrace.broker.streams import syncer as syncer_module
from tailrace.broker.streams.syncer import (
    GROUP_DIRTY_BYTES_EACH,
    GROUP_MAX,
    THREADS_MAX,
    JournaledGroup,
    Syncer,
    SyncOutcome,
    SyncRequest,
)

PATIENCE_S = 20.0


class FakeLog:
    """Something to sync; waits at its gate, fails if the test wants it to."""

    def __init__(self, name: str = "log", error: OSError | None = None) -> None:
        self.name = name
        self.error = error
        self.gate = threading.Event()
        self.gate.set()
        self.threads: list[int] = []

    def sync(self) -> int:
        assert self.gate.wait(PATIENCE_S)
        self.threads.append(threading.get_ident())
        if self.error is not None:
            raise self.error
        return 0


def outcomes(syncer: Syncer, count: int) -> list[SyncOutcome]:
    """Wait for `count` outcomes, as the loop would: for the descriptor to be readable."""
    found: list[SyncOutcome] = []
    while len(found) < count:
        assert select.select([syncer.fileno()], [], [], PATIENCE_S)[0], "no outcome came"
        found += syncer.outcomes()
    return found


def test_the_loop_does_not_wait_and_outcomes_come_in_order() -> None:
    syncer = Syncer()
    slow, quick = FakeLog("slow"), FakeLog("quick")
    slow.gate.clear()
    syncer.request(slow, "first")
    syncer.request(quick, "second")
    assert syncer.outcomes() == []
    slow.gate.set()
    found = outcomes(syncer, 2)
    assert [(each.log, each.token, each.error) for each in found] == [(slow, "first", None), (quick, "second", None)]
    assert slow.threads == quick.threads != [threading.get_ident()]
    assert syncer.outcomes() == []
    syncer.close()


def test_an_error_is_an_outcome_and_the_thread_goes_on() -> None:
    syncer = Syncer()
    broken, whole = FakeLog(error=OSError(errno.EIO, "the disk is gone")), FakeLog()
    for log in (broken, whole):
        syncer.request(log, None)
    first, second = outcomes(syncer, 2)
    assert first.error is broken.error and second.error is None
    assert first.seconds >= 0
    syncer.close()


def test_close_finishes_what_was_asked_for() -> None:
    syncer = Syncer()
    logs = [FakeLog(str(number)) for number in range(50)]
    for log in logs:
        syncer.request(log, log.name)
    syncer.close()
    assert [outcome.token for outcome in syncer.outcomes()] == [log.name for log in logs]


def test_a_slow_sync_that_nobody_waits_for_stands_in_front_of_nothing_urgent() -> None:
    syncer = Syncer()
    slow, urgent = FakeLog("slow"), FakeLog("urgent")
    slow.gate.clear()
    syncer.request(slow, "slow")
    syncer.request_all([SyncRequest(urgent, "urgent")], urgent=True)
    assert [outcome.token for outcome in outcomes(syncer, 1)] == ["urgent"]
    slow.gate.set()
    assert [outcome.token for outcome in outcomes(syncer, 1)] == ["slow"]
    syncer.close()


def test_logs_that_wait_are_synced_together_and_each_has_its_own_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer_module, "dirty_bytes", lambda: 0)
    groups: list[list[str]] = []

    def together(logs: Sequence[FakeLog]) -> list[OSError | None]:
        groups.append([log.name for log in logs])
        return [log.error for log in logs]

    syncer = Syncer(together)
    first, other = FakeLog("first"), FakeLog("other")
    first.gate.clear()
    syncer.request(first, "first")
    bad = FakeLog("bad", OSError(errno.EIO, "the disk is gone"))
    for log in (FakeLog("good"), other, bad):
        syncer.request_all([SyncRequest(log, log.name, in_group=log is not other)])
    first.gate.set()
    found = {outcome.token: outcome.error for outcome in outcomes(syncer, 4)}
    assert found == {"first": None, "good": None, "other": None, "bad": bad.error}
    assert groups == [["good", "bad"]] and other.threads
    syncer.close()


def test_what_is_requested_together_is_synced_together_and_what_comes_then_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of a turn is one group; while it is synced, the next turn's is another one, and so on."""
    monkeypatch.setattr(syncer_module, "dirty_bytes", lambda: 0)
    under_way, begun = threading.Barrier(THREADS_MAX), threading.Semaphore(0)
    groups: list[list[str]] = []

    def together(logs: Sequence[FakeLog]) -> list[None]:
        groups.append([log.name for log in logs])
        begun.release()
        under_way.wait(PATIENCE_S)  # until each thread has a group of its own
        return [None] * len(logs)

    syncer = Syncer(together)
    turns = [[f"{turn}.{number}" for number in range(10)] for turn in range(THREADS_MAX - 1)]
    for turn in turns:
        syncer.request_all([SyncRequest(FakeLog(name), name, in_group=True) for name in turn], urgent=True)
        assert begun.acquire(timeout=PATIENCE_S)
    syncer.request_all([SyncRequest(FakeLog("patient"), None, in_group=True)])
    outcomes(syncer, 10 * len(turns) + 1)
    assert groups == [*turns, ["patient"]]
    syncer.close()


def test_what_is_calculated_waits_for_no_sync_and_delays_none() -> None:
    syncer = Syncer()
    slow_disk, password = FakeLog("slow disk"), FakeLog("password")
    for each in (slow_disk, password):
        each.gate.clear()
    syncer.request(slow_disk, "sync")
    syncer.calculate(FakeLog("quick"), "calculated")
    assert outcomes(syncer, 1)[0].token == "calculated"
    syncer.calculate(password, "password")
    slow_disk.gate.set()
    assert outcomes(syncer, 1)[0].token == "sync"
    password.gate.set()
    assert outcomes(syncer, 1)[0].token == "password"
    syncer.close()


def test_a_very_large_request_is_several_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer_module, "dirty_bytes", lambda: 0)
    sizes: list[int] = []

    def together(logs: Sequence[FakeLog]) -> list[None]:
        sizes.append(len(logs))
        return [None] * len(logs)

    syncer = Syncer(together)
    syncer.request_all([SyncRequest(FakeLog(), None, in_group=True)] * (2 * GROUP_MAX + 1), urgent=True)
    outcomes(syncer, 2 * GROUP_MAX + 1)
    assert max(sizes) < 2 * GROUP_MAX and len(sizes) > 1
    syncer.close()


def test_nothing_is_synced_together_while_others_have_much_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync of the file system would wait for all of it."""
    monkeypatch.setattr(syncer_module, "dirty_bytes", lambda: GROUP_MAX * GROUP_DIRTY_BYTES_EACH + 1)
    syncer = Syncer(lambda _logs: pytest.fail("synced together"))
    logs = [FakeLog(str(number)) for number in range(20)]
    syncer.request_all([SyncRequest(log, None, in_group=True) for log in logs], urgent=True)
    outcomes(syncer, len(logs))
    assert all(len(log.threads) == 1 for log in logs)
    syncer.close()


def test_those_that_publishers_wait_for_are_put_in_the_journal_if_it_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(syncer_module, "dirty_bytes", lambda: 0)  # other programs may have written much
    logs = [FakeLog(name) for name in ("taken", "not taken", "not awaited", "alone")]
    tried: list[list[str]] = []
    synced: list[list[str]] = []

    def journal(awaited: Sequence[FakeLog]) -> set[FakeLog]:
        tried.append([log.name for log in awaited])
        return {logs[0]}

    def together(group: Sequence[FakeLog]) -> list[None]:
        synced.append([log.name for log in group])
        return [None] * len(group)

    syncer = Syncer(together, journal)
    rows = [SyncRequest(log, log.name, in_group=True, is_awaited=log is not logs[2]) for log in logs[:3]]
    syncer.request_all([*rows, SyncRequest(logs[3], "alone", is_awaited=True)], urgent=True)
    first, *others = outcomes(syncer, 4)
    assert first.token == JournaledGroup([rows[0]]), "it does not wait for the others"
    assert {each.token for each in others} == {"not taken", "not awaited", "alone"}
    assert (tried, synced) == ([["taken", "not taken"]], [["not taken", "not awaited"]])
    assert [bool(log.threads) for log in logs] == [False, False, False, True]
    syncer.close()
