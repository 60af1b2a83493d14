"""Operations on whole consumers, deadlines and dead letters."""

from __future__ import annotations

import pytest

from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.decide import ConsumeResult, ConsumerStatus, GetResult
from tailrace.broker.consumers.state.records import (
    ConsumerCreated,
    ConsumerDeleted,
    ConsumerReset,
    FlightReturned,
    HistoryChanged,
    LetterPublished,
)
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tests.broker.consumers.stream import Stream, asking

BILLING = b"billing"
NOW_US = 1_000_000
LATE_US = NOW_US + decide.DEFAULTS[0]


def made(stream: Stream, deliveries_max: int = 0) -> ConsumerTable:
    consumers = ConsumerTable()
    decide.create(consumers, BILLING, 0, stream, NOW_US, deliveries_max=deliveries_max, retry_us=0)
    return consumers


def get(consumers: ConsumerTable, stream: Stream, member: bytes, most: int, now_us: int = NOW_US) -> GetResult:
    return decide.get(consumers, asking(BILLING, member, max_messages=most, fresh=True), stream, now_us).value


def test_a_consumer_is_made_once() -> None:
    stream, consumers = Stream(10), ConsumerTable()
    first = decide.create(consumers, BILLING, 3, stream, NOW_US)
    assert first.value == ConsumeResult(3, True)
    assert first.records == (
        HistoryChanged(stream.history, 10),
        ConsumerCreated(BILLING, NOW_US, 3, *decide.DEFAULTS),
    )
    get(consumers, stream, b"m", 2)
    assert decide.create(consumers, BILLING, 9, stream, NOW_US) == ((), ConsumeResult(3, False), ())
    assert decide.create(consumers, BILLING, 9, stream, NOW_US, *decide.DEFAULTS).value == ConsumeResult(3, False)
    for settings in ((1_000, 0), (None, 5)):
        with pytest.raises(Refused, match="the consumer 'billing' is there with") as refused:
            decide.create(consumers, BILLING, 9, stream, NOW_US, *settings)
        assert refused.value.code == Code.USAGE


def test_it_begins_where_the_stream_has_messages_or_will_have_one() -> None:
    stream, consumers = Stream(10), ConsumerTable()
    stream.first_seq = 4
    for seq, placed in ((0, 4), (7, 7), (99, 10)):
        assert decide.create(consumers, b"c%d" % seq, seq, stream, NOW_US).value.next_seq == placed
        assert decide.reset(consumers, b"c0", seq, stream, NOW_US).value.next_seq == placed


def test_a_stream_has_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "CONSUMERS_MAX", 2)
    stream, consumers = Stream(1), ConsumerTable()
    for name in (b"a", b"b", b"a"):
        decide.create(consumers, name, 0, stream, NOW_US)
    with pytest.raises(Refused) as refused:
        decide.create(consumers, b"c", 0, stream, NOW_US)
    assert refused.value.code == Code.OVERLOADED


def test_one_that_is_made_in_a_new_term_begins_where_it_was_put() -> None:
    stream = Stream(10)
    consumers = made(stream)
    get(consumers, stream, b"m", 10)
    stream.promote(5)
    stream.publish([None] * 10)
    assert decide.create(consumers, b"audit", 12, stream, NOW_US).value.next_seq == 12
    assert consumers.by_name[b"audit"].next_seq == 12
    assert consumers.by_name[BILLING].next_seq == 5


def test_a_reset_forgets_what_is_in_flight() -> None:
    stream = Stream(10)
    consumers = made(stream)
    get(consumers, stream, b"m", 8)
    assert decide.reset(consumers, BILLING, 2, stream, NOW_US + 1).records == (ConsumerReset(BILLING, NOW_US + 1, 2),)
    assert get(consumers, stream, b"n", 3).runs == ((2, 3, 0, 1),)
    with pytest.raises(Refused) as refused:
        decide.reset(consumers, b"audit", 2, stream, NOW_US)
    assert refused.value.code == Code.CONSUMER


def test_what_is_deleted_is_gone() -> None:
    stream = Stream(10)
    consumers = made(stream)
    assert decide.delete(consumers, BILLING) == ((ConsumerDeleted(BILLING),), True, ())
    assert decide.delete(consumers, BILLING) == ((), False, ())
    with pytest.raises(Refused) as refused:
        get(consumers, stream, b"m", 1)
    assert refused.value.code == Code.CONSUMER


def test_they_are_listed() -> None:
    stream = Stream(10)
    consumers = made(stream, deliveries_max=1)
    decide.create(consumers, b"audit", 9, stream, NOW_US)
    get(consumers, stream, b"m", 4)
    decide.get(consumers, asking(BILLING, b"n", max_messages=1), stream, NOW_US + 7)
    decide.get(consumers, asking(BILLING, b"m", [(0, 0, 1)], [(1, 1, "no")]), stream, NOW_US + 8)
    assert decide.listing(consumers, stream, NOW_US + 10) == [
        ConsumerStatus(b"audit", 9, 1, 0, 0, 0, 0, 10, *decide.DEFAULTS),
        ConsumerStatus(BILLING, 2, 8, 3, 2, 0, 1, 2, decide.DEFAULTS[0], 1, 0, decide.DEFAULTS[3]),
    ]


