"""Deadlines: for the first byte of a connection, its login, the rest of a request; and actions that wait for a time.

A deadline is the same for all connections, so those that began first are over first: each is a queue, and a tick looks
at its head. Nothing walks over all connections.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import StrEnum
from itertools import count
from typing import Protocol

HANDSHAKE_TIMEOUT_S = 10.0  # of TLS, from its first byte until it is done


class Awaited(StrEnum):
    """What a connection owes. The values are labels of a metric."""

    FIRST_BYTE = "first byte"
    HANDSHAKE = "handshake"
    LOGIN = "login"
    REQUEST = "request"


class DeadlinePeer(Protocol):
    """What a deadline needs of a connection."""

    def overdue(self, what: Awaited, timeout_s: float) -> bool:
        """It did not come in time. Returns False if this side did not read: then the time begins anew."""
        ...


class DeadlineQueue:
    """One of them. `peers`: since when each has owed it, the longest first."""

    __slots__ = ("peers", "timeout_s", "what")

    def __init__(self, what: Awaited, timeout_s: float) -> None:
        self.what = what
        self.timeout_s = timeout_s
        self.peers: dict[DeadlinePeer, float] = {}

    def start(self, peer: DeadlinePeer, now_s: float) -> None:
        """From now on, also if it owed something before."""
        self.peers.pop(peer, None)
        self.peers[peer] = now_s

    def stop(self, peer: DeadlinePeer) -> None:
        self.peers.pop(peer, None)

    def oldest(self, before_s: float) -> DeadlinePeer | None:
        """The one that has owed it for longest, if since earlier than `before_s`."""
        for peer, since_s in self.peers.items():
            return peer if since_s < before_s else None
        return None

    def tick(self, now_s: float) -> None:
        while (peer := self.oldest(now_s - self.timeout_s)) is not None:
            del self.peers[peer]
            if not peer.overdue(self.what, self.timeout_s):
                self.peers[peer] = now_s


class Deadlines:
    """Those of one worker."""

    __slots__ = ("first_byte", "handshake", "login", "request")

    def __init__(self, first_byte_s: float, login_s: float, request_s: float) -> None:
        self.first_byte = DeadlineQueue(Awaited.FIRST_BYTE, first_byte_s)
        self.handshake = DeadlineQueue(Awaited.HANDSHAKE, HANDSHAKE_TIMEOUT_S)
        self.login = DeadlineQueue(Awaited.LOGIN, login_s)
        self.request = DeadlineQueue(Awaited.REQUEST, request_s)

    def forget(self, peer: DeadlinePeer) -> None:
        """The connection is closed."""
        self.first_byte.stop(peer)
        self.handshake.stop(peer)
        self.login.stop(peer)
        self.request.stop(peer)

    def tick(self, now_s: float) -> None:
        self.first_byte.tick(now_s)
        self.handshake.tick(now_s)
        self.login.tick(now_s)
        self.request.tick(now_s)


class Delays:
    """Actions at their times, for connections that are ahead of their rate."""

    __slots__ = ("_heap", "_numbers")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, due_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (due_s, next(self._numbers), action))

    def tick(self, now_s: float) -> None:
        """Runs the due actions; those that they add wait for the next call."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap)[2])
        for action in due:
            action()
