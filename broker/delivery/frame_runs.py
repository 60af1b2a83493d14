"""Runs of whole frames, as the log has them, for subscribers that make their own messages of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.streams.open_stream import Growth
from tailrace.broker.topics.picking import read_piece
from tailrace.shard.errors import Trimmed
from tailrace.shard.leaves import load

PIECE_BYTES: Final = 256 << 10
"""Of a stream that are read at one time, or one message that is longer."""

_check = load("tailrace.shard.frame_cy").check


class RawFrames(NamedTuple):
    """Whole frames from a cursor's place on."""

    frames: bytes | bytearray | memoryview
    next_seq: int
    next_offset: int
    nbytes: int
    picked: tuple[int, int] = (0, 0)


class FrameRuns:
    """A delivery: runs of frames, which nobody shares. `fresh`: appended by this worker in this turn."""

    alike = None

    def __init__(self, readers: StreamReaders, fresh: Mapping[bytes, Growth]) -> None:
        self._readers = readers
        self._fresh = fresh
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def chunk(self, cursor: Cursor) -> RawFrames:
        """Raises Trimmed, StreamDamaged, StorageError, OSError."""
        feed = cursor.feed
        growth = self._fresh.get(feed.name)
        if growth is not None and growth.first_seq == cursor.seq and growth.frames:
            return RawFrames(growth.frames, growth.next_seq, growth.end_offset, len(growth.frames))
        reader = self._readers.get(feed.name)
        content, size = read_piece(reader, self._buffer, cursor.offset, feed.end_offset)
        count, nbytes, fault = _check(content, 0, size, cursor.seq)
        if cursor.seq < reader.first_seq():
            raise Trimmed(feed.name.decode(), cursor.seq, reader.first_seq())
        if not count:
            raise reader.damaged(cursor.offset, f"the frame of seq {cursor.seq} is wrong: {fault or 'not whole'}")
        return RawFrames(content[:nbytes], cursor.seq + count, cursor.offset + nbytes, nbytes)

    def rest(self, cursor: Cursor, chunk: Any) -> tuple[bytes, int, int]:
        """Nothing is ever half out."""
        raise AssertionError("a run of frames is never half sent")
