"""Chunks of a stream in the form a binary subscriber gets them: the very frames of the log, behind one small head.

A chunk that many subscribers want at about the same time, and any small one, is read once, or taken from the frames
just appended, and goes from memory to all of them: it is in the processor's cache then. Any other chunk is a place in
the file: `sendfile` moves it, and its bytes never come here. Of a chunk that a slow subscriber is in the middle of only
its end is kept: the file has the rest.

Chunks end where the file has multiples of their size, as nearly as messages allow, so that subscribers at different
places soon want the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tailrace.broker.delivery.chunk_cache import LONE_BYTES_MAX, ChunkCache
from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.streams.owner import Growth
from tailrace.broker.topics.picking import NO_LIMIT, PickedCache, PickedFrames, Picker, cache_name
from tailrace.protocol.messages import CHUNK_HEAD, HANDLE_BYTES, Op
from tailrace.shard.errors import Trimmed
from tailrace.shard.files import read_all
from tailrace.shard.index import IndexRun
from tailrace.shard.leaves import load
from tailrace.shard.reader import StreamReader

SENDFILE_MIN_BYTES = 64 << 10  # below this, one sendmsg from memory costs less than a head and a sendfile
SHARED_SUBSCRIBERS = 8  # this many of a stream share their chunks,
NEAR_BYTES = 4 << 20  # those that are no further behind than this
CHUNKS_AT_ONCE = 4  # of `chunk_bytes` in one of ours: frames cost nothing to make, so their chunks may be larger

_CHUNK = int(Op.CHUNK)
_check = load("tailrace.shard.frame_cy").check

ChunkFrames = bytes | bytearray | memoryview


class FrameChunk(NamedTuple):
    """Frames from `offset` on, `size` bytes of them; `frames` is them, or None if the file is to be sent.

    nbytes: what goes out, the head included.
    """

    next_seq: int
    next_offset: int
    nbytes: int
    offset: int
    size: int
    frames: ChunkFrames | None
    picked: tuple[int, int] = (0, 0)

    @property
    def held_bytes(self) -> int:
        return 0 if self.frames is None else self.size

    def with_frames(self, frames: ChunkFrames) -> FrameChunk:
        """Without `_replace`, for the reason in `shard.replacing`; there is one for each chunk that is read."""
        return FrameChunk(*self[:5], frames)


class FrameChunks:
    """Makes chunks and keeps the latest: the delivery of the binary protocol. `fresh` as in `Renderings`."""

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
        self._chunk_bytes = CHUNKS_AT_ONCE * chunk_bytes
        self._fresh = {} if fresh is None else fresh
        self.cache: ChunkCache[FrameChunk] = ChunkCache(cache_bytes)

    def chunk(self, cursor: Cursor) -> FrameChunk:
        """The next chunk for a cursor that is behind, or the one that it is in the middle of.

        Raises Trimmed when the place is gone, StreamDamaged, OSError.
        """
        feed = cursor.feed
        if cursor.topics:
            return self._pick(cursor)
        if cursor.cut is not None:
            kept = self.cache.get((feed.name, cursor.seq))
            if kept is not None and kept.next_seq == cursor.cut[0]:
                return kept
            placed, memory = _placed(cursor.offset, *cursor.cut), self._readers.memory
            if memory is not None and memory.holds(feed.name):
                return self._from_memory(feed.name, placed, cursor.seq)
            return placed
        if cursor.credit_bytes is not None or cursor.until_seq < feed.end_seq:
            return self._own(cursor)
        if feed.cursors == 1 and (alone := self._fresh_alone(cursor)) is not None:
            return alone
        key = (feed.name, cursor.seq)
        chunk = self.cache.get(key)
        if chunk is None:
            run = IndexRun(cursor.seq, cursor.offset, feed.end_seq, feed.end_offset)
            shared = feed.cursors >= SHARED_SUBSCRIBERS and run.end_offset - run.offset <= NEAR_BYTES
            chunk = self._make(feed.name, run, self._most(run.offset), shared=shared)
            if feed.cursors > 1 or run.end_offset - run.offset > LONE_BYTES_MAX:
                self.cache.keep(key, chunk)
        return chunk

    def _fresh_alone(self, cursor: Cursor) -> FrameChunk | None:
        """The frames of this turn's append, if the only cursor of a feed waits for all of them: most often one message.
        Returns None for longer ones.
        """
        feed, memory = cursor.feed, self._readers.memory
        growth = self._fresh.get(feed.name)
        if growth is None or growth.first_seq != cursor.seq or growth.next_seq != feed.end_seq:
            return None
        size = len(growth.frames)
        if size > LONE_BYTES_MAX or (memory is not None and memory.holds(feed.name)):
            return None
        nbytes = CHUNK_HEAD.size + size
        return FrameChunk(growth.next_seq, growth.end_offset, nbytes, cursor.offset, size, growth.frames)

    def rest(self, cursor: Cursor, chunk: FrameChunk) -> tuple[bytes, int, int]:
        """The rest of the chunk of which a cursor has sent a part, how many messages the chunk has, and the seq after
        them.

        Raises StreamDamaged when the file has not got it any more, OSError.
        """
        if cursor.topics and chunk.frames is not None:
            whole = CHUNK_HEAD.pack(*head_fields(cursor, chunk)) + chunk.frames
            return whole[cursor.skip :], chunk.picked[0], chunk.next_seq
        messages = chunk.next_seq - cursor.seq
        reader = self._readers.get(cursor.feed.name)
        frames = _read(reader, chunk, cursor.seq)
        found, _nbytes, fault = _check(frames, 0, len(frames), cursor.seq)
        if found != messages:
            raise reader.damaged(chunk.offset, f"the frames from seq {cursor.seq} are not there any more: {fault}")
        return (CHUNK_HEAD.pack(*head_fields(cursor, chunk)) + frames)[cursor.skip :], messages, chunk.next_seq

    def _pick(self, cursor: Cursor) -> FrameChunk:
        """What matches the cursor's topic filter in the next piece of the log, no more than its credit allows."""
        credit_bytes, lone = cursor.credit_bytes, self._picker.take_lone(cursor)
        if lone is not None and (credit_bytes is None or len(lone.frames) <= credit_bytes):
            return _picked(cursor, lone)
        key = cache_name(cursor), cursor.seq
        kept = self.cache.get(key)
        if kept is not None and (
            kept.next_seq == cursor.cut[0]
            if cursor.cut is not None
            else kept.next_seq <= cursor.until_seq and (credit_bytes is None or kept.size <= credit_bytes)
        ):
            return kept
        nbytes = NO_LIMIT if credit_bytes is None else credit_bytes
        chunk = _picked(cursor, self._picker.pick(cursor, nbytes))
        self.cache.keep(key, chunk)
        return chunk

    def _own(self, cursor: Cursor) -> FrameChunk:
        """For a cursor that has an end or credit: no more than those allow."""
        feed = cursor.feed
        end_seq, end_offset = feed.end_seq, feed.end_offset
        if cursor.until_seq < end_seq:
            end_seq = cursor.until_seq
            end_offset = self._readers.get(feed.name).offset_of(end_seq)
        nbytes = self._chunk_bytes
        if cursor.credit_bytes is not None:
            nbytes = min(nbytes, cursor.credit_bytes)
        return self._make(feed.name, IndexRun(cursor.seq, cursor.offset, end_seq, end_offset), nbytes, shared=False)

    def _most(self, offset: int) -> int:
        """How many bytes the chunk at this offset may have: up to the next multiple, or to the one after a near one."""
        left = self._chunk_bytes - offset % self._chunk_bytes
        return left if left > self._chunk_bytes // CHUNKS_AT_ONCE else left + self._chunk_bytes

    def _make(self, name: bytes, run: IndexRun, nbytes: int, *, shared: bool) -> FrameChunk:
        reader = self._readers.get(name)
        first_seq = reader.first_seq()
        if run.seq < first_seq:
            raise Trimmed(reader.name, run.seq, first_seq)
        next_seq, next_offset = run.end_seq, run.end_offset
        if next_offset - run.offset > nbytes:
            next_seq, next_offset = reader.cut(run, nbytes)
        chunk = _placed(run.offset, next_seq, next_offset)
        memory = self._readers.memory
        if memory is not None and memory.holds(name):
            return self._from_memory(name, chunk, run.seq)
        if chunk.size > SENDFILE_MIN_BYTES and not shared:
            return chunk
        growth = self._fresh.get(name)
        if growth is not None and growth.first_seq <= run.seq and next_seq <= growth.next_seq:
            return chunk.with_frames(_part(growth, chunk))
        return chunk.with_frames(_read(reader, chunk, run.seq))

    def _from_memory(self, name: bytes, chunk: FrameChunk, seq: int) -> FrameChunk:
        """A copy: a stream in memory may give back dropped messages while they are sent. Raises Trimmed, OSError."""
        reader = self._readers.get(name)
        frames = _read(reader, chunk, seq)
        if seq < reader.first_seq():
            raise Trimmed(reader.name, seq, reader.first_seq())
        return chunk.with_frames(frames)


