"""Cookies show that an address is not forged: only its owner receives them. Nothing is stored."""

from __future__ import annotations

import hmac
import os
from typing import Final

from tailrace.protocol.datagrams import COOKIE_CHARACTERS

PERIOD_S: Final = 60
"""A cookie is valid in the period in which it was made, and in the next one."""


class Cookies:
    """One per worker: the kernel gives an address always to the same one. Another worker makes others."""

    def __init__(self) -> None:
        self._secret = os.urandom(32)

    def make(self, name: bytes, now_s: float) -> str:
        """The cookie of an address."""
        return self._of(name, int(now_s // PERIOD_S))

    def is_valid(self, name: bytes, cookie: bytes, now_s: float) -> bool:
        period = int(now_s // PERIOD_S)
        now, before = (hmac.compare_digest(cookie, self._of(name, each).encode()) for each in (period, period - 1))
        return now or before

    def _of(self, name: bytes, period: int) -> str:
        digest = hmac.digest(self._secret, name + period.to_bytes(8, "little"), "sha256")
        return digest.hex()[:COOKIE_CHARACTERS]
