"""Chunks of frames: their bounds, their cache, and whether they are sent from memory or from the file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tailrace.broker.delivery import frame_chunks
from tailrace.broker.delivery.chunk_cache import LONE_BYTES_MAX
from tailrace.broker.delivery.cursor import Cursor, Feed, Subscriber
from tailrace.broker.delivery.frame_chunks import (
    CHUNKS_AT_ONCE,
    NEAR_BYTES,
    SENDFILE_MIN_BYTES,
    SHARED_SUBSCRIBERS,
    FrameChunk,
    FrameChunks,
    head_fields,
)
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.streams.owner import Growth
from tailrace.protocol.messages import CHUNK_HEAD, Op
from tailrace.shard.directory import make_data_dir
from tailrace.shard.errors import StreamCut, StreamDamaged, Trimmed
from tailrace.shard.files import read_all
from tailrace.shard.log import StreamLog
from tests.kept_tuples import added_tuples
from tests.shard.helpers import BOOT, batch, open_log

NAME = b"stream"
CHUNK_BYTES = 256 << 10
FRAME_BYTES = 132


class Stream:
    """One stream, the chunks of it, and a cursor of nobody's."""

    def __init__(self, path: Path, cache_bytes: int = 1 << 20) -> None:
        directory = make_data_dir(path / "data", 1)
        self.log: StreamLog = open_log(directory.stream_directory("stream"), "stream")
        self.readers = StreamReaders(directory, 4, BOOT)
        self.fresh: dict[bytes, Growth] = {}
        self.chunks = FrameChunks(self.readers, CHUNK_BYTES // CHUNKS_AT_ONCE, cache_bytes, self.fresh)

    def append(self, count: int, nbytes: int = 100) -> Growth:
        frames = batch([b"x" * nbytes] * count)
        first_seq = self.log.append(frames, count, 1_000, 1)
        return Growth(first_seq, first_seq + count, self.log.end_offset, frames)

    def cursor(self, seq: int = 0, subscribers: int = 2) -> Cursor:
        feed = Feed(NAME, self.log.next_seq, remote=False)
        feed.end_offset, feed.cursors = self.log.end_offset, subscribers
        cursor = Cursor(cast(Subscriber, None), feed, seq, 7)
        cursor.offset = self.readers.get(NAME).offset_of(seq)
        return cursor

    def content(self, chunk: FrameChunk) -> bytes:
        buffer = bytearray(chunk.size)
        self.readers.get(NAME).read_into(memoryview(buffer), chunk.offset)
        return bytes(buffer)


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(tmp_path)
    yield stream
    stream.readers.close()
    stream.log.close()


def test_a_small_chunk_is_memory_and_shared(stream: Stream) -> None:
    stream.append(3)
    chunk = stream.chunks.chunk(stream.cursor())
    assert (chunk.next_seq, chunk.size, chunk.nbytes) == (3, 3 * FRAME_BYTES, 3 * FRAME_BYTES + CHUNK_HEAD.size)
    assert chunk.frames is not None and bytes(chunk.frames) == stream.content(chunk)
    assert stream.chunks.chunk(stream.cursor()) is chunk
    assert head_fields(stream.cursor(), chunk) == (Op.CHUNK, chunk.size + 4, 7)


def test_what_was_just_appended_is_not_read(stream: Stream) -> None:
    stream.append(1)
    growth = stream.fresh[NAME] = stream.append(2)
    assert stream.chunks.chunk(stream.cursor(1)).frames is growth.frames
    behind = stream.chunks.chunk(stream.cursor(0))
    assert behind.frames is not growth.frames and behind.next_seq == 3


def test_the_only_subscriber_gets_what_was_just_appended_uncached(stream: Stream) -> None:
    stream.append(1)
    growth = stream.fresh[NAME] = stream.append(2)
    cursor = stream.cursor(1, subscribers=1)
    chunk = stream.chunks.chunk(cursor)
    assert chunk.frames is growth.frames and not len(stream.chunks.cache)
    assert chunk == stream.chunks.chunk(stream.cursor(1)), "as for several"
    cursor.skip, cursor.cut = 20, (chunk.next_seq, chunk.next_offset)
    stream.fresh.clear()
    stream.chunks.cache.clear()
    assert stream.content(stream.chunks.chunk(cursor)) == bytes(growth.frames), "the file has the rest"


@pytest.mark.parametrize(("nbytes", "first"), [(LONE_BYTES_MAX, 1), (100, 0)])
def test_a_longer_chunk_of_the_only_subscriber_is_kept(stream: Stream, nbytes: int, first: int) -> None:
    """Or it begins before the latest messages."""
    stream.append(1, nbytes)
    stream.fresh[NAME] = stream.append(1, nbytes)
    chunk = stream.chunks.chunk(stream.cursor(first, subscribers=1))
    assert (chunk.next_seq, len(stream.chunks.cache)) == (2, int(nbytes == LONE_BYTES_MAX))
    assert chunk.frames is not None and bytes(chunk.frames) == stream.content(chunk)


def test_a_large_chunk_is_a_place_in_the_file(stream: Stream) -> None:
    stream.append(10_000)
    cursor = stream.cursor()
    seq, offset = 0, cursor.offset
    while seq < 10_000:
        cursor.seq, cursor.offset = seq, offset
        chunk = stream.chunks.chunk(cursor)
        assert chunk.offset == offset and chunk.size <= CHUNK_BYTES * 5 // 4
        assert seq == 0 or chunk.size > CHUNK_BYTES - 2 * FRAME_BYTES or chunk.next_seq == 10_000
        assert (chunk.frames is None) == (chunk.size > SENDFILE_MIN_BYTES)
        seq, offset = chunk.next_seq, chunk.next_offset
    assert offset == stream.log.end_offset


def test_a_message_larger_than_a_chunk_goes_whole(stream: Stream) -> None:
    stream.append(1, 3 * CHUNK_BYTES)
    stream.append(1)
    chunk = stream.chunks.chunk(stream.cursor())
    assert (chunk.next_seq, chunk.size, chunk.frames) == (1, 3 * CHUNK_BYTES + 32, None)


def test_an_end_and_credit_cut_it(stream: Stream) -> None:
    stream.append(10)
    cursor = stream.cursor()
    cursor.until_seq = 4
    assert stream.chunks.chunk(cursor).next_seq == 4
    cursor.credit_bytes = 2 * FRAME_BYTES + 1
    assert stream.chunks.chunk(cursor).next_seq == 2
    cursor.credit_bytes = 1
    assert stream.chunks.chunk(cursor).next_seq == 1
    assert stream.chunks.chunk(stream.cursor()).next_seq == 10, "the others have all of it"


def test_a_chunk_that_is_half_out_is_told_again_by_where_it_ends(stream: Stream) -> None:
    stream.append(3)
    cursor = stream.cursor()
    chunk = stream.chunks.chunk(cursor)
    stream.append(3)
    stream.chunks = FrameChunks(stream.readers, CHUNK_BYTES // CHUNKS_AT_ONCE, 1 << 20)  # which has kept nothing
    cursor.skip, cursor.cut = 20, (chunk.next_seq, chunk.next_offset)
    again = stream.chunks.chunk(cursor)
    assert again == chunk._replace(frames=None), "the file has the rest"
    rest, messages, next_seq = stream.chunks.rest(cursor, again)
    assert (messages, next_seq) == (3, 3)
    assert rest == (CHUNK_HEAD.pack(*head_fields(cursor, chunk)) + stream.content(chunk))[20:]


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    stream = Stream(tmp_path, cache_bytes=10 << 10)
    for _ in range(50):
        stream.append(10)
    for seq in range(490):
        stream.chunks.chunk(stream.cursor(seq))
    assert 0 < stream.chunks.cache.held_bytes <= 10 << 10
    stream.readers.close()
    stream.log.close()


def test_a_place_that_is_gone(stream: Stream) -> None:
    stream.append(10)
    cursor = stream.cursor()
    stream.log.trim(5)
    with pytest.raises(Trimmed) as trimmed:
        stream.chunks.chunk(cursor)
    assert trimmed.value.first_seq == 5


def test_a_file_that_ends_too_early_is_damage(stream: Stream) -> None:
    stream.append(10)
    cursor = stream.cursor()
    path = next(stream.readers.path(NAME).glob("*.content"))
    with path.open("r+b") as file:
        file.truncate(cursor.offset + 5 * FRAME_BYTES)
    with pytest.raises(StreamDamaged, match="ends within the frames of seq 0 to 9"):
        stream.chunks.chunk(cursor)


@pytest.mark.parametrize(("what", "why"), [("shorter", "ends within the frames of seq 0"), ("other", "not there any")])
def test_the_rest_of_a_chunk_that_the_file_has_no_more_is_damage(stream: Stream, what: str, why: str) -> None:
    stream.append(10)
    cursor = stream.cursor()
    chunk = stream.chunks.chunk(cursor)
    cursor.skip = 20
    path = next(stream.readers.path(NAME).glob("*.content"))
    with path.open("r+b") as file:
        file.seek(cursor.offset + 5 * FRAME_BYTES)
        if what == "shorter":
            file.truncate()
        else:
            file.write(b"y" * FRAME_BYTES)
    with pytest.raises(StreamDamaged, match=why):
        stream.chunks.rest(cursor, chunk)


def test_what_was_replaced_while_it_was_read_is_not_shown(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.append(10)
    cursor = stream.cursor()

    def read_late(fd: int, size: int, offset: int) -> bytes:
        frames = read_all(fd, size, offset)
        stream.log.set_aside(5)
        return frames

    monkeypatch.setattr(frame_chunks, "read_all", read_late)
    with pytest.raises(StreamCut):
        stream.chunks.chunk(cursor)


def test_what_many_want_is_memory(stream: Stream) -> None:
    stream.append(5_000)
    cursor = stream.cursor()
    cursor.feed.cursors = SHARED_SUBSCRIBERS
    first = stream.chunks.chunk(cursor)
    assert first.size > SENDFILE_MIN_BYTES and first.frames is not None
    assert bytes(first.frames) == stream.content(first)
    growth = stream.fresh[NAME] = stream.append(5_000)
    cursor = stream.cursor(growth.first_seq)
    cursor.feed.cursors = SHARED_SUBSCRIBERS
    found = b""
    while cursor.seq < growth.next_seq:
        chunk = stream.chunks.chunk(cursor)
        assert chunk.frames is not None
        found += bytes(chunk.frames)
        cursor.seq, cursor.offset = chunk.next_seq, chunk.next_offset
    assert found == bytes(growth.frames), "from memory, part by part"
    stream.append(NEAR_BYTES // FRAME_BYTES)
    far = stream.cursor(10)
    far.feed.cursors = SHARED_SUBSCRIBERS
    assert stream.chunks.chunk(far).frames is None, "who is far behind is alone"


def test_a_part_of_what_was_appended_keeps_no_more_than_itself(stream: Stream) -> None:
    """Or a kilobyte that is kept would keep the megabytes that were appended with it, and no bound would count them."""
    stream.append(1)
    growth = stream.fresh[NAME] = stream.append(3 * CHUNK_BYTES // FRAME_BYTES)
    cursor = stream.cursor(growth.next_seq - 3)
    chunk = stream.chunks.chunk(cursor)
    assert chunk.frames is not None and bytes(chunk.frames) == stream.content(chunk)
    kept = growth.frames
    del growth
    stream.fresh.clear()
    assert sys.getrefcount(kept) == 2, "ours, and the argument's"


def test_the_rest_of_a_chunk_that_is_kept_is_memory(stream: Stream) -> None:
    stream.append(3)
    cursor = stream.cursor()
    chunk = stream.chunks.chunk(cursor)
    cursor.skip, cursor.cut = 20, (chunk.next_seq, chunk.next_offset)
    assert stream.chunks.chunk(cursor) is chunk


def test_chunks_of_different_places_soon_are_the_same(stream: Stream) -> None:
    stream.append(4_000)
    ends = []
    for seq in (0, 100, 1_999):
        cursor = stream.cursor(seq)
        while cursor.seq < 3_900:
            chunk = stream.chunks.chunk(cursor)
            cursor.seq, cursor.offset = chunk.next_seq, chunk.next_offset
            ends.append((seq, cursor.seq))
    places = [{end for start, end in ends if start == seq} for seq in (0, 100)]
    assert places[0] == places[1] and {end for start, end in ends if start == 1_999} <= places[0]


def test_no_tuple_more_is_kept_for_each_chunk(stream: Stream) -> None:
    stream.append(3)
    cursor = stream.cursor()

    def read() -> None:
        stream.chunks.cache.clear()
        assert stream.chunks.chunk(cursor).frames

    assert not added_tuples(read)
