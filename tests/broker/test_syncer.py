"""The thread that waits for the disk: outcomes in order, errors as values, an end that loses nothing."""

from __future__ import annotations

import errno
import select
import threading

from broker.syncer import Outcome, Syncer

PATIENCE_S = 20.0


class FakeLog:
    """Something to sync; waits at its gate, fails if it is told to."""

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


def outcomes(syncer: Syncer, count: int) -> list[Outcome]:
    """Wait for so many, as the loop would: for the descriptor to be readable."""
    found: list[Outcome] = []
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
