"""Renderings: chunks of a stream as text, made once, shared, and made again the same when they were dropped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.delivery.text_chunks import TextChunk, TextChunks, message_ends
from tailrace.broker.streams.owner import Growth
from tailrace.shard.directory import make_data_dir
from tailrace.shard.errors import StreamDamaged, Trimmed
from tailrace.shard.log import StreamLog
from tests.shard.helpers import BOOT, batch, open_log

NAME = b"stream"
CHUNK_BYTES = 4_096


class Stream:
    """One stream and the renderings of it."""

    def __init__(self, path: Path, cache_bytes: int = 1 << 20) -> None:
        directory = make_data_dir(path / "data", 1)
        self.log: StreamLog = open_log(directory.stream_directory("stream"), "stream")
        self.readers = StreamReaders(directory, 4, BOOT)
        self.fresh: dict[bytes, Growth] = {}
        self.renderings = TextChunks(self.readers, CHUNK_BYTES, cache_bytes, self.fresh)

    def append(self, *payloads: bytes) -> Growth:
        frames = batch(payloads)
        first_seq = self.log.append(frames, len(payloads), 1_000, 1)
        return Growth(first_seq, first_seq + len(payloads), self.log.end_offset, frames)

    def get(self, seq: int) -> TextChunk:
        offset = self.readers.get(NAME).offset_of(seq)
        return self.renderings.get(NAME, seq, offset, self.log.next_seq, self.log.end_offset)

    def chunks(self) -> list[TextChunk]:
        """All from the first message to the last."""
        found = []
        seq = self.log.first_seq
        while seq < self.log.next_seq:
            found.append(self.get(seq))
            seq = found[-1].next_seq
        return found


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(tmp_path)
    yield stream
    stream.readers.close()
    stream.log.close()


def text_of(payloads: list[bytes], seq: int = 0) -> bytes:
    return b"".join(
        b"msg stream %d 1000 %d |%s\r\n" % (seq + number, len(payload), payload)
        for number, payload in enumerate(payloads)
    )


def test_chunks_are_bounded_and_together_are_everything(stream: Stream) -> None:
    payloads = [b"%d " % number + b"x" * (number % 700) for number in range(200)]
    stream.append(*payloads)
    chunks = stream.chunks()
    assert b"".join(chunk.text for chunk in chunks) == text_of(payloads)
    assert len(chunks) > 5
    for chunk, following in pairwise(chunks):
        assert following is stream.get(chunk.next_seq), "it was kept"
        assert stream.readers.get(NAME).offset_of(chunk.next_seq) == chunk.next_offset
    assert all(len(chunk.text) < CHUNK_BYTES + 200 * 40 for chunk in chunks)


def test_a_message_larger_than_a_chunk_is_a_chunk(stream: Stream) -> None:
    payloads = [b"a", b"b" * (3 * CHUNK_BYTES), b"c" * (CHUNK_BYTES - 32), b"d" * (CHUNK_BYTES - 31), b""]
    stream.append(*payloads)
    assert b"".join(chunk.text for chunk in stream.chunks()) == text_of(payloads)


def test_what_is_beyond_the_end_that_was_given_is_not_shown(stream: Stream) -> None:
    stream.append(b"one", b"two", b"three")
    reader = stream.readers.get(NAME)
    rendering = stream.renderings.get(NAME, 1, reader.offset_of(1), 2, reader.offset_of(2))
    text = text_of([b"two"], 1)
    assert rendering == TextChunk(text, 2, reader.offset_of(2), len(text))


def test_what_was_just_appended_is_rendered_from_memory(stream: Stream) -> None:
    stream.append(b"zero")
    growth = stream.append(b"one", b"two")
    stream.fresh[NAME] = growth._replace(frames=bytearray(growth.frames).replace(b"two", b"TWO"))
    assert stream.get(1).text == text_of([b"one", b"TWO"], 1), "memory was asked, not the file"
    stream.renderings.cache.clear()
    stream.fresh[NAME] = growth
    kept = stream.get(1)
    stream.renderings.cache.clear()
    stream.fresh.clear()
    assert stream.get(1) == kept, "the file says the same"
    stream.fresh[NAME] = stream.append(b"x" * (2 * CHUNK_BYTES))
    assert stream.get(3).text == text_of([b"x" * (2 * CHUNK_BYTES)], 3)


def test_the_cache_is_bounded_and_what_was_dropped_is_made_again(tmp_path: Path) -> None:
    stream = Stream(tmp_path, cache_bytes=2 * CHUNK_BYTES)
    stream.append(*[b"x" * 1_000] * 100)
    chunks = stream.chunks()
    assert 0 < stream.renderings.cache.held_bytes <= 2 * CHUNK_BYTES < sum(len(each.text) for each in chunks)
    again = stream.get(0)
    assert again is not chunks[0] and again == chunks[0]
    stream.readers.close()
    stream.log.close()


def test_a_place_that_was_trimmed_and_given_back(stream: Stream) -> None:
    stream.append(*[b"x" * 1_000] * 100)
    offset = stream.readers.get(NAME).offset_of(10)
    stream.log.trim(90)
    assert stream.renderings.get(NAME, 10, offset, 100, stream.log.end_offset).text.startswith(b"msg stream 10 ")
    stream.renderings.cache.clear()
    stream.log.punch(90)
    with pytest.raises(Trimmed) as trimmed:
        stream.renderings.get(NAME, 10, offset, 100, stream.log.end_offset)
    assert trimmed.value.first_seq == 90


def test_a_damaged_frame_is_not_shown_and_says_where(stream: Stream) -> None:
    stream.append(b"one", b"two", b"three")
    offset = stream.readers.get(NAME).offset_of(1)
    path = next(stream.readers.path(NAME).glob("*.content"))
    with path.open("r+b") as file:
        file.seek(offset + 33)
        file.write(b"?")
    assert stream.get(0).text == text_of([b"one"]), "what is before it is"
    with pytest.raises(StreamDamaged, match="the frame of seq 1 is wrong: crc") as damaged:
        stream.get(1)
    assert damaged.value.offset == offset
    assert stream.get(2).text == text_of([b"three"], 2)


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"|", b"msg stream 0 1000 1 |x\r\n", b"\r\n"])))
def test_ends_of_messages_whatever_is_in_them(payloads: list[bytes]) -> None:
    ends = message_ends(text_of(payloads))
    assert ends == [len(text_of(payloads[: number + 1])) for number in range(len(payloads))]
