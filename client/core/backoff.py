"""Pauses between retries: longer each time, up to a bound, with a random part."""

from __future__ import annotations

from collections.abc import Callable

FIRST_S = 0.05
MOST_S = 5.0
BRIEF_MOST_S = 1.0
"""If the node is up and a worker of it is down. Longer pauses would miss a worker that is killed again and again."""
BRIEF_CODES = frozenset({"unavailable"})


class Backoff:
    """Delays that double. `random` gives 0 up to 1: each delay is between half of itself and all of it."""

    __slots__ = ("_first_s", "_most_s", "_random", "tries")

    def __init__(self, random: Callable[[], float], first_s: float = FIRST_S, most_s: float = MOST_S) -> None:
        self.tries = 0
        self._random = random
        self._first_s = first_s
        self._most_s = most_s

    def next_s(self) -> float:
        """The delay before the next try, in seconds."""
        delay_s = min(self._most_s, self._first_s * 2.0 ** min(self.tries, 32))
        self.tries += 1
        return delay_s * (0.5 + 0.5 * self._random())

    def reset(self) -> None:
        self.tries = 0


def backoff_after(code: str, random: Callable[[], float]) -> Backoff:
    """The pauses after an error with this code."""
    return Backoff(random, most_s=BRIEF_MOST_S if code in BRIEF_CODES else MOST_S)
