"""Deadlines: the oldest first, once, and anew if this side did not read."""

from __future__ import annotations

from tailrace.broker.connection.deadlines import Awaited, DeadlineQueue, Deadlines, Delays


class Debtor:
    def __init__(self, held_up: int = 0) -> None:
        self.held_up = held_up
        self.calls: list[Awaited] = []

    def overdue(self, what: Awaited, timeout_s: float) -> bool:
        self.calls.append(what)
        self.held_up -= 1
        return self.held_up < 0


def test_the_ones_that_are_late_are_called_once() -> None:
    deadline, first, second = DeadlineQueue(Awaited.REQUEST, 10.0), Debtor(), Debtor()
    deadline.start(first, 0.0)
    deadline.start(second, 1.0)
    deadline.start(first, 2.0)  # it has sent the rest, and the beginning of another one
    for now_s in (9.0, 11.5, 12.0, 20.0):
        deadline.tick(now_s)
    assert (len(first.calls), len(second.calls)) == (1, 1)
    assert not deadline.peers


def test_a_peer_that_is_not_read_has_its_time_again() -> None:
    deadline, peer = DeadlineQueue(Awaited.LOGIN, 10.0), Debtor(held_up=1)
    deadline.start(peer, 0.0)
    deadline.tick(11.0)
    deadline.tick(20.0)
    assert len(peer.calls) == 1
    deadline.tick(22.0)
    assert len(peer.calls) == 2 and not deadline.peers


def test_a_closed_connection_owes_nothing() -> None:
    deadlines, peer = Deadlines(1.0, 1.0, 1.0), Debtor()
    for each in (deadlines.first_byte, deadlines.login, deadlines.request):
        each.start(peer, 0.0)
    deadlines.forget(peer)
    deadlines.tick(9.0)
    assert not peer.calls


def test_delays_come_at_their_times() -> None:
    delays, done = Delays(), []
    for due_s in (3.0, 1.0, 2.0):
        delays.at(due_s, lambda due_s=due_s: done.append(due_s))  # type: ignore[misc]
    delays.tick(2.0)
    assert done == [1.0, 2.0] and len(delays) == 1
