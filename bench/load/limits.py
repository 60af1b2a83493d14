"""What ends a measurement that does not end by itself."""

from __future__ import annotations

import time


class LoadError(Exception):
    """The measurement failed: what was seen, and where."""


class LoadTimeout(LoadError):
    """The deadline passed."""


class PeerClosed(LoadError):
    """The server closed a connection it should have kept."""


class Deadline:
    """A point in monotonic time, and the waits that lead up to it."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def check(self, doing: str) -> None:
        """LoadTimeout once the time has passed."""
        if time.monotonic() >= self._end:
            raise LoadTimeout(f"{doing}: not finished after {self.timeout_s:g} s")

    def left_s(self, at_most_s: float) -> float:
        """How long to wait at one go: never beyond the deadline, never negative."""
        return max(0.0, min(at_most_s, self._end - time.monotonic()))
