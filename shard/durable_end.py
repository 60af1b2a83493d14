"""The end of a stream's messages on the disk, in its own files or in a journal."""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.shard.replacing import replaceable

RECENT_BYTES_MAX: Final = 1_024
"""Kept of a log's last append, for the journal; more is read from the file."""


class DurableEnd:
    """Messages before `seq` are on the disk; their frames end at `offset` of the content, 0 if that is not known.

    recent: the frames of the last append if they are few and `keeps_recent`, which the first use of the journal sets.
    """

    __slots__ = ("keeps_recent", "offset", "recent", "seq")

    def __init__(self, seq: int, offset: int = 0) -> None:
        self.seq = seq
        self.offset = offset
        self.keeps_recent = False
        self.recent = b""

    def advance(self, seq: int, offset: int) -> None:
        """More are on the disk, unless others were quicker."""
        if seq > self.seq or (seq == self.seq and not self.offset):
            self.seq, self.offset = seq, offset


@replaceable
class BegunJournaling(NamedTuple):
    """The messages before `seq`, which end at `end_offset`, are on the disk once the record is, which may be empty.

    The first fields are those of the record, see `shard.journal.JournalRecord`.
    """

    name: str
    stream_id: int
    cuts: int
    first_seq: int
    offset: int
    frames: bytes
    seq: int
    end_offset: int
    generation: int
