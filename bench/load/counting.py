"""Counting what a subscriber gets.

Where every delivered byte has a known length the kernel throws all of it away and the bytes are counted. How a broker
cuts frames into CHUNK envelopes cannot be known beforehand: of these, the head of each and the header of its last frame
are looked at, and the rest of large ones is thrown away likewise. Frames of one length, a last seq that is the one that
their number says, and the exact total at the end leave no room for a message lost, doubled or out of place.
"""

from __future__ import annotations

import socket

from bench.load.drain import READ_BYTES, drain, read, read_into
from bench.load.limits import LoadError
from bench.peers.base import SUBSCRIPTION, Peer
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.messages import CHUNK_HEAD, Op
from tailrace.shard.frame import HEADER_BYTES, unpack_header

_SKIPPED = (Op.SUBSCRIBED, Op.PING, Op.PONG)
_ENVELOPE_BYTES_MAX = 64 * 1024  # of any kind but CHUNK
_READS_MAX = 64  # of one connection, before the others get their turn
# Small chunks come with one read; of large ones so much is copied, and the rest is not.
_READ_BYTES = 4 * 1024


class Drained:
    """Whatever comes counts."""

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def take(self) -> int:
        """How many bytes were there."""
        return drain(self._sock)


class Copied:
    """Whatever comes counts, and is read into memory, as by anyone who wants it."""

    __slots__ = ("_memory", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._memory = bytearray(READ_BYTES)

    def take(self) -> int:
        """How many bytes were there."""
        return read_into(self._sock, self._memory)


class Chunks:
    """CHUNK envelopes with frames of `frame_bytes`, from seq 0 on. `take` raises LoadError for anything else."""

    __slots__ = ("_frame_bytes", "_held", "_last_due", "_next_seq", "_skip_bytes", "_sock")

    def __init__(self, sock: socket.socket, frame_bytes: int) -> None:
        self._sock = sock
        self._frame_bytes = frame_bytes
        self._next_seq = 0  # of the chunk after the one that has begun
        self._skip_bytes = 0  # of that one, up to its last frame
        self._last_due = False  # whether that frame has still to come
        self._held = b""  # a part of it, or of the envelope that comes next

    def take(self) -> int:
        """How many bytes of frames were there; those of a chunk's last frame once it is whole."""
        got_bytes = 0
        for _ in range(_READS_MAX):
            if self._skip_bytes:
                skipped_bytes = drain(self._sock, self._skip_bytes)
                self._skip_bytes -= skipped_bytes
                got_bytes += skipped_bytes
                if self._skip_bytes:
                    break
            data = read(self._sock, _READ_BYTES)
            got_bytes += self._look(self._held + data if self._held else data)
            if len(data) < _READ_BYTES:
                break
        return got_bytes

    def _look(self, data: bytes) -> int:
        """The bytes of frames in `data`. What is not whole of the rest is held; what is missing of a chunk, skipped."""
        position = got_bytes = 0
        while True:
            if self._last_due:
                if len(data) - position < self._frame_bytes:
                    break
                self._end_chunk(data, position)
                position += self._frame_bytes
                got_bytes += self._frame_bytes
            position = _after_others(data, position)
            if len(data) - position < CHUNK_HEAD.size or data[position] != Op.CHUNK:
                break
            self._begin_chunk(*CHUNK_HEAD.unpack_from(data, position))
            position += CHUNK_HEAD.size
            there_bytes = min(self._skip_bytes, len(data) - position)
            self._skip_bytes -= there_bytes
            position += there_bytes
            got_bytes += there_bytes
            if self._skip_bytes:
                break
        self._held = data[position:]
        return got_bytes

    def _end_chunk(self, data: bytes, position: int) -> None:
        last = unpack_header(data, position)
        if (last.length, last.seq) != (self._frame_bytes, self._next_seq - 1):
            raise LoadError(
                f"a chunk that should end with seq {self._next_seq - 1} in a frame of {self._frame_bytes} bytes "
                f"ends with seq {last.seq} in one of {last.length}"
            )
        self._last_due = False

    def _begin_chunk(self, _opcode: int, length: int, subscription: int) -> None:
        frames_bytes = length - (CHUNK_HEAD.size - HEAD_BYTES)
        frames, rest_bytes = divmod(frames_bytes, self._frame_bytes)
        if subscription != SUBSCRIPTION or frames < 1 or rest_bytes:
            raise LoadError(f"a chunk of {frames_bytes} bytes for {subscription}: frames have {self._frame_bytes} here")
        self._next_seq += frames
        self._skip_bytes = frames_bytes - self._frame_bytes
        self._last_due = True


def _after_others(data: bytes, position: int) -> int:
    """Where the first envelope begins that is a chunk or not whole. LoadError for what no subscriber should be told."""
    while len(data) - position >= HEAD_BYTES and data[position] != Op.CHUNK:
        opcode, length = HEAD.unpack_from(data, position)
        if length > _ENVELOPE_BYTES_MAX:
            raise LoadError(f"an envelope of {length} bytes with opcode {opcode} among the chunks")
        end = position + HEAD_BYTES + length
        if end > len(data):
            break
        if opcode not in _SKIPPED:
            raise LoadError(f"the broker said {data[position + HEAD_BYTES : end]!r} (opcode {opcode})")
        position = end
    return position


Counter = Drained | Copied | Chunks


def make_counter(peer: Peer, payload_bytes: int, sock: socket.socket) -> Counter:
    """What counts the deliveries of this peer on one connection, payloads all of one length."""
    if peer.framed:
        return Chunks(sock, HEADER_BYTES + payload_bytes)
    return Copied(sock) if peer.copied else Drained(sock)
