"""Reads the metadata of messages, without their payloads if those are long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from tailrace.shard.frame import HEADER, HEADER_BYTES

PIECE_BYTES: Final = 64 << 10
"""Read at once where the frames are short."""
HEAD_BYTES: Final = 512
"""Read of each frame where they are long: its header and, most times, its metadata."""
LONG_BYTES: Final = 8 << 10
"""A frame of more is long."""


def read_metadata(fd: int, offset: int, end: int, messages: int) -> Iterator[bytes]:
    """Reads `count` frames that begin at `offset` of a content file and end before `end`. Ignores checksums.

    Ends early at bytes that are not a frame. Raises OSError.
    """
    wanted = HEAD_BYTES if (end - offset) // max(messages, 1) > LONG_BYTES else PIECE_BYTES
    piece, start = b"", offset
    for _ in range(messages):
        place = offset - start
        if place + HEADER_BYTES > len(piece):
            piece, start, place = os.pread(fd, min(wanted, end - offset), offset), offset, 0
            if len(piece) < HEADER_BYTES:
                return
        length, _crc, _seq, _time, _epoch, _flags, metadata_bytes = HEADER.unpack_from(piece, place)
        stop = place + HEADER_BYTES + metadata_bytes
        if not HEADER_BYTES + metadata_bytes <= length <= end - offset:
            return
        if stop <= len(piece):
            yield piece[place + HEADER_BYTES : stop]
        else:
            yield os.pread(fd, metadata_bytes, offset + HEADER_BYTES)
        offset += length
