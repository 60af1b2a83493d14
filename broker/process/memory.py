"""One tuning of the C library's allocator, for a process that makes and drops buffers of a megabyte many times a
second.

By default glibc gives the top of the heap back to the kernel at each such drop and faults it in again, page by page, at
the next: a quarter of an ingest's processor time. See mallopt(3).
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEPT_BYTES = 64 << 20  # free memory at the top of the heap that is kept
MAPPED_FROM_BYTES = 32 << 20  # larger blocks are mappings of their own, given back when they are dropped


def keep_freed_memory() -> bool:
    """Keep up to KEPT_BYTES for reuse. False where the C library has no mallopt (musl)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
