"""One consumer and what happens to its messages."""

from __future__ import annotations

import pytest

from tailrace.broker.consumers.state.consumer import DYING_MAX, OVERDUE_WAIT_US, DeadLetter, DurableConsumer
from tailrace.broker.consumers.state.ranges import DeliveryRuns
from tailrace.broker.consumers.state.records import BadRecord
from tailrace.shard.epochs import EpochStart

HISTORY = (EpochStart(1, 0, "a"), EpochStart(4, 12, "b"))


def consumer(seq: int = 10, deliveries_max: int = 0) -> DurableConsumer:
    return DurableConsumer(b"billing", 1, seq, 100, deliveries_max)


Rows = list[tuple[int, int, int]]


def shown(consumer: DurableConsumer) -> tuple[Rows, Rows, int]:
    return rows(consumer.waiting), rows(consumer.flight), consumer.next_seq


def rows(runs: DeliveryRuns) -> Rows:
    return [(run.first, run.last, run.deliveries) for run in runs]


def test_what_is_given_out_of_order_leaves_the_rest_waiting() -> None:
    one = consumer()
    one.give(b"m", [(12, 13), (16, 16)], 50)
    assert shown(one) == ([(10, 11, 0), (14, 15, 0)], [(12, 13, 0), (16, 16, 0)], 17)
    assert (one.floor_seq, one.lag_messages(20), one.members[b"m"].in_flight) == (10, 10, 3)
    one.give(b"m", [(10, 11), (14, 14)], 50)
    assert shown(one) == ([(15, 15, 0)], [(10, 14, 0), (16, 16, 0)], 17)
    assert one.members[b"m"].in_flight == 6, "each once, also of those that were put before others"


@pytest.mark.parametrize("ranges", [[(9, 9)], [(10, 10)], [(8, 20)]])
def test_what_does_not_wait_cannot_be_given(ranges: list[tuple[int, int]]) -> None:
    one = consumer()
    one.give(b"m", [(10, 11)], 50)
    with pytest.raises(BadRecord, match="do not wait"):
        one.give(b"n", ranges, 50)


def test_what_is_finished_is_gone_and_so_is_its_member() -> None:
    one = consumer()
    one.give(b"m", [(10, 14)], 50)
    one.finish([(11, 11)])
    assert (one.floor_seq, one.members[b"m"].in_flight) == (10, 4)
    one.finish([(0, 14)])
    assert shown(one) == ([], [], 15) and not one.members and one.floor_seq == 15


def test_what_comes_later_may_be_finished() -> None:
    one = consumer()
    one.finish([(13, 14)])
    assert shown(one) == ([(10, 12, 0)], [], 15)


def test_what_fails_waits_until_it_dies() -> None:
    one = consumer(deliveries_max=2)
    one.give(b"m", [(10, 13)], 50)
    one.fail([(11, 12)], "no", HISTORY)
    assert shown(one) == ([(11, 12, 1)], [(10, 10, 0), (13, 13, 0)], 14)
    one.give(b"m", [(11, 12)], 60)
    assert one.redelivered == 2 and not one.dying
    one.fail([(10, 12)], "no", HISTORY)
    letters = [DeadLetter(b"billing", 1, 0, 11, 1, 2, "no"), DeadLetter(b"billing", 1, 1, 12, 4, 2, "no")]
    assert list(one.dying.values()) == letters and one.dead == 2
    assert shown(one) == ([(10, 10, 1)], [(13, 13, 0)], 14)


def test_a_dying_message_is_still_needed() -> None:
    one = consumer(deliveries_max=1)
    one.give(b"m", [(10, 11)], 50)
    one.fail([(10, 10)], "no", HISTORY)
    one.finish([(11, 11)])
    assert (one.floor_seq, one.spare_seq) == (12, 10)


def test_while_too_many_die_none_does() -> None:
    one = consumer(0, deliveries_max=1)
    one.give(b"m", [(0, DYING_MAX + 4)], 50)
    one.fail([(0, DYING_MAX + 4)], "no", HISTORY)
    assert len(one.dying) == DYING_MAX
    assert shown(one)[0] == [(DYING_MAX, DYING_MAX + 4, 1)]


def test_what_cannot_die_yet_waits_a_while_however_short_its_consumer_lets_it() -> None:
    one = consumer(0, deliveries_max=2)
    one.retry_us = one.retry_max_us = 0
    one.give(b"m", [(0, DYING_MAX)], 50)
    assert one.fail([(0, DYING_MAX)], "no", HISTORY, 100) == 0, "with deliveries left it does not wait"
    one.give(b"m", [(0, DYING_MAX)], 50)
    assert one.fail([(0, DYING_MAX)], "no", HISTORY, 200, 1) == 200 + OVERDUE_WAIT_US
    assert len(one.dying) == DYING_MAX
    counts = []
    for now_us in (199 + OVERDUE_WAIT_US, 200 + OVERDUE_WAIT_US):
        one.wake(now_us)
        counts.append(one.waiting.count)
    assert counts == [0, 1]


def test_what_comes_back_counts_no_delivery() -> None:
    one = consumer()
    one.give(b"m", [(10, 13)], 50)
    one.back([(12, 12)])
    assert shown(one) == ([(12, 12, 0)], [(10, 11, 0), (13, 13, 0)], 14)


def test_what_is_not_kept_is_passed_over_but_for_what_is_in_flight() -> None:
    one = consumer()
    one.give(b"m", [(10, 10), (13, 13)], 50)
    one.keep(12)
    assert shown(one) == ([(12, 12, 0)], [(10, 10, 0), (13, 13, 0)], 14)
    one.keep(20)
    assert shown(one) == ([], [(10, 10, 0), (13, 13, 0)], 20)


def test_a_cut_takes_what_is_behind_it() -> None:
    one = consumer(deliveries_max=1)
    one.give(b"m", [(10, 20)], 50)
    one.fail([(12, 12), (18, 18)], "no", HISTORY)
    one.back([(13, 17)])
    assert one.cut(15) and not one.cut(15)
    assert shown(one) == ([(13, 14, 0)], [(10, 11, 0)], 15)
    assert [letter.seq for letter in one.dying.values()] == [12]
    assert one.members[b"m"].in_flight == 2


def test_each_letter_is_a_producer_of_its_own() -> None:
    letter = DeadLetter(b"billing", 1, 0, 11, 1, 2, "no")
    others = [letter._replace(consumer=b"audit"), letter._replace(era_us=2), letter._replace(seq=12)]
    others.append(letter._replace(epoch=2))
    ids = {each.producer_id(b"x") for each in [letter, *others]} | {letter.producer_id(b"y")}
    assert len(ids) == 6 and all(len(each) <= 32 for each in ids)
    assert letter.producer_id(b"x") == letter._replace(number=5, deliveries=9, reason="late").producer_id(b"x")
