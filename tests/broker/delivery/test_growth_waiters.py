"""Who waits for the growth of streams: found by the beginnings of names, and called some at a time."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

from tailrace.broker.delivery.growth_waiters import WAKES_A_TURN, GrowthWaiters


def test_those_are_called_whose_prefix_the_name_has() -> None:
    waiters, called = GrowthWaiters(), list[bytes]()
    for prefix in (b"", b"a", b"ab", b"abc", b"b"):
        waiters.add(prefix, partial(called.append, prefix))
    assert [len(waiters), bool(waiters.woken)] == [5, False]
    waiters.note([(b"ab", 7)])
    assert [bool(waiters.woken), called] == [True, []]
    waiters.call()
    assert sorted(called) == [b"", b"a", b"ab"] and [len(waiters), bool(waiters.woken)] == [2, False]
    waiters.note([(b"ab", 8), (b"abc", 0), (b"abcd", 0)])
    waiters.call()
    assert called[3:] == [b"abc"], "each is called once"
    waiters.note_any()
    waiters.call()
    assert called[4:] == [b"b"] and not waiters


def test_one_that_is_discarded_is_not_called_and_may_wait_again() -> None:
    waiters, called = GrowthWaiters(), list[str]()
    first, second = partial(called.append, "first"), partial(called.append, "second")
    waiters.add(b"a", first)
    waiters.add(b"a", second)
    waiters.discard(first)
    waiters.discard(first)
    waiters.note([(b"a", 0)])
    waiters.add(b"b", second)
    waiters.call()
    assert not called, "it waits for another growth since"
    waiters.note([(b"a", 0), (b"b", 0)])
    waiters.call()
    assert called == ["second"] and not waiters


def test_a_turn_calls_a_bounded_number_in_the_order_in_which_they_were_woken() -> None:
    waiters, called = GrowthWaiters(), list[int]()
    for number in range(2 * WAKES_A_TURN + 1):
        waiters.add(b"s", partial(called.append, number))
    waiters.note([(b"s1", 0)])
    for turn in range(1, 4):
        waiters.call()
        assert called == list(range(min(turn * WAKES_A_TURN, 2 * WAKES_A_TURN + 1)))
        assert bool(waiters.woken) == (turn < 3)


def test_one_that_waits_again_while_it_is_called_is_not_called_twice_in_a_turn() -> None:
    waiters, called = GrowthWaiters(), list[int]()

    def grew() -> None:
        called.append(len(called))
        waiters.add(b"", grew)
        waiters.note([(b"s", 0)])

    waiters.add(b"", grew)
    waiters.note([(b"s", 0)])
    waiters.call()
    assert called == [0] and waiters.woken


class CountedName(bytes):
    """Counts how often a beginning of it is taken."""

    taken = 0

    def __getitem__(self, key: Any) -> Any:
        CountedName.taken += 1
        return super().__getitem__(key)


def test_what_growth_costs_does_not_depend_on_how_many_wait() -> None:
    waiters, called = GrowthWaiters(), list[int]()
    for number in range(1_000):
        waiters.add(b"other-%04d" % number, partial(called.append, number))
    waiters.add(b"o" * 200, partial(called.append, 0))
    waiters.note([(CountedName(b"s%d" % number), 0) for number in range(10)])
    assert CountedName.taken == 2 * 10 and not waiters.woken, "once for each length of a prefix"


def test_agrees_with_a_comparison_of_all() -> None:
    chance = random.Random(18)
    waiters, called = GrowthWaiters(), list[int]()
    waiting: dict[int, bytes] = {}
    for number in range(2_000):
        prefix = bytes(chance.choices(b"ab", k=chance.randrange(4)))
        waiters.add(prefix, partial(called.append, number))
        waiting[number] = prefix
        if number % 3 == 0:
            names = [bytes(chance.choices(b"abc", k=chance.randrange(1, 6))) for _ in range(chance.randrange(3))]
            waiters.note([(name, 0) for name in names])
            waiters.call()
            wanted = {each for each, prefix in waiting.items() if any(name.startswith(prefix) for name in names)}
            assert set(called) == wanted and len(called) == len(wanted)
            for each in called:
                del waiting[each]
            called.clear()
    assert len(waiters) == len(waiting)
