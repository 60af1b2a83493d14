"""Frames in a row held against their index entries."""

from __future__ import annotations

from typing import Final

import numpy as np

from tailrace.shard.frame import HEADER, HEADER_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.walk import fault_text
from tailrace.spark.entries import ENTRY, Entries, Fault, Int64s

_leaf = load("tailrace.shard.frame_cy")
_check, _index_entries = _leaf.check, _leaf.index_entries

FRAME_HEADER: Final = np.dtype(
    [
        ("length", "<u4"),
        ("crc32c", "<u4"),
        ("seq", "<u8"),
        ("timestamp_us", "<u8"),
        ("epoch", "<u4"),
        ("flags", "<u2"),
        ("metadata_bytes", "<u2"),
    ]
)
DISAGREES: Final = "the frame contradicts its index entry"
ENDS: Final = "the file ends before the frame does"

assert FRAME_HEADER.itemsize == HEADER.size


def check_frames(entries: Entries, frames: memoryview, check_crc: bool) -> Fault | None:
    """Returns the first message whose frame contradicts its entry, or (on request) has a wrong checksum or seq.

    None when all is right. `frames` should hold the frames of just these entries, of which there is at least one.
    """
    if check_crc:
        right, _, fault = _check(frames, 0, len(frames), entries.first_seq)
        if right < entries.messages:
            return Fault(right, fault_text(fault) if fault else ENDS)
    nbytes = entries.nbytes
    if len(frames) < nbytes:
        ends = np.cumsum(entries.table["length"], dtype=np.int64)
        return Fault(int(np.searchsorted(ends, len(frames), side="right")), ENDS)
    try:
        found = _index_entries(frames, 0, nbytes, int(entries.table["offset"][0]))
    except ValueError:
        found = b""
    if found == entries.table.tobytes():
        return None
    return Fault(_first_difference(entries, frames), DISAGREES)


def index_of(frames: memoryview, first_seq: int) -> Entries:
    """The entries of whole frames that came over a connection, with offsets counted from the first of them.

    Raises ValueError for bytes that are not frames.
    """
    return Entries(first_seq, np.frombuffer(_index_entries(frames, 0, len(frames), 0), ENTRY))


def frame_starts(entries: Entries) -> Int64s:
    """The offset of each message in its frames."""
    offset = entries.table["offset"]
    starts: Int64s = (offset - offset[0]).astype(np.int64)
    return starts


def _first_difference(entries: Entries, frames: memoryview) -> int:
    """Returns the first message whose header disagrees with its entry; 0 if it is unknown."""
    raw = np.frombuffer(frames, np.uint8)
    headers = raw[frame_starts(entries)[:, None] + np.arange(HEADER_BYTES)].view(FRAME_HEADER)[:, 0]
    differs = np.zeros(entries.messages, bool)
    for field in ("length", "timestamp_us", "epoch"):
        differs |= headers[field] != entries.table[field]
    return int(differs.argmax())
