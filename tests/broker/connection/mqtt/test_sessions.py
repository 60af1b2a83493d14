"""Client identifiers over several workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from tailrace.broker.connection.mqtt.sessions import CLAIM, FREE, NEWER, OTHERS, ClaimAnswer, MqttSessions
from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code


class Holder:
    def __init__(self, claimed_ns: int, user: str = "") -> None:
        self.client_id = b"id"
        self.claimed_ns = claimed_ns
        self.user = user
        self.closed = False
        self.session: list[Any] | None = None

    def hand_over_session(self) -> list[Any] | None:
        return self.session

    def taken_over(self) -> None:
        self.closed = True


class Left:
    """Durable sessions on their way to the store of one worker."""

    def __init__(self) -> None:
        self.sessions: dict[bytes, list[Any]] = {}

        self.deciding: set[bytes] = set()

    def is_deciding(self, client_id: bytes) -> bool:
        return client_id in self.deciding

    def take(self, client_id: bytes) -> list[Any] | None:
        return self.sessions.pop(client_id, None)

    def give_back(self, client_id: bytes, handed: Sequence[Any]) -> None:
        self.sessions[client_id] = list(handed)


class Calls:
    """Delivers the calls of workers to each other when a test wants it."""

    def __init__(self, slots: int) -> None:
        self.left = [Left() for _ in range(slots)]
        self.workers = [MqttSessions(cast("WorkerCalls", self), slots, left) for left in self.left]
        self.waiting: list[Callable[[], None]] = []
        self.dead: set[int] = set()

    def call_slot(self, slot: int, verb: str, args: list[Any], done: Callable[[Any], None]) -> None:
        assert verb == CLAIM

        def call() -> None:
            gone = Refused(Code.UNAVAILABLE, "this worker is gone")
            done(gone if slot in self.dead else self.workers[slot].claimed(*args))

        self.waiting.append(call)

    def deliver(self) -> None:
        while self.waiting:
            self.waiting.pop()()


@pytest.mark.parametrize("slot", [0, 1])
def test_the_older_one_ends(slot: int) -> None:
    calls, answers = Calls(2), list[ClaimAnswer]()
    old, new = Holder(1), Holder(2)
    calls.workers[0].claim(old, answers.append)
    calls.deliver()
    calls.workers[slot].claim(new, answers.append)
    assert answers == [FREE], "not before every worker has answered"
    calls.deliver()
    assert answers == [FREE, FREE] and old.closed and not new.closed
    calls.workers[0].release(old)
    assert sum(map(len, calls.workers)) == 1


def test_of_two_at_once_the_later_one_stays() -> None:
    calls, answers = Calls(2), dict[int, ClaimAnswer]()
    one, other = Holder(1), Holder(2)
    calls.workers[0].claim(one, lambda answer: answers.update({1: answer}))
    calls.workers[1].claim(other, lambda answer: answers.update({2: answer}))
    calls.deliver()
    assert answers == {1: NEWER, 2: FREE} and one.closed and not other.closed


def test_another_user_does_not_take_it() -> None:
    calls, answers = Calls(2), list[ClaimAnswer]()
    ann, bob = Holder(1, "ann"), Holder(2, "bob")
    for slot, holder in enumerate((ann, bob)):
        calls.workers[slot].claim(holder, answers.append)
        calls.deliver()
    assert answers == [FREE, OTHERS] and not ann.closed


def test_a_worker_that_is_gone_holds_nothing() -> None:
    calls, answers = Calls(3), list[ClaimAnswer]()
    calls.dead = {2}
    calls.workers[0].claim(Holder(1), answers.append)
    calls.deliver()
    assert answers == [FREE]


def test_one_that_moved_while_a_later_one_came() -> None:
    calls = Calls(2)
    moved, later = Holder(1), Holder(2)
    calls.workers[0].claim(later, lambda _answer: None)
    calls.deliver()
    calls.workers[1].adopt(moved)
    calls.deliver()
    assert [moved.closed, later.closed] == [True, False]
    stays = Holder(3)
    calls.workers[1].adopt(stays)
    calls.deliver()
    assert [later.closed, stays.closed] == [True, False]


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_durable_session_comes_with_the_identifier(has_ended: bool) -> None:
    """Also if its connection has ended, and it may not be stored yet."""
    calls, answers = Calls(2), list[ClaimAnswer]()
    old, new = Holder(1), Holder(2)
    if has_ended:
        calls.left[1].sessions[b"id"] = [7, b"state", 60, False]
    else:
        old.session = [7, b"state", 60, False]
        calls.workers[1].claim(old, answers.append)
        calls.deliver()
    calls.workers[0].claim(new, answers.append)
    calls.deliver()
    assert answers[-1] == [7, b"state", 60, False] and old.closed != has_ended


def test_a_session_whose_new_connection_is_refused_goes_back() -> None:
    calls, answers = Calls(2), list[ClaimAnswer]()
    ann, bob = Holder(1, "ann"), Holder(2, "bob")
    calls.workers[0].claim(ann, answers.append)
    calls.deliver()
    calls.left[1].sessions[b"id"] = [7, b"state", 60, False]
    calls.workers[1].claim(bob, answers.append)
    calls.deliver()
    assert answers[-1] == OTHERS and calls.left[1].sessions == {b"id": [7, b"state", 60, False]}
