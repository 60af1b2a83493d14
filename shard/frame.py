"""The frame and the index entry as bytes. Everything here is a constant or a pure function.

A frame is made once, on receipt of a message (`pack_frame`), and stamped once, by the owner of its stream
(`shard.frame_cy.stamp`). It is the same bytes on every wire and in every file.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("<IIQQIHH")
"""length, crc32c, seq, timestamp_us, epoch, flags, metadata_bytes."""

HEADER_BYTES: Final = 32
CRC_OFFSET: Final = 4
"""Where the checksum stands in the frame."""
SEQ_OFFSET: Final = 8
CRC_START: Final = 8
"""The checksum covers the frame from here to its end."""

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""The longest frame the format allows. It bounds what a damaged length can make anybody read."""
MAX_METADATA_BYTES: Final = 65_535

FLAG_PRODUCER: Final = 1
"""The first frame of a run that a producer has numbered: its metadata says whose it is, and the number."""
FLAG_CONTINUES: Final = 2
"""Each further frame of the run, so that a run that was cut short shows where it ends."""
FLAG_RELAYED: Final = 4
"""A message of a stream in memory that has come from another node; it goes on to no node from here."""
FLAGS_OFFSET: Final = 28
RUN_METADATA_BYTES: Final = 64
"""What a producer's id and a number take in metadata at most. It does not count for the size of a message."""

INDEX_ENTRY: Final = struct.Struct("<QQII")
"""timestamp_us, offset in the content file, frame length in bytes, epoch."""
INDEX_ENTRY_BYTES: Final = 24

FAULT_SHORT: Final = "short"
"""The bytes end before the frame does."""
FAULT_LENGTH: Final = "length"
"""The length field is below 32 or above MAX_FRAME_BYTES, or the metadata would not fit into it."""
FAULT_CRC: Final = "crc"
FAULT_SEQ: Final = "seq"
"""A whole frame with a right checksum, but not the next one of this stream."""
FAULT_TIME: Final = "time"
"""The timestamp is before that of the message before it."""
FAULT_EPOCH: Final = "epoch"
"""The epoch is before that of the message before it, or 0."""
FAULT_SIZE: Final = "size"
"""Metadata and payload together are more than is taken."""
FAULT_FLAGS: Final = "flags"
"""A flag is set that has no meaning here: a publisher who sets one expects what is not done."""
FAULT_METADATA: Final = "metadata"
"""There is metadata, and it does not begin as a msgpack map does."""

assert HEADER.size == HEADER_BYTES
assert INDEX_ENTRY.size == INDEX_ENTRY_BYTES


class FrameHeader(NamedTuple):
    """The first 32 bytes of a frame, unpacked."""

    length: int
    crc32c: int
    seq: int
    timestamp_us: int
    epoch: int
    flags: int
    metadata_bytes: int


class IndexEntry(NamedTuple):
    """The index entry of one message; `offset` and `length` are bytes in the content file."""

    timestamp_us: int
    offset: int
    length: int
    epoch: int


def pack_frame(payload: bytes | bytearray | memoryview, *, flags: int = 0, metadata: bytes = b"") -> bytes:
    """An unstamped frame: checksum, seq, timestamp and epoch are zero.

    Raises ValueError when the frame would be longer than MAX_FRAME_BYTES or the metadata than MAX_METADATA_BYTES.
    """
    length = HEADER_BYTES + len(metadata) + len(payload)
    if length > MAX_FRAME_BYTES or len(metadata) > MAX_METADATA_BYTES:
        limits = f"at most {MAX_FRAME_BYTES} and {MAX_METADATA_BYTES}"
        raise ValueError(f"frame of {length} bytes with {len(metadata)} bytes of metadata: {limits}")
    return b"".join((HEADER.pack(length, 0, 0, 0, 0, flags, len(metadata)), metadata, payload))


def unpack_header(buffer: bytes | bytearray | memoryview, offset: int = 0) -> FrameHeader:
    """The header that begins at buffer[offset]; nothing is verified. struct.error if fewer than 32 bytes are there."""
    return FrameHeader._make(HEADER.unpack_from(buffer, offset))
