"""Index entries as NumPy arrays, and their plausibility."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES, MAX_FRAME_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES

ENTRY: Final = np.dtype([("timestamp_us", "<u8"), ("offset", "<u8"), ("length", "<u4"), ("epoch", "<u4")])
"""`shard.frame.INDEX_ENTRY` as NumPy has it."""
TIMESTAMP_MAX: Final = 2**63 - 1

Int64s: TypeAlias = NDArray[np.int64]
Table: TypeAlias = NDArray[Any]

assert ENTRY.itemsize == INDEX_ENTRY_BYTES


class Entries(NamedTuple):
    """The entries of messages first_seq, first_seq + 1, …; `table` has the type ENTRY and memory of its own."""

    first_seq: int
    table: Table

    @property
    def messages(self) -> int:
        return len(self.table)

    @property
    def end_seq(self) -> int:
        return self.first_seq + len(self.table)

    @property
    def seq(self) -> Int64s:
        return np.arange(self.first_seq, self.end_seq, dtype=np.int64)

    @property
    def timestamp_us(self) -> Int64s:
        return self.table["timestamp_us"].astype(np.int64)

    @property
    def size(self) -> Int64s:
        """Bytes of metadata and payload of each message."""
        return self.table["length"].astype(np.int64) - HEADER_BYTES

    @property
    def nbytes(self) -> int:
        """The bytes of the frames."""
        return int(self.table["length"].sum(dtype=np.int64))

    def part(self, start: int, end: int) -> Entries:
        """The entries from `start` to `end`; the memory is shared."""
        return Entries(self.first_seq + start, self.table[start:end])

    def since(self, seq: int) -> Entries:
        """Without those before message `seq`."""
        return self.part(min(max(seq - self.first_seq, 0), len(self.table)), len(self.table))


def no_entries(seq: int) -> Entries:
    return Entries(seq, np.empty(0, ENTRY))


class Fault(NamedTuple):
    """The entry at this place cannot be one, or cannot follow the one before it."""

    place: int
    cause: str


def find_fault(table: Table) -> Fault | None:
    """The first entry that contradicts the format or the one before it; None when all of them can be right.

    Frames follow each other without gaps, and their times never go back.
    """
    if not len(table):
        return None
    length, offset, timestamp_us = table["length"], table["offset"], table["timestamp_us"]
    wrong_length = (length < HEADER_BYTES) | (length > MAX_FRAME_BYTES)
    faults = [
        _first(wrong_length, 0, "a frame cannot have this length"),
        _first(offset[:1] < HEADER_PAGE_BYTES, 0, "a frame cannot begin in the header page"),
        _first(offset[:-1] + length[:-1] != offset[1:], 1, "its frame does not begin where the one before it ends"),
        _first(timestamp_us[1:] < timestamp_us[:-1], 1, "its time is before that of the message before it"),
        _first(timestamp_us[-1:] > TIMESTAMP_MAX, len(table) - 1, "its time is invalid"),
    ]
    return min((fault for fault in faults if fault), default=None)


def _first(wrong: NDArray[np.bool_], shift: int, cause: str) -> Fault | None:
    return Fault(int(wrong.argmax()) + shift, cause) if wrong.any() else None
