"""Chunks of a stream in the form a text subscriber gets them, made once and shared.

A rendering is a pure function of the stream's frames and of its beginning, so one that was dropped from the cache in
the middle of being sent can be made again: a slow subscriber holds a number (how much of it was sent), never the bytes.
That keeps memory flat with any subscribers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.broker.delivery.chunk_cache import LONE_BYTES_MAX, ChunkCache
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.streams.owner import Growth
from tailrace.broker.topics.picking import PickedCache, PickedFrames, Picker, cache_name
from tailrace.shard.errors import Trimmed
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.leaves import load

_text = load("tailrace.protocol.text_cy")

_LENGTH_BYTES = 4


@dataclass(slots=True)
class TextChunk:
    """`text` holds the messages from the seq it was made for up to `next_seq`; the frame after them is at
    `next_offset`. Nobody changes one. The fields of a NamedTuple take four times as long to read, and each subscriber's
    turn reads eight.
    """

    text: bytes
    next_seq: int
    next_offset: int
    nbytes: int
    picked: tuple[int, int] = (0, 0)

    @property
    def held_bytes(self) -> int:
        return len(self.text)


def _picked_text(cursor: Cursor, found: PickedFrames) -> TextChunk:
    frames, messages, next_seq, next_offset = found
    text, _count, _used, _fault = _text.render(
        frames, 0, len(frames), cursor.seq, next_seq, b"msg " + cursor.feed.name + b" ", False, len(frames), True
    )
    return TextChunk(text, next_seq, next_offset, len(text), (messages, len(frames)))


def message_ends(text: bytes) -> list[int]:
    """The end of each message of a rendering, with its line end."""
    ends = []
    end = 0
    while end < len(text):
        bar = text.index(b"|", end)
        end = bar + 1 + int(text[end:bar].split(b" ", 5)[4]) + len(b"\r\n")
        ends.append(end)
    return ends


class TextChunks:
    """Makes renderings and keeps the latest `cache_bytes` of them: the delivery of the line protocol.

    `fresh` has the frames that this worker has appended in this turn: they need not be read from the file, nor checked.
    """

    alike = None

    def __init__(
        self,
        readers: StreamReaders,
        chunk_bytes: int,
        cache_bytes: int,
        fresh: Mapping[bytes, Growth] | None = None,
        found: PickedCache | None = None,
    ) -> None:
        self._readers = readers
        self._picker = Picker(readers, PickedCache(0) if found is None else found)
        self._fresh = {} if fresh is None else fresh
        self._chunk_bytes = chunk_bytes
        self.cache: ChunkCache[TextChunk] = ChunkCache(cache_bytes)
        self._buffer = memoryview(bytearray(chunk_bytes))

    def chunk(self, cursor: Cursor) -> TextChunk:
        """The next rendering for a cursor that is behind; the same again while it is in the middle of it.

        Raises Trimmed when the place is gone, StreamDamaged when its frame is not whole and right, OSError.
        """
        feed = cursor.feed
        if cursor.topics:
            return self._pick(cursor)
        kept = self.cache.get((feed.name, cursor.seq))
        if kept is not None:
            return kept
        if feed.cursors == 1 and feed.end_offset - cursor.offset <= LONE_BYTES_MAX:
            return self._make(feed.name, cursor.seq, cursor.offset, feed.end_seq, feed.end_offset)
        return self.get(feed.name, cursor.seq, cursor.offset, feed.end_seq, feed.end_offset)

    def get(self, name: bytes, seq: int, offset: int, end_seq: int, end_offset: int) -> TextChunk:
        """The messages of stream `name` from `seq`, whose frame is at `offset`, up to a chunk and before `end_seq`."""
        key = (name, seq)
        rendering = self.cache.get(key)
        if rendering is None:
            rendering = self._make(name, seq, offset, end_seq, end_offset)
            self.cache.keep(key, rendering)
        return rendering

    def rest(self, cursor: Cursor, chunk: TextChunk) -> tuple[bytes, int, int]:
        """The rest of the message of which a cursor has sent a part, how many messages have then been sent, and the seq
        after them.
        """
        ends = message_ends(chunk.text)
        last = bisect_left(ends, cursor.skip)
        seq = int(chunk.text[ends[last - 1] if last else 0 :].split(b" ", 3)[2])
        return chunk.text[cursor.skip : ends[last]], last + 1, seq + 1

    def _pick(self, cursor: Cursor) -> TextChunk:
        """What matches the cursor's topic filter in the next piece of the log."""
        lone = self._picker.take_lone(cursor)
        if lone is not None:
            return _picked_text(cursor, lone)
        key = cache_name(cursor), cursor.seq
        kept = self.cache.get(key)
        if kept is not None and (cursor.cut is None or kept.next_seq == cursor.cut[0]):
            return kept
        chunk = _picked_text(cursor, self._picker.pick(cursor))
        self.cache.keep(key, chunk)
        return chunk

    def _make(self, name: bytes, seq: int, offset: int, end_seq: int, end_offset: int) -> TextChunk:
        growth = self._fresh.get(name)
        if growth is not None and growth.first_seq == seq and len(growth.frames) <= self._chunk_bytes:
            frames = growth.frames
            text, _count, _used, _fault = _text.render(
                frames, 0, len(frames), seq, growth.next_seq, b"msg " + name + b" ", False, self._chunk_bytes
            )
            return TextChunk(text, growth.next_seq, growth.end_offset, len(text))
        buffer, count = self._read(name, offset, end_offset)
        text, frames, used, fault = _text.render(
            buffer, 0, count, seq, end_seq, b"msg " + name + b" ", True, self._chunk_bytes
        )
        if not frames:
            self._explain(name, seq, offset, fault)
        return TextChunk(text, seq + frames, offset + used, len(text))

    def _read(self, name: bytes, offset: int, end_offset: int) -> tuple[memoryview, int]:
        """A chunk of content from `offset`, or that frame if one frame is larger than a chunk."""
        reader = self._readers.get(name)
        room = end_offset - offset
        buffer = self._buffer
        count = reader.read_into(buffer[: min(room, self._chunk_bytes)], offset)
        length = int.from_bytes(buffer[:_LENGTH_BYTES], "little") if count >= HEADER_BYTES else 0
        if count < length <= room:
            buffer = memoryview(bytearray(length))
            count = reader.read_into(buffer, offset)
        return buffer, count

    def _explain(self, name: bytes, seq: int, offset: int, fault: str) -> None:
        reader = self._readers.get(name)
        first_seq = reader.first_seq()
        if seq < first_seq:
            raise Trimmed(name.decode(), seq, first_seq)
        raise reader.damaged(offset, f"the frame of seq {seq} is wrong: {fault or 'not whole'}")
