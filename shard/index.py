"""Reading the index: one entry, and the first seq of a time. Functions over a file descriptor, for log and reader.

Entry i of the file is message base_seq + i. Timestamps never decrease, so a time is found by binary search.
"""

from __future__ import annotations

import os
from typing import Final

from shard.frame import HEADER_BYTES, INDEX_ENTRY, INDEX_ENTRY_BYTES, IndexEntry
from shard.header import HEADER_PAGE_BYTES, VALUE_MAX

SEARCH_BLOCK_ENTRIES: Final = 170
"""The search ends with one read of this many entries, about a page."""


def entry_offset(seq: int, base_seq: int) -> int:
    """Where in the index file the entry of message `seq` begins."""
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
    """The first seq of first_seq..next_seq with a timestamp of at least `timestamp_us`; next_seq if there is none.

    With `skip`, that many messages of exactly this timestamp are passed over, no more than there are. Raises OSError.
    """
    seq = _lower_bound(fd, base_seq, first_seq, next_seq, timestamp_us)
    if skip <= 0:
        return seq
    after = _lower_bound(fd, base_seq, seq, min(next_seq, seq + skip), timestamp_us + 1)
    return after


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
