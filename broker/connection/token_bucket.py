"""A rate with a burst. Pure; the caller passes the time."""

from __future__ import annotations


class TokenBucket:
    """`rate` tokens a second, at most `burst` of them saved up. It may be overdrawn: the debt is paid first."""

    __slots__ = ("_at_s", "_level", "burst", "rate")

    def __init__(self, rate: float, burst: float, now_s: float) -> None:
        self.rate = rate
        self.burst = burst
        self._level = burst
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """Tokens that are there; negative for a debt."""
        if now_s > self._at_s:
            self._level = min(self._level + (now_s - self._at_s) * self.rate, self.burst)
            self._at_s = now_s
        return self._level

    def take(self, count: float, now_s: float) -> float:
        """Take `count` tokens, even if fewer are there. Returns the seconds until the debt is paid, 0 without one."""
        self._level = self.level(now_s) - count
        return max(-self._level, 0.0) / self.rate

    def put_back(self, count: float) -> None:
        self._level += count
