"""The state of producers: the verdict on a publish, the numbers it remembers, and those it forgets."""

from __future__ import annotations

import msgpack
import pytest

from tailrace.shard import producers as p
from tailrace.shard.producers import Judgement, NumberVerdict, ProducerRun, Producers

DAY = 86_400_000_000


def known(*runs: tuple[bytes, ProducerRun], expiry_us: int = DAY) -> Producers:
    producers = Producers(expiry_us)
    for at, (producer_id, run) in enumerate(runs):
        producers.note(producer_id, run, at)
    return producers


@pytest.mark.parametrize(
    ("number", "messages", "judgement"),
    [
        (9, 1, Judgement(NumberVerdict.NEW)),
        (10, 2, Judgement(NumberVerdict.GAP, expected=9)),
        (6, 3, Judgement(NumberVerdict.REPEAT, 40, 9, 43)),
        (7, 1, Judgement(NumberVerdict.REPEAT, 41, 9, 42)),
        (7, 3, Judgement(NumberVerdict.REST, 41, 9, 43)),
        (0, 6, Judgement(NumberVerdict.REPEAT, 10, 9, 16)),
        (0, 7, Judgement(NumberVerdict.REPEAT, 10, 9, 41)),
        (5, 4, Judgement(NumberVerdict.REPEAT, 15, 9, 43)),
        (5, 9, Judgement(NumberVerdict.REST, 15, 9, 43)),
        (2, 1, Judgement(NumberVerdict.REPEAT, 12, 9, 13)),
    ],
)
def test_what_a_publish_is(number: int, messages: int, judgement: Judgement) -> None:
    producers = known((b"a", ProducerRun(0, 6, 10)), (b"b", ProducerRun(0, 1, 20)), (b"a", ProducerRun(6, 3, 40)))
    assert producers.judge(b"a", number, messages, 50) == judgement


def test_a_producer_that_is_not_known_begins_with_0() -> None:
    assert Producers(DAY).judge(b"a", 0, 5, 1) == Judgement(NumberVerdict.NEW)
    assert Producers(DAY).judge(b"a", 1, 5, 1) == Judgement(NumberVerdict.UNKNOWN)


def test_runs_that_touch_are_one() -> None:
    producers = known((b"a", ProducerRun(0, 2, 5)), (b"a", ProducerRun(2, 3, 7)), (b"a", ProducerRun(5, 1, 11)))
    assert list(producers.rows()) == [[b"a", 6, 2, [0, 5, 5, 5, 1, 11]]]


def test_of_a_producer_with_many_runs_the_latest_are_remembered() -> None:
    producers = known(*((b"a", ProducerRun(number, 1, 2 * number)) for number in range(p.RUNS_MAX + 3)))
    assert producers.judge(b"a", 2, 1, 0) == Judgement(NumberVerdict.OLD, expected=p.RUNS_MAX + 3)
    assert producers.judge(b"a", 3, 1, 0).kind is NumberVerdict.REPEAT


def test_the_longest_idle_lose_their_runs_and_then_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p, "RUNS_STREAM_MAX", 6)
    monkeypatch.setattr(p, "PRODUCERS_MAX", 3)
    producers = Producers(DAY)
    for number in range(3):
        for at, name in enumerate((b"a", b"b")):
            producers.note(name, ProducerRun(number, 1, 10 * number + 5 * at), 0)
    producers.note(b"c", ProducerRun(0, 1, 100), 0)
    assert producers.judge(b"a", 1, 1, 0).kind is NumberVerdict.OLD
    assert producers.judge(b"a", 2, 1, 0) == Judgement(NumberVerdict.REPEAT, 20, 3, 21)
    assert producers.judge(b"b", 0, 1, 0) == Judgement(NumberVerdict.REPEAT, 5, 3, 6)
    producers.note(b"d", ProducerRun(0, 1, 101), 0)
    assert producers.judge(b"a", 3, 1, 0).kind is NumberVerdict.UNKNOWN
    assert producers.judge(b"b", 3, 1, 0).kind is NumberVerdict.NEW
    assert len(producers) == 3


def test_who_was_idle_for_too_long_is_forgotten() -> None:
    producers = known((b"a", ProducerRun(0, 2, 5)), expiry_us=100)
    assert producers.judge(b"a", 2, 1, 100).kind is NumberVerdict.NEW
    assert producers.judge(b"a", 2, 1, 101).kind is NumberVerdict.UNKNOWN
    producers.note(b"a", ProducerRun(0, 1, 50), 101)
    assert list(producers.rows()) == [[b"a", 1, 101, [0, 1, 50]]]
    producers.note(b"b", ProducerRun(0, 1, 51), 300)
    assert len(producers) == 1


def test_the_next_messages_of_a_producer_that_is_known() -> None:
    producers = known((b"a", ProducerRun(0, 2, 5)), (b"b", ProducerRun(0, 1, 7)), expiry_us=100)
    assert not producers.advance(b"c", 0, 1, 8, 50)
    assert not producers.advance(b"a", 1, 1, 8, 50)
    assert not producers.advance(b"a", 2, 1, 8, 101)
    assert producers.advance(b"b", 1, 2, 8, 50)
    assert producers.advance(b"a", 2, 1, 10, 50)
    assert producers.advance(b"a", 3, 1, 11, 51)
    assert list(producers.rows()) == [[b"b", 3, 50, [0, 3, 7]], [b"a", 4, 51, [0, 2, 5, 2, 2, 10]]]
    producers.go_on(1, 12, 52)
    assert producers.judge(b"a", 4, 1, 52) == Judgement(NumberVerdict.REPEAT, 12, 5, 13)


def test_a_run_that_comes_in_pieces() -> None:
    producers = known((b"a", ProducerRun(0, 2, 5)))
    producers.go_on(3, 7, 9)
    producers.go_on(1, 11, 9)  # not the next message: of a run that is not known
    assert list(producers.rows()) == [[b"a", 5, 9, [0, 5, 5]]]
    empty = Producers(DAY)
    empty.go_on(3, 7, 9)
    assert not len(empty)


def test_rows_are_restored() -> None:
    producers = known((b"a", ProducerRun(0, 2, 5)), (b"b", ProducerRun(0, 1, 7)), (b"a", ProducerRun(2, 1, 8)))
    again = Producers(DAY)
    again.restore(msgpack.unpackb(msgpack.packb(list(producers.rows()))))
    assert list(again.rows()) == list(producers.rows())
    again.go_on(2, 9, 9)
    assert again.judge(b"a", 3, 2, 9) == Judgement(NumberVerdict.REPEAT, 9, 5, 11)


@pytest.mark.parametrize(
    "row",
    [[b"", 1, 0, [0, 1, 5]], ["a", 1, 0, [0, 1, 5]], [b"a", 2, 0, [0, 1, 5]], [b"a", 1, 0, [0, 1]], [b"a", 0, 0, []]],
)
def test_rows_that_are_none(row: list[object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Producers(DAY).restore([row])
