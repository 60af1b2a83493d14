"""Errors and deadlines of a measurement. Everything else in bench may import this; it imports nothing."""

from __future__ import annotations

import time


class LoadError(Exception):
    """The measurement failed; the message has the reason."""


class LoadTimeout(LoadError):
    """The deadline passed."""


class PeerClosed(LoadError):
    """The server closed a connection that it should have kept."""


class Deadline:
    """A point in monotonic time, and the waits before it."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._end = time.monotonic() + timeout_s

    def check(self, doing: str) -> None:
        """Raises LoadTimeout once the time has passed."""
        if time.monotonic() >= self._end:
            raise LoadTimeout(f"{doing}: not finished after {self.timeout_s:g} s")

    def left_s(self, at_most_s: float) -> float:
        """Seconds to wait at once: at most `at_most_s`, never beyond the deadline, never negative."""
        return max(0.0, min(at_most_s, self._end - time.monotonic()))
