"""How long the machine itself stood still: for promises in seconds, on machines that others load.

A thread does every few milliseconds what a broker needs to go on: a processor, and a file made, written and removed.
Time beyond the usual is the machine's.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

EVERY_S = 0.01
USUAL_S = 0.05
"""A round takes far less on a machine that does nothing else."""
STARTS = 3
USUAL_START_S = 0.15
"""Of a Python process that imports a little, on a machine that does nothing else: a tenth of a second."""


def slowness() -> float:
    """How many times as long as usual this machine takes now for what nodes do when they start; at least 1."""
    began_s = time.monotonic()
    for _ in range(STARTS):
        subprocess.run([sys.executable, "-c", "import asyncio"], check=True)
    return max(1.0, (time.monotonic() - began_s) / (STARTS * USUAL_START_S))


def assert_within(took_s: float, limit_s: float) -> None:
    """The limit holds on a quiet machine. On one that others load, as many times longer as all takes longer there."""
    if took_s >= limit_s:
        slower = slowness()
        assert took_s < limit_s * slower, (
            f"{took_s:.2f} s; the limit is {limit_s} s on a machine {slower:.1f} times slower"
        )


class Standstill:
    """`folder`: the place of its file; on the disk that the promise is about."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "standstill"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._lock = threading.Lock()
        self._round_began_s = time.monotonic()
        self._still_s = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def seconds(self) -> float:
        """All of it until now, the round that has begun and not ended included."""
        with self._lock:
            return self._still_s + self._beyond_usual_s()

    def _beyond_usual_s(self) -> float:
        return max(0.0, time.monotonic() - self._round_began_s - USUAL_S)

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._path.write_bytes(b"x")
            self._path.unlink()
            with self._lock:
                self._still_s += self._beyond_usual_s()
                self._round_began_s = time.monotonic()
