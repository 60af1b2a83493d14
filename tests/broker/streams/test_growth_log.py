"""Which streams have grown since a mark."""

from __future__ import annotations

import pytest

from tailrace.broker.streams import growth_log
from tailrace.broker.streams.growth_log import ASKED_AGAIN_S, GrowthLog

BOOT = "4c0b7a3e-1111"


class Clock:
    def __init__(self) -> None:
        self.now_ns = 1_000

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def grown(clock: Clock) -> GrowthLog:
    return GrowthLog(BOOT, clock)


def test_nothing_is_known_before_the_first_question(grown: GrowthLog) -> None:
    grown.note([b"a"])
    first = grown.since("")
    assert first.streams is None
    assert grown.since(first.mark).streams == [], "what grew before it is not told"


def test_what_grew_since_each_mark(grown: GrowthLog) -> None:
    first = grown.since("")
    grown.note([b"a", b"b"])
    second = grown.since(first.mark)
    grown.note([b"c", b"a"])
    third = grown.since(second.mark)
    assert set(second.streams or ()) == {b"a", b"b"}
    assert set(third.streams or ()) == {b"a", b"c"}
    assert set(grown.since(first.mark).streams or ()) == {b"a", b"b", b"c"}
    assert grown.since(third.mark).streams == []


def test_the_least_mark_of_several_workers_is_one_for_all(clock: Clock) -> None:
    """If all of them had been asked before."""
    workers = [GrowthLog(BOOT, clock) for _ in range(3)]
    begun = min(worker.since("").mark for worker in workers)
    mark = min(worker.since(begun).mark for worker in workers)
    workers[2].note([b"c"])
    assert [worker.since(mark).streams for worker in workers] == [[], [], [b"c"]]


@pytest.mark.parametrize("mark", ["", ".", "BOOT", "BOOT.", "BOOT.x", "BOOT.-5", "BOOT.1000", "other.9999"])
def test_a_mark_of_another_boot_or_an_earlier_worker_is_not_known(mark: str, grown: GrowthLog) -> None:
    boot = grown.since("").mark.split(".")[0]
    assert grown.since(f"{boot}.9999").streams == []
    assert grown.since(mark.replace("BOOT", boot)).streams is None


def test_more_streams_than_are_noted_make_an_older_mark_unknown(
    grown: GrowthLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_log, "STREAMS_MAX", 2)
    first = grown.since("")
    grown.note([b"a"])
    second = grown.since(first.mark)
    grown.note([b"b"])
    grown.note([b"c"])
    assert grown.since(first.mark).streams is None, "a was forgotten"
    assert set(grown.since(second.mark).streams or ()) == {b"b", b"c"}


def test_nothing_is_noted_when_nobody_asks_any_more(grown: GrowthLog, clock: Clock) -> None:
    first = grown.since("")
    clock.now_ns += int(ASKED_AGAIN_S * 1e9) + 10
    grown.note([b"a"])
    assert grown.since(first.mark).streams is None
