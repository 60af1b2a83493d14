"""Decides which frames stamped by a stream's master may be appended to a log. Writes nothing.

They come in pieces. A piece is taken as a whole or not at all, and none behind one that is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from tailrace.shard.errors import FramesRefused, FramesTooNew
from tailrace.shard.frame import (
    FAULT_EPOCH,
    FAULT_SEQ,
    FAULT_SHORT,
    FAULT_TIME,
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    unpack_header,
)
from tailrace.shard.header import VALUE_MAX
from tailrace.shard.leaves import load
from tailrace.shard.walk import fault_text

Frames: TypeAlias = bytes | bytearray | memoryview

_admit = load("tailrace.shard.frame_cy").admit


class LogEnd(NamedTuple):
    """The end of a log; the timestamp and the epoch are those of its last message."""

    next_seq: int
    end_offset: int
    timestamp_us: int
    epoch: int


class StampBounds(NamedTuple):
    """The latest timestamp and epoch that a frame may have."""

    timestamp_us: int
    epoch: int


class Admission(NamedTuple):
    """`entries`: index entries, for each accepted piece; `end`: of the log after these pieces; `flags`: all flags of
    their frames; `refused`: the fault of the next piece.
    """

    entries: list[bytearray]
    end: LogEnd
    flags: int
    refused: FramesRefused | None = None


def admit_pieces(name: str, pieces: Sequence[Frames], end: LogEnd, bounds: StampBounds | None = None) -> Admission:
    """Check pieces that are to follow a log of this end: whole frames with right checksums, seqs without a hole,
    timestamps and epochs that never go back, nor beyond the bounds.
    """
    row: list[bytearray] = []
    flags = 0
    for frames in pieces:
        entries, size, fault, its_flags = _admit(frames, end.next_seq, end.timestamp_us, end.epoch, end.end_offset)
        behind = _behind(end, entries, size)
        if fault or not size:
            cause = _cause(frames, size, fault or FAULT_SHORT, behind)
            return Admission(row, end, flags, FramesRefused(name, behind.next_seq, fault or FAULT_SHORT, cause))
        if behind.next_seq > VALUE_MAX or behind.end_offset > VALUE_MAX:
            cause = f"seqs and offsets end at {VALUE_MAX}"
            return Admission(row, end, flags, FramesRefused(name, behind.next_seq - 1, FAULT_SEQ, cause))
        if bounds is not None and (behind.timestamp_us > bounds.timestamp_us or behind.epoch > bounds.epoch):
            return Admission(row, end, flags, _too_new(name, behind, bounds))
        row.append(entries)
        flags |= its_flags
        end = behind
    return Admission(row, end, flags)


def require_frames(name: str, entries: bytearray, count: int) -> bytearray:
    """These index entries. Raises ValueError unless they are those of `count` frames, at least one."""
    if len(entries) != count * INDEX_ENTRY_BYTES or not count:
        found = len(entries) // INDEX_ENTRY_BYTES
        raise ValueError(f"{found} frames for stream {name!r}, where {count} were announced")
    return entries


def _too_new(name: str, last: LogEnd, bounds: StampBounds) -> FramesTooNew:
    """`last`: the end of the log behind the piece."""
    if last.epoch > bounds.epoch:
        fault, cause = FAULT_EPOCH, f"it is of term {last.epoch}; a term after {bounds.epoch} cannot be"
    else:
        ahead_s = (last.timestamp_us - bounds.timestamp_us) / 1e6
        fault, cause = FAULT_TIME, f"its time is {ahead_s:.0f} s further ahead of this machine's clock than it may be"
    return FramesTooNew(name, last.next_seq - 1, fault, cause)


def _behind(end: LogEnd, entries: bytearray, size: int) -> LogEnd:
    """The end of a log of this end that has taken `size` bytes of frames more, with these entries."""
    if not entries:
        return end
    timestamp_us, _, _, epoch = INDEX_ENTRY.unpack_from(entries, len(entries) - INDEX_ENTRY_BYTES)
    return LogEnd(end.next_seq + len(entries) // INDEX_ENTRY_BYTES, end.end_offset + size, timestamp_us, epoch)


def _cause(frames: Frames, place: int, fault: str, end: LogEnd) -> str:
    """The text of a fault in the frame that begins at byte `place` and would follow a log with this end."""
    if len(frames) - place < HEADER_BYTES:
        return fault_text(fault)
    header = unpack_header(frames, place)
    found = {
        FAULT_SEQ: f": it is message {header.seq}",
        FAULT_TIME: f": {header.timestamp_us}, after {end.timestamp_us}",
        FAULT_EPOCH: f": {header.epoch}, after {end.epoch}",
    }
    return fault_text(fault) + found.get(fault, "")
