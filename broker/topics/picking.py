"""The next chunk for a subscription with a topic filter: the log is scanned, a piece of bounded size at a time."""

from __future__ import annotations

from typing import Final, NamedTuple

from tailrace.broker.delivery.chunk_cache import ChunkCache
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.shard.errors import Trimmed
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.reader import StreamReader

SCAN_BYTES: Final = 128 << 10
"""Of content in one piece; a message that is larger is a piece of its own."""
SCAN_WORK: Final = 2
"""A scanned byte counts for as many bytes that are sent: its checksum is made, and it may be copied."""
NO_LIMIT: Final = 1 << 62

_pick = load("tailrace.broker.topics.pick_cy").pick

_LENGTH_BYTES = 4


class PickedFrames(NamedTuple):
    """The frames that match among those from the cursor's place up to `next_seq`, whose frame is at `next_offset`."""

    frames: bytes
    messages: int
    next_seq: int
    next_offset: int

    @property
    def held_bytes(self) -> int:
        return len(self.frames)


class PickedCache(ChunkCache[PickedFrames]):
    """What the walks over new frames have found, by `cache_name` and seq (`broker.topics.walking`).

    `lone`: the same in small for cursors that are the only ones of their filter, with the seq that it begins at. Each
    is asked for once, in the same turn: to keep it longer costs more than to make it again.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.lone: dict[Cursor, tuple[int, PickedFrames]] = {}

    def clear(self) -> None:
        super().clear()
        self.lone.clear()


class Picker:
    """One per delivery: it has a buffer of its own."""

    def __init__(self, readers: StreamReaders, found: PickedCache) -> None:
        self._readers = readers
        self._found = found
        self._buffer = memoryview(bytearray(SCAN_BYTES))

    def take_lone(self, cursor: Cursor) -> PickedFrames | None:
        """What a walk of this turn has found for this cursor alone: nobody else asks for the chunk made of it."""
        lone = self._found.lone.pop(cursor, None)
        return lone[1] if lone is not None and lone[0] == cursor.seq and cursor.cut is None else None

    def pick(self, cursor: Cursor, nbytes: int = NO_LIMIT) -> PickedFrames:
        """Up to `nbytes` of frames, or one; of a cursor in the middle of a chunk, those of that chunk.

        Raises Trimmed when the place is gone, StreamDamaged when its frame is not whole and right, StreamCut, OSError.
        """
        feed = cursor.feed
        end_seq, end_offset = min(feed.end_seq, cursor.until_seq), feed.end_offset
        if cursor.cut is not None:
            (end_seq, end_offset), nbytes = cursor.cut, NO_LIMIT
        elif cursor.stop_offset > cursor.offset:
            end_offset = min(end_offset, cursor.stop_offset)
        found = self._found.get((cache_name(cursor), cursor.seq))
        if found is not None and len(found.frames) <= nbytes and _ends_at(found, cursor, end_seq):
            return found
        content, size = self._read(feed.name, cursor.offset, end_offset)
        frames, messages, passed, used, fault = _pick(
            content, size, cursor.seq, end_seq, feed.name, cursor.topics, nbytes
        )
        if not passed:
            self._explain(feed.name, cursor, fault)
        return PickedFrames(frames, messages, cursor.seq + passed, cursor.offset + used)

    def _read(self, name: bytes, offset: int, end_offset: int) -> tuple[memoryview, int]:
        return read_piece(self._readers.get(name), self._buffer, offset, end_offset)

    def _explain(self, name: bytes, cursor: Cursor, fault: str) -> None:
        reader = self._readers.get(name)
        first_seq = reader.first_seq()
        if cursor.seq < first_seq:
            raise Trimmed(name.decode(), cursor.seq, first_seq)
        raise reader.damaged(cursor.offset, f"the frame of seq {cursor.seq} is wrong: {fault or 'not whole'}")


def read_piece(reader: StreamReader, buffer: memoryview, offset: int, end_offset: int) -> tuple[memoryview, int]:
    """A piece of content from `offset` of the buffer's size, or one frame that is larger; and how many bytes it has.

    Raises StorageError, OSError.
    """
    room = end_offset - offset
    count = reader.read_into(buffer[: min(room, len(buffer))], offset)
    length = int.from_bytes(buffer[:_LENGTH_BYTES], "little") if count >= HEADER_BYTES else 0
    if count < length <= room:
        buffer = memoryview(bytearray(length))
        count = reader.read_into(buffer, offset)
    return buffer, count


def cache_name(cursor: Cursor) -> bytes:
    """Stands for the stream in the key of a kept chunk: NUL is in no name."""
    return cache_name_of(cursor.feed.name, cursor.topics)


def cache_name_of(stream: bytes, topic_filter: bytes) -> bytes:
    return stream + b"\0" + topic_filter


def _ends_at(found: PickedFrames, cursor: Cursor, end_seq: int) -> bool:
    """Whether this is the chunk that the cursor is in, or, between two chunks, one that it may begin."""
    return found.next_seq <= end_seq if cursor.cut is None else found.next_seq == end_seq
