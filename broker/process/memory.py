"""The C library's allocator, tuned for a process that makes and drops buffers of a megabyte many times a second.

By default glibc gives the top of the heap back to the kernel at each such drop and faults it in again, page by page, at
the next: a quarter of an ingest's processor time. So it is kept, and once in a while all pages that are free in that
moment are given back: without that a worker would keep the memory of its largest turns for good. See mallopt(3),
malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Final

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 64 << 20  # free memory at the top of the heap that is kept
MAPPED_FROM_BYTES = 32 << 20  # larger blocks are mappings of their own, given back when they are dropped
TRIM_EVERY_S: Final = 60.0
TRIM_PAUSE: Final = 10_000
"""Times as long as it took; a heap with very many holes takes some milliseconds."""


def keep_freed_memory() -> bool:
    """Keep up to KEPT_BYTES for reuse. False where the C library has no mallopt (musl)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))


class HeapTrimmer:
    """Gives free pages of the heap back every TRIM_EVERY_S, or less often if that takes long. Does nothing where the C
    library has no malloc_trim (musl).
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._trim: Callable[[int], object] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
        self._due_s = clock() + TRIM_EVERY_S

    def tick(self) -> None:
        """About once a second."""
        began_s = self._clock()
        if self._trim is not None and began_s >= self._due_s:
            self._trim(0)
            ended_s = self._clock()
            self._due_s = ended_s + max(TRIM_EVERY_S, TRIM_PAUSE * (ended_s - began_s))
