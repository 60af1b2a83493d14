"""A get: messages that are finished, stale, given again, logged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tailrace.broker.consumers.state import decide, decide_get, records
from tailrace.broker.consumers.state.decide import GetResult
from tailrace.broker.consumers.state.records import HistoryChanged, Progress
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.epochs import NEVER_SEQ
from tests.broker.consumers.stream import Stream, asking
from tests.kept_tuples import ROUNDS, added_tuples

BILLING = b"billing"
NOW_US = 1_000_000


def made(stream: Stream, deliveries_max: int = 0) -> ConsumerTable:
    consumers = ConsumerTable()
    decide.create(consumers, BILLING, 0, stream, NOW_US, deliveries_max=deliveries_max, retry_us=0)
    return consumers


def ask(consumers: ConsumerTable, stream: Stream, member: bytes = b"m", **rest: Any) -> GetResult:
    return decide.get(consumers, replace(asking(BILLING, member), **rest), stream, NOW_US).value


def test_one_record_says_all_of_a_get() -> None:
    stream = Stream(300)
    consumers = made(stream, deliveries_max=5)
    ask(consumers, stream, max_messages=100)
    more = asking(BILLING, b"m", [(0, 49, 1), (50, 97, 1)], [(98, 1, "no"), (99, 1, "no")], 100)
    decision = decide.get(consumers, more, stream, NOW_US + 5)
    assert decision.value == GetResult(((98, 2, 1, 1), (100, 98, 0, 1)))
    assert decision.records == (Progress(BILLING, b"m", NOW_US + 5, 0, (0, 98), ((98, 2, "no"),), (), (98, 100)),)
    assert consumers.by_name[BILLING].redelivered == 2


def test_nothing_is_logged_where_nothing_changes_until_it_is_long_ago() -> None:
    stream = Stream(3)
    consumers = made(stream)
    first = decide.get(consumers, asking(BILLING, b"m", max_messages=3), stream, NOW_US)
    again = decide.get(consumers, asking(BILLING, b"m", max_messages=3), stream, NOW_US + decide_get.TOUCH_US - 1)
    assert first.value == again.value == GetResult(((0, 3, 0, 1),)) and not again.records
    late = decide.get(consumers, asking(BILLING, b"m", max_messages=3), stream, NOW_US + decide_get.TOUCH_US)
    assert late.records == (Progress(BILLING, b"m", NOW_US + decide_get.TOUCH_US),)


def test_what_is_given_again_keeps_its_deadline() -> None:
    stream = Stream(3)
    consumers = made(stream)
    ask(consumers, stream, max_messages=3)
    due_us = decide.next_deadline_us(consumers)
    decide.get(consumers, asking(BILLING, b"m", max_messages=3), stream, NOW_US + 10)
    assert decide.next_deadline_us(consumers) == due_us == NOW_US + decide.DEFAULTS[0]


def test_finishing_again_is_harmless_and_what_another_has_is_stale() -> None:
    stream = Stream(10)
    consumers = made(stream)
    ask(consumers, stream, b"m", max_messages=4)
    ask(consumers, stream, b"n", max_messages=2, fresh=True)
    for _ in range(2):
        assert ask(consumers, stream, b"m", finished=[(0, 5, 1)]) == GetResult(stale=((4, 5),))
    assert ask(consumers, stream, b"m", failed=[(4, 1, "no"), (0, 1, "no")]) == GetResult(stale=((4, 4),))
    assert consumers.by_name[BILLING].floor_seq == 4


def test_what_was_returned_may_be_finished_by_whoever_had_it() -> None:
    stream = Stream(10)
    consumers = made(stream)
    ask(consumers, stream, max_messages=4)
    decide.expire(consumers, stream, NOW_US + decide.DEFAULTS[0])
    assert ask(consumers, stream, finished=[(0, 2, 1)]) == GetResult()
    assert consumers.by_name[BILLING].floor_seq == 3


def test_what_nobody_was_given_is_not_finished() -> None:
    stream = Stream(10)
    consumers = made(stream)
    assert ask(consumers, stream, finished=[(0, 20, 1)]) == GetResult(stale=((0, 20),))
    assert consumers.by_name[BILLING].floor_seq == 0


def test_what_nobody_was_given_has_not_failed() -> None:
    stream = Stream(10)
    consumers = made(stream)
    ask(consumers, stream, max_messages=2)
    assert ask(consumers, stream, failed=[(1, 1, "no"), (2, 1, "no"), (NEVER_SEQ, 1, "no")]).stale == (
        (2, 2),
        (NEVER_SEQ, NEVER_SEQ),
    )
    assert not ask(consumers, stream, failed=[(1, 1, "no")]).stale, "it has failed already"


def test_what_an_owner_of_an_earlier_term_may_have_given_is_finished() -> None:
    stream = Stream(10)
    consumers = made(stream)
    stream.promote(8)
    stream.publish([None] * 4)
    decision = decide.get(consumers, asking(BILLING, b"m", [(3, 9, 1)]), stream, NOW_US)
    assert decision.value == GetResult(stale=((8, 9),))
    assert [type(record) for record in decision.records] == [HistoryChanged, Progress]
    assert consumers.by_name[BILLING].waiting.count == 3
    decide.reset(consumers, BILLING, 0, stream, NOW_US)
    assert ask(consumers, stream, finished=[(3, 9, 1)]) == GetResult(stale=((3, 9),))


def test_while_too_much_waits_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide_get, "WAITING_RUNS_MAX", 2)
    stream = Stream(10)
    consumers = made(stream)
    stream.promote(10)
    assert not ask(consumers, stream, finished=[(1, 1, 1), (3, 3, 1)]).stale
    assert ask(consumers, stream, finished=[(5, 5, 1)]).stale == ((5, 5),)


def test_what_is_not_kept_any_more_is_counted_once() -> None:
    stream = Stream(30)
    consumers = made(stream)
    ask(consumers, stream, b"m", max_messages=4)
    ask(consumers, stream, b"n", max_messages=4, fresh=True)
    stream.first_seq = 20
    decision = decide.get(consumers, asking(BILLING, b"m", max_messages=2), stream, NOW_US)
    assert decision.value == GetResult(((20, 2, 0, 1),), trimmed=4 + 12)
    assert ask(consumers, stream, b"m", max_messages=2).trimmed == 0
    assert ask(consumers, stream, b"n", max_messages=2, fresh=True).trimmed == 0
    assert ask(consumers, stream, b"n", finished=[(4, 7, 1)]) == GetResult()


def test_a_consumer_has_so_many_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide_get, "MEMBERS_MAX", 2)
    stream = Stream(1)
    consumers = made(stream)
    ask(consumers, stream, b"m", max_messages=1)
    ask(consumers, stream, b"n", max_messages=1)
    with pytest.raises(Refused, match="2 members") as refused:
        ask(consumers, stream, b"o", max_messages=1)
    assert refused.value.code == Code.OVERLOADED
    ask(consumers, stream, b"m", max_messages=1)
    later_us = NOW_US + decide_get.PRESENT_US + 1
    decide.get(consumers, asking(BILLING, b"m", [(0, 0, 1)]), stream, later_us)
    decide.get(consumers, asking(BILLING, b"o", max_messages=1), stream, later_us)
    assert set(consumers.by_name[BILLING].members) == {b"m", b"o"}


def test_what_dies_is_told_with_its_number_once() -> None:
    stream = Stream(5)
    consumers = made(stream, deliveries_max=1)
    ask(consumers, stream, max_messages=5)
    decision = decide.get(consumers, asking(BILLING, b"m", [], [(3, 1, "no"), (1, 1, "bad")]), stream, NOW_US)
    assert [(each.number, each.seq, each.deliveries, each.reason) for each in decision.dead] == [
        (0, 1, 1, "bad"),
        (1, 3, 1, "no"),
    ]
    decision = decide.get(consumers, asking(BILLING, b"m", [], [(3, 1, "no"), (2, 1, "no")]), stream, NOW_US)
    assert [(each.number, each.seq) for each in decision.dead] == [(2, 2)]
    assert [each.number for each in consumers.unburied()] == [0, 1, 2]


def test_going_back_is_told_once() -> None:
    stream = Stream(10)
    consumers = made(stream)
    assert not decide.rewind(consumers, stream).records
    ask(consumers, stream, max_messages=8)
    stream.lose(5)
    assert decide.rewind(consumers, stream).value == 1
    assert not decide.rewind(consumers, stream).records
    assert not decide.rewind(ConsumerTable(), stream).records
    stream.publish([None] * 5)
    assert ask(consumers, stream, max_messages=8, fresh=True).runs == ((5, 5, 0, 1),)


# --- messages that were lost with a master ----------------------------------------------------------------------------


def lost_and_others_there(stream: Stream, consumers: ConsumerTable) -> None:
    """Member m was given 0 to 9; of these 6 to 9 are lost, and others have their seqs."""
    ask(consumers, stream, max_messages=10)
    stream.promote(6)
    stream.publish([None] * 8)


def test_of_lost_messages_nothing_is_finished_where_others_wait() -> None:
    stream = Stream(10)
    consumers = made(stream)
    lost_and_others_there(stream, consumers)
    assert ask(consumers, stream, finished=[(0, 9, 1)]) == GetResult(stale=((6, 9),))
    assert consumers.by_name[BILLING].floor_seq == 6 and consumers.by_name[BILLING].lag_messages(14) == 8


def test_nor_where_the_member_has_those_others_now() -> None:
    stream = Stream(10)
    consumers = made(stream)
    lost_and_others_there(stream, consumers)
    assert ask(consumers, stream, max_messages=20, finished=[(0, 5, 1)]).runs == ((6, 8, 0, 2),)
    assert ask(consumers, stream, finished=[(0, 9, 1)], failed=[(8, 1, "no")]) == GetResult(stale=((6, 9),))
    assert consumers.by_name[BILLING].flight.count == 8
    rest = ask(consumers, stream, finished=[(0, 9, 1), (6, 7, 2)], failed=[(8, 2, "no")], max_messages=20, fresh=True)
    assert rest == GetResult(((8, 1, 1, 2),), ((6, 9),)), "what is of this line is taken"
    assert consumers.by_name[BILLING].floor_seq == 8


def test_what_is_given_says_where_another_epoch_begins() -> None:
    stream = Stream(4)
    consumers = made(stream)
    stream.promote(4)
    stream.publish([None] * 3)
    assert ask(consumers, stream, max_messages=20).runs == ((0, 4, 0, 1), (4, 3, 0, 2))
    assert ask(consumers, stream, finished=[(0, 6, 1)]).stale == ((4, 6),)
    assert ask(consumers, stream, finished=[(0, 6, 2)]).stale == ((0, 3),)
    assert ask(consumers, stream, finished=[(0, 6, 3)]).stale == ((0, 6),)
    assert consumers.by_name[BILLING].floor_seq == 7


# --- a member's program that ends, and another one of its name --------------------------------------------------------


def test_another_program_of_a_name_is_another_delivery() -> None:
    stream = Stream(3)
    consumers = made(stream, deliveries_max=2)
    for session in (1, 2):
        for _ in range(3):  # the answer is lost, and asked for again
            assert ask(consumers, stream, max_messages=2, session=session).runs == ((0, 2, session - 1, 1),)
    assert ask(consumers, stream, finished=[(0, 0, 1)], session=3) == GetResult(), "who wants nothing is not begun anew"
    decision = decide.get(consumers, asking(BILLING, b"m", max_messages=2, session=3), stream, NOW_US)
    assert decision.value == GetResult(((2, 1, 0, 1),))
    (letter,) = decision.dead
    assert (letter.seq, letter.deliveries, letter.reason) == (1, 2, decide_get.BEGUN_ANEW)
    (record,) = decision.records
    assert isinstance(record, Progress) and record.failed == ((1, 1, decide_get.BEGUN_ANEW),)


def test_what_the_new_one_says_of_messages_counts_first() -> None:
    stream = Stream(4)
    consumers = made(stream)
    ask(consumers, stream, max_messages=4, session=1)
    again = ask(consumers, stream, max_messages=9, session=2, finished=[(1, 1, 1)], failed=[(2, 1, "no")])
    assert again.runs == ((0, 1, 1, 1), (2, 2, 1, 1))
    assert consumers.by_name[BILLING].redelivered == 3


def test_who_says_no_session_is_whoever_was_there() -> None:
    stream = Stream(2)
    consumers = made(stream)
    for session in (0, 7, 0, 7):
        assert ask(consumers, stream, max_messages=2, session=session).runs == ((0, 2, 0, 1),)


def test_who_has_left_has_begun_nothing_anew() -> None:
    stream = Stream(2)
    consumers = made(stream)
    ask(consumers, stream, max_messages=2, session=1)
    decide.leave(consumers, BILLING, b"m")
    assert ask(consumers, stream, max_messages=2, session=2).runs == ((0, 2, 0, 1),)


def test_no_tuple_more_is_kept_for_each_get() -> None:
    stream = Stream(4 * ROUNDS)
    consumers = made(stream)
    seqs = iter(range(1, 4 * ROUNDS))
    ask(consumers, stream, max_messages=1)

    def finish_one() -> None:
        """The message that the member was given last; it is given the next one."""
        seq = next(seqs)
        finished = asking(BILLING, b"m", [(seq - 1, seq - 1, 1)], max_messages=1)
        for record in decide.get(consumers, finished, stream, NOW_US).records:
            assert records.unpack(records.pack(record)) == record

    assert not added_tuples(finish_one)
