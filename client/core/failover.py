"""Decides when a client leaves its node for the next address, because publishes fail there. Pure.

It moves only if it has several addresses. It leaves a node that answers `disabled` at once: that node logs nothing of
the stream, another one is its master now. One that cannot reach a stream's master, or has too few nodes below it, may
recover; the client leaves it after `PATIENCE_S` of this. Before it leaves, it waits for pending answers, so that
nothing is sent twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

PATIENCE_S = 1.0
"""For which a node may say the same of one stream, `disabled` apart."""
PAUSE_S = 1.0
"""Between two moves: with no master at any address it goes round them no faster."""
DRAIN_S = 5.0
"""For the answers under way. What has none by then is sent again, as after any lost connection."""

DISABLED: Final = "disabled"
PASSING: Final = frozenset({"unavailable", "unreplicated"})


class Failover:
    """The failover of one client."""

    def __init__(self, has_choice: bool) -> None:
        self.reason = ""
        self.is_quiet = True  # nothing has failed at this node: there is nothing to decide
        self._has_choice = has_choice
        self._leave_s = math.inf  # when to go, as soon as nothing is under way
        self._moved_s = -math.inf
        self._failing_since_s: dict[str, float] = {}  # streams, on this connection

    def connected(self) -> None:
        self._leave_s = math.inf
        self._failing_since_s.clear()
        self.is_quiet = True

    def published(self, streams: Iterable[str]) -> None:
        """All went well."""
        if self._failing_since_s:
            for stream in streams:
                self._failing_since_s.pop(stream, None)
            self.is_quiet = self._leave_s == math.inf and not self._failing_since_s

    def refused(self, stream: str, code: str, now_s: float) -> None:
        if not self._has_choice:
            return
        if code in PASSING:
            self.is_quiet = False
            if now_s - self._failing_since_s.setdefault(stream, now_s) < PATIENCE_S:
                return
        elif code != DISABLED:
            return
        self.is_quiet = False
        if self._leave_s == math.inf:
            self._leave_s = max(now_s, self._moved_s + PAUSE_S)
            self.reason = f"left for the next address: {stream} is {code} here"

    def due_s(self, *, in_flight: bool) -> float:
        """When `is_due` becomes true."""
        return self._leave_s + DRAIN_S if in_flight else self._leave_s

    def is_due(self, now_s: float, *, in_flight: bool) -> bool:
        """Whether to move now."""
        return now_s >= self.due_s(in_flight=in_flight)

    def holds_back(self, now_s: float) -> bool:
        """Whether new publishes must wait for the move."""
        return now_s >= self._leave_s

    def moved(self, now_s: float) -> None:
        self._moved_s = now_s
        self.connected()
