"""Counting what a subscriber gets.

Where every delivered byte has a known length the kernel throws all of it away and the bytes are counted. How a broker
cuts frames into CHUNK envelopes cannot be known beforehand: of these, the head of each and the header of its last frame
are read, and the rest is thrown away likewise. Frames of one length, a last seq that is the one that their number says,
and the exact total at the end leave no room for a message lost, doubled or out of place.
"""

from __future__ import annotations

import socket

from bench.load.drain import drain, read
from bench.load.limits import LoadError
from bench.peers.base import SUBSCRIPTION, Peer
from broker.protocol.envelope import HEAD, HEAD_BYTES
from broker.protocol.messages import CHUNK_HEAD, Op
from shard.frame import HEADER_BYTES, unpack_header

_SKIPPED = (Op.SUBSCRIBED, Op.PING, Op.PONG)
_ENVELOPE_BYTES_MAX = 64 * 1024  # of any kind but CHUNK
_READS_MAX = 64  # of one connection, before the others get their turn


class Drained:
    """Whatever comes counts."""

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def take(self) -> int:
        """How many bytes were there."""
        return drain(self._sock)


class Chunks:
    """CHUNK envelopes with frames of `frame_bytes`, from seq 0 on. `take` raises LoadError for anything else."""

    __slots__ = ("_frame_bytes", "_head_bytes", "_held", "_last_bytes", "_next_seq", "_skip_bytes", "_sock")

    def __init__(self, sock: socket.socket, frame_bytes: int) -> None:
        self._sock = sock
        self._frame_bytes = frame_bytes
        self._next_seq = 0  # of the chunk after the one that has begun
        self._skip_bytes = 0  # of that one, up to its last frame
        self._last_bytes = 0  # of its last frame: `frame_bytes`, or 0 between chunks
        self._head_bytes = CHUNK_HEAD.size  # of what comes then, before it is looked at again
        self._held = b""  # of the last frame and that head

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
            wanted_bytes = self._last_bytes + self._head_bytes - len(self._held)
            data = read(self._sock, wanted_bytes)
            self._held += data
            if self._last_bytes and len(self._held) >= self._last_bytes:
                self._end_chunk()
                got_bytes += self._frame_bytes
            if not self._last_bytes:
                self._next_envelope()
            if len(data) < wanted_bytes:
                break
        return got_bytes

    def _end_chunk(self) -> None:
        last = unpack_header(self._held)
        if (last.length, last.seq) != (self._frame_bytes, self._next_seq - 1):
            raise LoadError(
                f"a chunk that should end with seq {self._next_seq - 1} in a frame of {self._frame_bytes} bytes "
                f"ends with seq {last.seq} in one of {last.length}"
            )
        self._held = self._held[self._last_bytes :]
        self._last_bytes = 0

    def _next_envelope(self) -> None:
        """Skip what is held of other kinds; begin a chunk whose head is held."""
        while len(self._held) >= HEAD_BYTES:
            opcode, length = HEAD.unpack_from(self._held)
            if opcode == Op.CHUNK:
                if len(self._held) >= CHUNK_HEAD.size:
                    self._begin_chunk(length + HEAD_BYTES - CHUNK_HEAD.size)
                return
            whole_bytes = HEAD_BYTES + self._checked(opcode, length)
            if len(self._held) < whole_bytes:
                self._head_bytes = max(whole_bytes, CHUNK_HEAD.size)
                return
            if opcode not in _SKIPPED:
                raise LoadError(f"the broker said {self._held[HEAD_BYTES:whole_bytes]!r} (opcode {opcode})")
            self._held = self._held[whole_bytes:]
            self._head_bytes = CHUNK_HEAD.size

    def _begin_chunk(self, frames_bytes: int) -> None:
        subscription = int.from_bytes(self._held[HEAD_BYTES:], "little")
        frames, rest_bytes = divmod(frames_bytes, self._frame_bytes)
        if subscription != SUBSCRIPTION or frames < 1 or rest_bytes:
            raise LoadError(f"a chunk of {frames_bytes} bytes for {subscription}: frames have {self._frame_bytes} here")
        self._held = b""
        self._next_seq += frames
        self._skip_bytes = frames_bytes - self._frame_bytes
        self._last_bytes = self._frame_bytes

    def _checked(self, opcode: int, length: int) -> int:
        if length > _ENVELOPE_BYTES_MAX:
            raise LoadError(f"an envelope of {length} bytes with opcode {opcode} among the chunks")
        return length


Counter = Drained | Chunks


def make_counter(peer: Peer, payload_bytes: int, sock: socket.socket) -> Counter:
    """What counts the deliveries of this peer on one connection, payloads all of one length."""
    return Chunks(sock, HEADER_BYTES + payload_bytes) if peer.framed else Drained(sock)
