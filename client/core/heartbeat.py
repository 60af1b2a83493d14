"""Decides when to ping a silent broker, and when to give it up.

Two clocks run at once. While nothing is asked, silence is normal: the broker is pinged every `interval_s`, and given up
after three pings. While an answer is owed, silence is not: it is pinged after a part of `silence_s`, and given up after
all of that. Only what the broker sends counts, with one exception: while bytes of ours are still on their way, those
that it has acknowledged show that it is there, and that a PING behind them has not come to it yet.

A client that did not run for a while (a stopped process, a blocked event loop) has not read its socket. So it gives up
a connection only at a second check, after reading the socket once more.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

UNANSWERED_MAX = 3
PING_PART = 0.4
"""Of the silence that is allowed while an answer is owed."""
RECHECK_S = 0.1


class Beat(Enum):
    """The action that is due."""

    NOTHING = 0
    PING = 1
    DEAD = 2


class Transit(NamedTuple):
    """Bytes of ours that the broker's machine has acknowledged so far, and those that it has not."""

    acknowledged: int
    waiting: int


NOT_KNOWN = Transit(0, 0)


class Heartbeat:
    """The heartbeat of one connection."""

    __slots__ = (
        "_acknowledged",
        "_interval_s",
        "_pinged_s",
        "_pings",
        "_quiet_since_s",
        "_received_s",
        "_silence_s",
        "_suspect_since_s",
        "owed",
    )

    def __init__(self, interval_s: float, silence_s: float, now_s: float) -> None:
        self._interval_s = interval_s
        self._silence_s = silence_s
        self._received_s = now_s
        self._pings = 0  # since something came
        self.owed = False  # an answer is
        self._quiet_since_s = now_s  # while an answer is owed
        self._pinged_s = -math.inf
        self._suspect_since_s = math.inf  # when this silence was first seen to be too long
        self._acknowledged = -1

    @property
    def due_s(self) -> float:
        """When to check again."""
        idle_s = self._received_s + self._interval_s * (self._pings + 1)
        if not self.owed:
            return idle_s
        owed_due_s = self._quiet_since_s + self._silence_s * PING_PART
        if self._pinged_s >= owed_due_s:
            owed_due_s = self._owed_due_s
        return idle_s if idle_s < owed_due_s else owed_due_s

    @property
    def _owed_due_s(self) -> float:
        ping_s = self._quiet_since_s + self._silence_s * PING_PART
        if self._pinged_s < ping_s:
            return ping_s
        if self._suspect_since_s < math.inf:
            return self._suspect_since_s + RECHECK_S
        return max(self._quiet_since_s + self._silence_s, self._pinged_s + self._silence_s * (1 - PING_PART))

    def received(self, now_s: float) -> None:
        """Bytes have arrived."""
        self._received_s = self._quiet_since_s = now_s
        self._pings = 0
        self._suspect_since_s = math.inf

    def owe(self, owed: bool, now_s: float) -> None:
        """Sets whether an answer is owed from now on."""
        if owed and not self.owed:
            self._quiet_since_s = now_s
            self._suspect_since_s = math.inf
        self.owed = owed

    def beat(self, now_s: float, transit: Transit = NOT_KNOWN) -> Beat:
        """PING is to be sent when it is returned."""
        if now_s < self.due_s:
            return Beat.NOTHING
        if self.owed and now_s >= self._owed_due_s:
            return self._beat_owed(now_s, transit)
        if self._pings >= UNANSWERED_MAX:
            return Beat.DEAD
        self._pings += 1
        return Beat.PING

    def _beat_owed(self, now_s: float, transit: Transit) -> Beat:
        moves = transit.waiting > 0 and transit.acknowledged != self._acknowledged
        self._acknowledged = transit.acknowledged
        if self._pinged_s < self._quiet_since_s + self._silence_s * PING_PART:
            self._pinged_s = now_s
            return Beat.PING
        if moves:
            self._quiet_since_s = now_s
            self._suspect_since_s = math.inf
            return Beat.NOTHING
        if self._suspect_since_s < math.inf:
            return Beat.DEAD
        self._suspect_since_s = now_s
        return Beat.NOTHING
