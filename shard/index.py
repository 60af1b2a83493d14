"""Reading the index: one entry, and the first seq of a time. Functions over a file descriptor, for log and reader.

Entry i of the file is message base_seq + i. Timestamps never decrease, so a time is found by binary search.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import Final, NamedTuple

from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY, INDEX_ENTRY_BYTES, IndexEntry
from tailrace.shard.header import HEADER_PAGE_BYTES, VALUE_MAX

SEARCH_BLOCK_ENTRIES: Final = 170
"""The search ends with one read of this many entries, about a page."""
CUT_READS_MAX: Final = 64
"""More than halving takes to find any place: what a damaged index can cost."""


class IndexRun(NamedTuple):
    """Messages seq..end_seq, whose frames fill the content from `offset` to `end_offset`."""

    seq: int
    offset: int
    end_seq: int
    end_offset: int


def entry_offset(seq: int, base_seq: int) -> int:
    """The offset of message `seq`'s entry in the index file."""
    return HEADER_PAGE_BYTES + INDEX_ENTRY_BYTES * (seq - base_seq)


def read_entry(fd: int, seq: int, base_seq: int) -> IndexEntry | None:
    """The entry of message `seq`; None when the file ends before it or it cannot be an entry. Raises OSError."""
    data = os.pread(fd, INDEX_ENTRY_BYTES, HEADER_PAGE_BYTES + INDEX_ENTRY_BYTES * (seq - base_seq))
    if len(data) < INDEX_ENTRY_BYTES:
        return None
    entry = IndexEntry._make(INDEX_ENTRY.unpack(data))
    if entry.length < HEADER_BYTES or not HEADER_PAGE_BYTES <= entry.offset <= VALUE_MAX:
        return None
    return entry


def seq_at(fd: int, base_seq: int, first_seq: int, next_seq: int, timestamp_us: int, skip: int = 0) -> int:
    """Returns the first seq of first_seq..next_seq with a timestamp of at least `timestamp_us`; next_seq without any.

    With `skip`, that many messages of exactly this timestamp are passed over, no more than there are. Raises OSError.
    """
    seq = _lower_bound(fd, base_seq, first_seq, next_seq, timestamp_us)
    if skip <= 0:
        return seq
    after = _lower_bound(fd, base_seq, seq, min(next_seq, seq + skip), timestamp_us + 1)
    return after


def cut(fd: int, base_seq: int, run: IndexRun, nbytes: int) -> tuple[int, int] | None:
    """Returns the end of the longest prefix of a run that has at most `nbytes`, or is one message.

    Gives (the seq after it, the offset after it); None where the entries make no sense. Messages are mostly of like
    size, so the place is guessed from the run's density and nearly always found with the first read. Raises OSError.
    """
    limit = run.offset + nbytes
    if run.end_offset <= limit:
        return run.end_seq, run.end_offset
    low, low_offset = run.seq, run.offset  # begins within the limit
    high, high_offset = run.end_seq, run.end_offset  # begins beyond it
    for step in range(CUT_READS_MAX):
        if high - low <= 1:
            break
        # Every other guess halves the remaining range, in case the sizes are very uneven.
        share = 0.5 if step % 2 else (limit - low_offset) / max(high_offset - low_offset, 1)
        middle = low + int((high - low) * share) - SEARCH_BLOCK_ENTRIES // 2
        first = max(min(middle, high - SEARCH_BLOCK_ENTRIES), low + 1)
        offsets = _offsets(fd, base_seq, first, min(first + SEARCH_BLOCK_ENTRIES, high))
        if not offsets:
            return None
        place = bisect_right(offsets, limit)
        if place:
            low, low_offset = first + place - 1, offsets[place - 1]
        if place < len(offsets):
            high, high_offset = first + place, offsets[place]
    end_seq, end_offset = (high, high_offset) if low == run.seq else (low, low_offset)
    return (end_seq, end_offset) if run.offset < end_offset <= run.end_offset else None


def _offsets(fd: int, base_seq: int, first: int, end: int) -> list[int]:
    """The content offsets of messages first..end; empty where the file ends before them."""
    data = os.pread(fd, INDEX_ENTRY_BYTES * (end - first), entry_offset(first, base_seq))
    if len(data) < INDEX_ENTRY_BYTES * (end - first):
        return []
    return [entry[1] for entry in INDEX_ENTRY.iter_unpack(data)]


def _lower_bound(fd: int, base_seq: int, low: int, high: int, timestamp_us: int) -> int:
    pread, origin = os.pread, HEADER_PAGE_BYTES - INDEX_ENTRY_BYTES * base_seq
    while high - low > SEARCH_BLOCK_ENTRIES:
        middle = (low + high) // 2
        if int.from_bytes(pread(fd, 8, origin + INDEX_ENTRY_BYTES * middle), "little") < timestamp_us:
            low = middle + 1
        else:
            high = middle
    block = pread(fd, INDEX_ENTRY_BYTES * (high - low), origin + INDEX_ENTRY_BYTES * low)
    for place in range(len(block) // INDEX_ENTRY_BYTES):
        if int.from_bytes(block[INDEX_ENTRY_BYTES * place : INDEX_ENTRY_BYTES * place + 8], "little") >= timestamp_us:
            return low + place
    return high