def test_what_is_late_is_returned_and_counted() -> None:
    stream = Stream(10)
    consumers = made(stream)
    get(consumers, stream, b"m", 4)
    get(consumers, stream, b"m", 2, NOW_US + 5)
    assert decide.next_deadline_us(consumers) == LATE_US
    assert decide.expire(consumers, stream, LATE_US - 1) == ((), frozenset(), ())
    decision = decide.expire(consumers, stream, LATE_US)
    assert decision == ((FlightReturned(BILLING, b"m", decide.LATE, (0, 4), (), LATE_US),), frozenset((BILLING,)), ())
    assert decide.next_deadline_us(consumers) == LATE_US + 5
    assert get(consumers, stream, b"n", 4, LATE_US + 1).runs == ((0, 4, 1, 1),)


def test_later_messages_of_a_late_key_come_back_with_it() -> None:
    stream = Stream()
    stream.publish([b"k", None, b"k", b"l"])
    consumers = made(stream)
    get(consumers, stream, b"m", 2)
    get(consumers, stream, b"m", 2, NOW_US + 5)
    assert decide.expire(consumers, stream, LATE_US).records == (
        FlightReturned(BILLING, b"m", decide.LATE, (0, 2), (2, 1), LATE_US),
    )


def test_who_goes_away_has_a_while_to_come_back() -> None:
    stream = Stream(10)
    consumers = made(stream)
    get(consumers, stream, b"m", 4)
    decide.away(consumers, BILLING, b"m", NOW_US)
    assert decide.next_deadline_us(consumers) == NOW_US + decide.GRACE_US
    get(consumers, stream, b"m", 1, NOW_US + 1)
    assert decide.expire(consumers, stream, NOW_US + decide.GRACE_US).records == ()
    decide.away(consumers, BILLING, b"m", NOW_US + 2)
    assert decide.expire(consumers, stream, NOW_US + 2 + decide.GRACE_US).records == (
        FlightReturned(BILLING, b"m", decide.LEFT, (0, 5)),
    )
    assert not consumers.by_name[BILLING].members


def test_who_leaves_in_order_gives_back_what_it_has() -> None:
    stream = Stream()
    stream.publish([b"k", None, b"k", b"k", None])
    consumers = made(stream, deliveries_max=1)
    get(consumers, stream, b"m", 3)
    get(consumers, stream, b"n", 1)
    decide.away(consumers, BILLING, b"m", NOW_US)
    assert decide.leave(consumers, BILLING, b"m") == (
        (FlightReturned(BILLING, b"m", decide.LEFT, (), (0, 3)),),
        None,
        (),
    )
    assert list(consumers.by_name[BILLING].members) == [b"n"]
    assert get(consumers, stream, b"n", 9).runs == ((0, 4, 0, 1),), "a key that was blocked is free, and nothing counts"
    assert decide.leave(consumers, BILLING, b"m") == ((), None, ())
    assert decide.expire(consumers, stream, NOW_US + decide.GRACE_US).records == ()


def test_who_is_not_there_cannot_leave() -> None:
    consumers = made(Stream(10))
    assert decide.leave(consumers, BILLING, b"m") == ((), None, ())
    for name, member, code in ((b"audit", b"m", Code.CONSUMER), (BILLING, b"a b", Code.USAGE)):
        with pytest.raises(Refused) as refused:
            decide.leave(consumers, name, member)
        assert refused.value.code == code


def test_who_is_not_there_cannot_go_away() -> None:
    stream = Stream(10)
    consumers = made(stream)
    decide.away(consumers, b"audit", b"m", NOW_US)
    decide.away(consumers, BILLING, b"m", NOW_US)
    get(consumers, Stream(), b"m", 4)
    decide.away(consumers, BILLING, b"m", NOW_US)
    assert not consumers.by_name[BILLING].members and decide.next_deadline_us(consumers) is None


def test_who_left_after_its_messages_were_late_is_forgotten() -> None:
    stream = Stream(10)
    consumers = made(stream)
    get(consumers, stream, b"m", 4)
    decide.away(consumers, BILLING, b"m", LATE_US - 1)
    decide.expire(consumers, stream, LATE_US)
    assert decide.expire(consumers, stream, LATE_US + decide.GRACE_US).records == ()
    assert not consumers.by_name[BILLING].members and decide.next_deadline_us(consumers) is None


def test_so_many_consumers_are_looked_at_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "EXPIRED_MAX", 2)
    stream, consumers = Stream(1), ConsumerTable()
    for name in (b"a", b"b", b"c"):
        decide.create(consumers, name, 0, stream, NOW_US, retry_us=0)
        decide.get(consumers, asking(name, b"m", max_messages=1), stream, NOW_US)
    assert decide.expire(consumers, stream, LATE_US).value == {b"a", b"b"}
    assert decide.next_deadline_us(consumers) == LATE_US
    assert decide.expire(consumers, stream, LATE_US).value == {b"c"}
    assert decide.next_deadline_us(consumers) is None


def test_a_letter_is_buried_once() -> None:
    stream = Stream(3)
    consumers = made(stream, deliveries_max=1)
    get(consumers, stream, b"m", 3)
    decision = decide.expire(consumers, stream, LATE_US)
    assert [letter.number for letter in decision.dead] == [0, 1, 2]
    assert {letter.reason for letter in decision.dead} == {decide.LATE}
    first = decision.dead[0]
    assert decide.bury(consumers, first).records == (LetterPublished(BILLING, 0),)
    assert decide.bury(consumers, first).records == ()
    assert [letter.number for letter in consumers.unburied()] == [1, 2]
    decide.delete(consumers, BILLING)
    assert decide.bury(consumers, decision.dead[1]).records == ()
