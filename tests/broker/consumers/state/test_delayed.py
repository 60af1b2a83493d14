"""Failed messages that wait: found by their time and by their key."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.broker.consumers.state import delayed as delayed_module
from tailrace.broker.consumers.state.delayed import Delayed
from tailrace.broker.consumers.state.ranges import DeliveryRun


class EvenAndOdd:
    """A stream whose messages have one of two keys; of those from 100 on none."""

    def keys(self, first_seq: int, last_seq: int) -> Sequence[bytes | None]:
        return [None if seq >= 100 else b"odd" if seq % 2 else b"even" for seq in range(first_seq, last_seq + 1)]


STREAM = EvenAndOdd()


def run(first: int, last: int, due_us: int, deliveries: int = 1) -> DeliveryRun:
    return DeliveryRun(first, last, deliveries, b"", due_us)


def spans(runs: Sequence[DeliveryRun]) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in runs]


def test_they_are_taken_when_their_time_has_come() -> None:
    delayed = Delayed()
    for each in (run(5, 6, 30), run(1, 2, 20), run(9, 9, 10)):
        delayed.add(each)
    assert (delayed.runs.count, delayed.next_due_us()) == (5, 10)
    assert spans(delayed.take_due(9)) == []
    assert spans(delayed.take_due(20)) == [(9, 9), (1, 2)]
    assert (delayed.runs.count, delayed.next_due_us()) == (2, 30)


def test_those_that_were_finished_meanwhile_are_not() -> None:
    delayed = Delayed()
    delayed.add(run(1, 4, 10))
    delayed.runs.cut(2, 3)
    assert spans(delayed.take_due(10)) == [(1, 1), (4, 4)]
    delayed.add(run(1, 4, 10))
    delayed.runs.cut(1, 4)
    assert delayed.next_due_us() is None and delayed.take_due(10) == []


def test_one_that_has_failed_once_more_has_its_new_time() -> None:
    delayed = Delayed()
    delayed.add(run(1, 1, 10))
    delayed.runs.cut(1, 1)
    delayed.add(run(1, 1, 50, deliveries=2))
    assert delayed.take_due(49) == [] and delayed.next_due_us() == 50
    assert [each.deliveries for each in delayed.take_due(50)] == [2]


def test_later_messages_of_their_keys_are_held_up() -> None:
    delayed = Delayed()
    delayed.add(run(4, 4, 10))
    delayed.add(run(100, 100, 10))
    delayed.learn(STREAM)
    assert delayed.blocks(b"even", 6)
    assert not delayed.blocks(b"even", 2), "it comes before"
    assert not delayed.blocks(b"odd", 5)
    delayed.take_due(10)
    assert not delayed.blocks(b"even", 6)


def test_their_keys_are_learned_anew_after_a_cut() -> None:
    delayed = Delayed()
    delayed.add(run(4, 7, 10))
    delayed.learn(STREAM)
    delayed.runs.cut(6, 7)
    delayed.forget_keys()
    assert not delayed.blocks(b"even", 6)
    delayed.learn(STREAM)
    assert delayed.blocks(b"even", 6) and delayed.blocks(b"odd", 7)


def test_what_is_known_of_former_ones_is_bounded() -> None:
    delayed = Delayed()
    for due_us in range(3 * delayed_module.STALE_KEYS_MAX):
        delayed.add(run(2, 2, due_us + 1))
        delayed.learn(STREAM)
        delayed.runs.cut(2, 2)
    assert delayed._entries <= delayed_module.STALE_KEYS_MAX + 1
