"""Frames for the UDP door, and the datagrams that are made of them and not sent yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tailrace.broker.delivery.cursor import Cursor
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.process.metrics import Traffic, WorkerMetrics
from tailrace.broker.streams.open_stream import Growth
from tailrace.broker.topics.picking import read_piece
from tailrace.shard.errors import Trimmed
from tailrace.shard.leaves import load

PIECE_BYTES: Final = 256 << 10
"""Of a stream that are read at one time, or one message that is longer."""
ENTRIES_MAX: Final = 1_024
"""Datagrams that are made at one time."""
TEXTS_BYTES: Final = 256 << 10
"""Of these; several addresses get the same text."""

_packets = load("tailrace.broker.udp.packets_cy")
_table = load("tailrace.broker.udp.table_cy")
_check = load("tailrace.shard.frame_cy").check


class DatagramFrames(NamedTuple):
    """Whole frames from a cursor's place on."""

    frames: bytes | bytearray | memoryview
    next_seq: int
    next_offset: int
    nbytes: int
    picked: tuple[int, int] = (0, 0)


class FrameRuns:
    """The delivery of UDP: runs of frames, which nobody shares. `fresh`: appended by this worker in this turn."""

    def __init__(self, readers: StreamReaders, fresh: Mapping[bytes, Growth]) -> None:
        self._readers = readers
        self._fresh = fresh
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def chunk(self, cursor: Cursor) -> DatagramFrames:
        """Raises Trimmed, StreamDamaged, StorageError, OSError."""
        feed = cursor.feed
        growth = self._fresh.get(feed.name)
        if growth is not None and growth.first_seq == cursor.seq and growth.frames:
            return DatagramFrames(growth.frames, growth.next_seq, growth.end_offset, len(growth.frames))
        reader = self._readers.get(feed.name)
        content, size = read_piece(reader, self._buffer, cursor.offset, feed.end_offset)
        count, nbytes, fault = _check(content, 0, size, cursor.seq)
        if cursor.seq < reader.first_seq():
            raise Trimmed(feed.name.decode(), cursor.seq, reader.first_seq())
        if not count:
            raise reader.damaged(cursor.offset, f"the frame of seq {cursor.seq} is wrong: {fault or 'not whole'}")
        return DatagramFrames(content[:nbytes], cursor.seq + count, cursor.offset + nbytes, nbytes)

    def rest(self, cursor: Cursor, chunk: Any) -> tuple[bytes, int, int]:
        """No datagram is ever half out."""
        raise AssertionError("a run of frames is never half sent")


class DatagramOutbox:
    """The datagrams that are made and not sent yet. `blocked`: the socket takes no more now."""

    def __init__(self, metrics: WorkerMetrics) -> None:
        self.buffers = bytearray(ENTRIES_MAX * 40), bytearray(ENTRIES_MAX * 16), bytearray(TEXTS_BYTES)
        self.count = 0
        self.blocked = False
        self._next = 0
        self._segments = True
        self._metrics = metrics

    def send(self, fd: int, most: int) -> int:
        """Sends up to `most` datagrams. Returns how many were sent or given up; `count` is 0 once all were."""
        entries, _work, texts = self.buffers
        before = self._next
        self._next, sent, nbytes, lost, self.blocked, self._segments = _packets.send(
            fd, entries, self._next, self.count, texts, most, self._segments
        )
        done = self._next - before
        self._count(self._metrics.udp, sent, nbytes)
        if lost:
            self._metrics.udp_dropped.add("unsent", lost)
        if self._next == self.count:
            self._next = self.count = 0
        return done

    def _count(self, traffic: Traffic, sent: int, nbytes: int) -> None:
        traffic.messages_out += sent
        traffic.bytes_out += nbytes


def send_answers(fd: int, answers: list[tuple[bytes, bytes]]) -> tuple[int, int]:
    """Sends datagrams, each with its address. Returns (their bytes, how many could not be sent)."""
    entries = bytearray()
    texts = bytearray()
    for name, text in answers:
        entries += name + bytes(4) + len(texts).to_bytes(4, "little") + len(text).to_bytes(4, "little")
        texts += text
    _next, sent, nbytes, _lost, _blocked, _segments = _packets.send(
        fd, entries, 0, len(answers), texts, len(answers), False
    )
    return nbytes, len(answers) - sent
