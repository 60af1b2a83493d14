from __future__ import annotations

from typing import Any

from tailrace.broker.consumers.coordinator.waiting_gets import TICK_S, WaitingGet, WaitingGets
from tailrace.broker.consumers.state.decide import GetResult
from tailrace.protocol.consuming import Get


def waiter(member: bytes, deadline_s: float = 10.0, *, name: bytes = b"s", consumer: bytes = b"c") -> WaitingGet:
    answers: list[Any] = []
    wanted = Get(1, name, consumer, member, ((0, 1, 1),), ((2, 1, "no"),), max_messages=1)
    made = WaitingGet(wanted, GetResult(), answers.append, deadline_s, 5)
    assert made.wanted == Get(1, name, consumer, member, max_messages=1), "what it has finished is said once"
    return made


def test_they_are_found_by_whom_they_are_of() -> None:
    waiters = WaitingGets()
    one, two, other = waiter(b"a"), waiter(b"b"), waiter(b"a", consumer=b"d")
    elsewhere = waiter(b"a", name=b"t")
    for each in (two, one, other, elsewhere):
        waiters.add(each)
    assert waiters.count == 4 and b"s" in waiters and b"u" not in waiters
    assert waiters.names() == [b"s", b"t"] and waiters.consumers(b"s") == [b"c", b"d"]
    assert waiters.of(b"s", b"c") == [two, one], "who has waited longest comes first"
    assert waiters.of(b"u", b"c") == waiters.of(b"s", b"u") == [] and not waiters.consumers(b"u")
    assert waiters.take(b"s", b"c", b"b") is two and waiters.take(b"s", b"c", b"b") is None
    assert waiters.take_all(b"s") == [one, other] and b"s" not in waiters
    assert waiters.take_all() == [elsewhere] and waiters.count == 0 and not waiters.names()


def test_their_time_is_over_at_the_deadline_and_not_before() -> None:
    waiters = WaitingGets()
    early, late = waiter(b"a", 1.0), waiter(b"b", 2.0)
    waiters.add(early)
    waiters.add(late)
    assert waiters.take_due(0.99) == []
    assert waiters.take_due(1.0 + TICK_S) == [early]
    assert waiters.take_due(1.0 + TICK_S) == [] and waiters.of(b"s", b"c") == [late]
    assert waiters.take_due(100.0) == [late]
    assert waiters.take_due(101.0) == [] and not waiters._due


def test_one_that_is_gone_is_not_due_and_not_removed_twice() -> None:
    waiters = WaitingGets()
    one, newer = waiter(b"a", 1.0), waiter(b"a", 1.0)
    waiters.add(one)
    waiters.remove(one)
    waiters.add(newer)
    waiters.remove(one)
    assert waiters.count == 1 and waiters.take_due(5.0) == [newer]
    waiters.remove(newer)
    assert waiters.count == 0 and not waiters._due


def test_only_the_first_answer_counts() -> None:
    answers: list[Any] = []
    one = WaitingGet(Get(1, b"s", b"c", b"m"), GetResult(), answers.append, 1.0, 5)
    one.resolve("first")
    one.resolve("second")
    assert answers == ["first"]
