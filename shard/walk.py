"""Walking the frames of a content file from one offset to another, in pieces of bounded size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.shard.files import read_all
from tailrace.shard.frame import (
    FAULT_CRC,
    FAULT_EPOCH,
    FAULT_LENGTH,
    FAULT_SEQ,
    FAULT_SHORT,
    FAULT_TIME,
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    MAX_FRAME_BYTES,
    SEQ_OFFSET,
)
from tailrace.shard.leaves import load

_leaf = load("tailrace.shard.frame_cy")
check, index_entries, _admit = _leaf.check, _leaf.index_entries, _leaf.admit

WALK_BYTES: Final = 1024 * 1024
"""Read at once; more only for a single frame that is longer, and that is at most MAX_FRAME_BYTES."""

PAGE_BYTES: Final = 4096
"""What the kernel writes back at once, or not at all."""


class FrameRun(NamedTuple):
    """`count` valid frames, message `seq` the first, beginning at content `offset`."""

    seq: int
    messages: int
    offset: int
    frames: memoryview


class FrameWalk:
    """Iterate to get the runs; afterwards `seq`, `offset` are where the walk stopped and `fault` why ("" = at the end).

    Timestamps and epochs never go back, also from those of the message before the first, if these are given; they may
    do anything if the walk is not `ordered`. `timestamp_us` and `epoch` are those of the last message, `entries` the
    index entries of the last run. Raises OSError.
    """

    __slots__ = ("_end", "_fd", "_ordered", "entries", "epoch", "fault", "offset", "seq", "timestamp_us")

    def __init__(
        self, fd: int, offset: int, end: int, seq: int, timestamp_us: int = 0, epoch: int = 0, *, ordered: bool = True
    ) -> None:
        self._fd = fd
        self._ordered = ordered
        self._end = end
        self.offset = offset
        self.seq = seq
        self.timestamp_us, self.epoch = timestamp_us, epoch
        self.entries = bytearray()
        self.fault = ""

    def __iter__(self) -> Iterator[FrameRun]:
        wanted = WALK_BYTES
        while self.offset < self._end and not self.fault:
            left = self._end - self.offset
            data = read_all(self._fd, min(wanted, left), self.offset)
            entries, size, fault = self._check(data)
            count = len(entries) // INDEX_ENTRY_BYTES
            if count:
                run = FrameRun(self.seq, count, self.offset, memoryview(data)[:size])
                self.entries = entries
                self.timestamp_us, _, _, self.epoch = INDEX_ENTRY.unpack_from(entries, len(entries) - INDEX_ENTRY_BYTES)
                self.seq += count
                self.offset += size
                yield run
            if len(data) < min(wanted, left):
                self.fault = fault or FAULT_SHORT  # the file itself ends before the walk does
                return
            wanted = WALK_BYTES
            if fault == FAULT_SHORT:
                # The piece ends within a frame, which is not a fault yet: continue there, with the bytes which that
                # frame needs.
                if not count:
                    wanted = int.from_bytes(data[:4], "little")
                if count or len(data) < wanted <= left:
                    continue
            self.fault = fault

    def _check(self, data: bytes) -> tuple[bytearray, int, str]:
        """Returns the entries of the valid frames at the front of these bytes, their size, and the fault after them."""
        if self._ordered:
            entries, size, fault, _ = _admit(data, self.seq, self.timestamp_us, self.epoch, self.offset)
            return entries, size, fault
        _, size, fault = check(data, 0, len(data), self.seq)
        return index_entries(data, 0, size, self.offset), size, fault

    def finish(self) -> str:
        """Walk without looking at the runs; gives the fault."""
        for _ in self:
            pass
        return self.fault


def frame_seq(fd: int, offset: int) -> int:
    """The seq that the frame at `offset` claims to have; 0 when the file ends before. Raises OSError."""
    return int.from_bytes(os.pread(fd, 8, offset + SEQ_OFFSET), "little")


def whole_frame_seq(fd: int, offset: int, end: int) -> int | None:
    """The seq of the whole and right frame that begins at `offset` and ends by `end`, if there is one. OSError."""
    head = read_all(fd, HEADER_BYTES, offset)
    length = int.from_bytes(head[:4], "little")
    if not HEADER_BYTES <= length <= min(MAX_FRAME_BYTES, end - offset):
        return None
    seq = int.from_bytes(head[SEQ_OFFSET : SEQ_OFFSET + 8], "little")
    frame = read_all(fd, length, offset)
    count, _, _ = check(frame, 0, len(frame), seq)
    return seq if count else None


def looks_torn(fd: int, offset: int, end: int) -> bool:
    """Returns whether the bytes in place of a frame may be left by a loss of power: the file ends before the frame
    does, or a page of it is all zeros. Raises OSError.
    """
    head = read_all(fd, HEADER_BYTES, offset)
    length = int.from_bytes(head[:4], "little")
    if not HEADER_BYTES <= length <= MAX_FRAME_BYTES:
        length = HEADER_BYTES
    if offset + length > end:
        return True
    while length:
        piece = min(length, PAGE_BYTES - offset % PAGE_BYTES)
        if not any(read_all(fd, piece, offset)):
            return True
        offset, length = offset + piece, length - piece
    return False


def fault_text(fault: str) -> str:
    """The text of a leaf's fault, as the cause of an error."""
    return _TEXTS[fault]


_TEXTS: Final = {
    FAULT_SHORT: "the frame does not end before the messages do",
    FAULT_LENGTH: f"invalid frame length (must be {HEADER_BYTES} to {MAX_FRAME_BYTES} bytes)",
    FAULT_CRC: "the frame's checksum does not fit",
    FAULT_SEQ: "the frame is not the next message of this stream",
    FAULT_TIME: "the frame's timestamp goes back",
    FAULT_EPOCH: "the frame's epoch goes back, or is 0",
}
