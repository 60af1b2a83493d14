"""Walking the frames of a content file from one offset to another, in pieces of bounded size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from shard.files import read_all
from shard.frame import (
    FAULT_CRC,
    FAULT_EPOCH,
    FAULT_LENGTH,
    FAULT_SEQ,
    FAULT_SHORT,
    FAULT_TIME,
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    SEQ_OFFSET,
)
from shard.leaves import load

_leaf = load("shard.frame_cy")
check, index_entries = _leaf.check, _leaf.index_entries

WALK_BYTES: Final = 1024 * 1024
"""Read at once; more only for a single frame that is longer, and that is at most MAX_FRAME_BYTES."""


class Run(NamedTuple):
    """Whole frames that were found right: so many of them, message `seq` the first, beginning at content `offset`."""

    seq: int
    messages: int
    offset: int
    frames: memoryview


class FrameWalk:
    """Iterate to get the runs; afterwards `seq`, `offset` say where the walk stopped and `fault` why ("" = at the end).

    Raises OSError.
    """

    __slots__ = ("_end", "_fd", "fault", "offset", "seq")

    def __init__(self, fd: int, offset: int, end: int, seq: int) -> None:
        self._fd = fd
        self._end = end
        self.offset = offset
        self.seq = seq
        self.fault = ""

    def __iter__(self) -> Iterator[Run]:
        wanted = WALK_BYTES
        while self.offset < self._end and not self.fault:
            left = self._end - self.offset
            data = read_all(self._fd, min(wanted, left), self.offset)
            count, size, fault = check(data, 0, len(data), self.seq)
            if count:
                run = Run(self.seq, count, self.offset, memoryview(data)[:size])
                self.seq += count
                self.offset += size
                yield run
            if len(data) < min(wanted, left):
                self.fault = fault or FAULT_SHORT  # the file itself ends before the walk does
                return
            wanted = WALK_BYTES
            if fault == FAULT_SHORT:
                # The piece ends within a frame, which is no fault yet: go on from there, with what that frame needs.
                if not count:
                    wanted = int.from_bytes(data[:4], "little")
                if count or len(data) < wanted <= left:
                    continue
            self.fault = fault

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


def fault_text(fault: str) -> str:
    """What a fault of the leaf means, as the cause of an error."""
    return _TEXTS[fault]


_TEXTS: Final = {
    FAULT_SHORT: "the frame does not end before the messages do",
    FAULT_LENGTH: f"the frame's length is none (they are {HEADER_BYTES} to {MAX_FRAME_BYTES})",
    FAULT_CRC: "the frame's checksum does not fit",
    FAULT_SEQ: "the frame is not the next message of this stream",
    FAULT_TIME: "the frame's timestamp goes back",
    FAULT_EPOCH: "the frame's epoch goes back, or is none",
}