def head_fields(cursor: Cursor, chunk: FrameChunk) -> tuple[int, int, int]:
    """Opcode, body length, subscription id: for CHUNK_HEAD."""
    return _CHUNK, HANDLE_BYTES + chunk.size, cursor.key


def _picked(cursor: Cursor, found: PickedFrames) -> FrameChunk:
    frames, messages, next_seq, next_offset = found
    size = len(frames)
    sent = CHUNK_HEAD.size + size if size else 0
    return FrameChunk(next_seq, next_offset, sent, cursor.offset, size, frames, (messages, size))


def _placed(offset: int, next_seq: int, next_offset: int) -> FrameChunk:
    size = next_offset - offset
    return FrameChunk(next_seq, next_offset, CHUNK_HEAD.size + size, offset, size, None)


def _part(growth: Growth, chunk: FrameChunk) -> ChunkFrames:
    """The frames of a chunk, which are among those just appended."""
    if chunk.size == len(growth.frames):
        return growth.frames
    start = chunk.offset - (growth.end_offset - len(growth.frames))
    return bytes(memoryview(growth.frames)[start : start + chunk.size])  # a view would keep all of the growth


def _read(reader: StreamReader, chunk: FrameChunk, seq: int) -> bytes:
    """All of a chunk that begins with message `seq`. Raises StreamDamaged when the file ends before it, StreamCut,
    OSError.
    """
    frames = read_all(reader.content_fd, chunk.size, chunk.offset)
    reader.next_seq()  # raises StreamCut: other messages may have come to this place while it was read
    if len(frames) < chunk.size:
        raise reader.damaged(chunk.offset, f"the file ends within the frames of seq {seq} to {chunk.next_seq - 1}")
    return frames
