"""When a silent broker is pinged, and when it is given up."""

from __future__ import annotations

from enum import Enum

UNANSWERED_MAX = 3


class Beat(Enum):
    """What is due."""

    NOTHING = 0
    PING = 1
    DEAD = 2


class Heartbeat:
    """One a connection. Only what the broker sends counts: what we send may lie in a dead network."""

    __slots__ = ("_heard_s", "_interval_s", "_pings")

    def __init__(self, interval_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._heard_s = now_s
        self._pings = 0

    @property
    def due_s(self) -> float:
        """When to look again."""
        return self._heard_s + self._interval_s * (self._pings + 1)

    def heard(self, now_s: float) -> None:
        """Something came."""
        self._heard_s = now_s
        self._pings = 0

    def beat(self, now_s: float) -> Beat:
        """PING is to be sent when it is said; each is counted until something comes."""
        if now_s < self.due_s:
            return Beat.NOTHING
        if self._pings >= UNANSWERED_MAX:
            return Beat.DEAD
        self._pings += 1
        return Beat.PING
