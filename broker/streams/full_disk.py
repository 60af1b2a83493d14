"""Warnings of a full disk in the log: one a minute, however many publishes are refused."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from tailrace.shard.errors import StorageFull

log = logging.getLogger(__name__)

INTERVAL_S = 60.0


class FullDiskLog:
    __slots__ = ("_next_s", "_path", "_silent")

    def __init__(self, path: Path) -> None:
        """`path` is on the disk."""
        self._path = path
        self._next_s = float("-inf")
        self._silent = 0

    def note(self, full: StorageFull) -> None:
        """A stream has found no space."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._silent += 1
            return
        self._next_s = now_s + INTERVAL_S
        text = "the disk is full: %s; %s; %d more of these were not logged"
        log.warning(text, full, self._space(), self._silent)
        self._silent = 0

    def _space(self) -> str:
        try:
            found = os.statvfs(self._path)
        except OSError as error:
            return f"its space is not known: {error.strerror}"
        return f"{found.f_bavail * found.f_frsize} of {found.f_blocks * found.f_frsize} bytes are free"
