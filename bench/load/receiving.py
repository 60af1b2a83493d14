"""Counting of received data: bytes, marks, or frames.

If every byte is known beforehand, the kernel throws all of it away and only the number of bytes counts. How a broker
cuts frames into CHUNK envelopes cannot be known beforehand. Of each chunk its head and the header of its last frame are
read; the rest of large chunks is thrown away too. Frames of one length, the last seq that follows from their number,
and the exact total at the end leave no room for a message that is lost, doubled or out of place.
"""

from __future__ import annotations

import socket

from bench.load.limits import LoadError
from bench.load.sockets import READ_BYTES, drain, drain_undecrypted, read, read_into, send_some
from bench.load.tls import plaintext_bytes
from bench.peers.base import SUBSCRIPTION, Contestant
from tailrace.protocol.envelope import HEAD, HEAD_BYTES
from tailrace.protocol.messages import CHUNK_HEAD, Op
from tailrace.shard.frame import HEADER_BYTES, unpack_header

_SKIPPED = (Op.SUBSCRIBED, Op.PING, Op.PONG)
_ENVELOPE_BYTES_MAX = 64 * 1024  # of any kind but CHUNK
_READS_MAX = 64  # of one connection, before the others get their turn
# Small chunks come with one read; of large ones so much is copied, and the rest is not.
_CHUNK_READ_BYTES = 4 * 1024


class Silent:
    """Expects nothing; anything that comes is an error."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def take(self) -> int:
        data = read(self._sock)
        if data:
            raise LoadError(f"the server should have sent nothing, but sent {data[:200]!r}")
        return 0


class Drained:
    """Counts bytes, which the kernel throws away."""

    __slots__ = ("_sock",)

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def take(self) -> int:
        return drain(self._sock)


class Copied:
    """Counts bytes, and reads them into memory as any real reader must."""

    __slots__ = ("_memory", "_sock")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._memory = bytearray(READ_BYTES)

    def take(self) -> int:
        return read_into(self._sock, self._memory)


class Acknowledged:
    """Counts bytes, and acknowledges each delivery of `one_bytes`."""

    __slots__ = ("_one_bytes", "_peer", "_rest", "_sock", "_unsent")

    def __init__(self, peer: Contestant, one_bytes: int, sock: socket.socket) -> None:
        self._peer = peer
        self._one_bytes = one_bytes
        self._sock = sock
        self._rest = self._unsent = b""

    def take(self) -> int:
        got = read(self._sock)
        data = self._rest + got if self._rest else got
        whole = len(data) - len(data) % self._one_bytes
        self._rest = data[whole:]
        receipts = self._unsent + self._peer.receipts(data[:whole], self._one_bytes) if whole else self._unsent
        if receipts:
            self._unsent = receipts[send_some(self._sock, memoryview(receipts)) :]
        return len(got)


class Undecrypted:
    """Counts bytes under TLS that the kernel throws away, as the plaintext of full records, and not beyond `due_bytes`.

    Heads of chunks count too. So a replay is over some thousandths before its end.
    """

    __slots__ = ("_got_bytes", "_left_bytes", "_sock")

    def __init__(self, sock: socket.socket, due_bytes: int) -> None:
        self._sock = sock
        self._left_bytes = due_bytes
        self._got_bytes = 0  # encrypted ones

    def take(self) -> int:
        before = plaintext_bytes(self._got_bytes)
        self._got_bytes += drain_undecrypted(self._sock)
        count = min(self._left_bytes, plaintext_bytes(self._got_bytes) - before)
        self._left_bytes -= count
        return count


class Marked:
    """Counts a byte that each answer contains exactly once, for answers of unknown length."""

    def __init__(self, sock: socket.socket, mark: bytes) -> None:
        self._sock = sock
        self._mark = mark

    def take(self) -> int:
        return read(self._sock).count(self._mark)


class ChunkCounter:
    """Counts the bytes of frames of `frame_bytes` each, in CHUNK envelopes from seq 0. LoadError for anything else."""

    __slots__ = ("_frame_bytes", "_held", "_last_due", "_next_seq", "_skip_bytes", "_sock")

    def __init__(self, sock: socket.socket, frame_bytes: int) -> None:
        self._sock = sock
        self._frame_bytes = frame_bytes
        self._next_seq = 0  # of the next chunk
        self._skip_bytes = 0  # of the current chunk, up to its last frame
        self._last_due = False  # the last frame of the current chunk has not come
        self._held = b""  # a part of that frame, or of the next envelope

    def take(self) -> int:
        """Count received frames; a chunk's last frame counts once it is complete."""
        got_bytes = 0
        for _ in range(_READS_MAX):
            if self._skip_bytes:
                skipped_bytes = drain(self._sock, self._skip_bytes)
                self._skip_bytes -= skipped_bytes
                got_bytes += skipped_bytes
                if self._skip_bytes:
                    break
            data = read(self._sock, _CHUNK_READ_BYTES)
            got_bytes += self._parse(self._held + data if self._held else data)
            if len(data) < _CHUNK_READ_BYTES:
                break
        return got_bytes

    def _parse(self, data: bytes) -> int:
        """Return the bytes of frames in `data`; hold an incomplete rest, and skip what a chunk still lacks."""
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
    """Return where the first chunk or incomplete envelope begins. LoadError if the broker sends an unexpected one."""
    while len(data) - position >= HEAD_BYTES and data[position] != Op.CHUNK:
        opcode, length = HEAD.unpack_from(data, position)
        if length > _ENVELOPE_BYTES_MAX:
            raise LoadError(f"an envelope of {length} bytes with opcode {opcode} among the chunks")
        end = position + HEAD_BYTES + length
        if end > len(data):
            break
        if opcode not in _SKIPPED:
            raise LoadError(f"the broker sent {data[position + HEAD_BYTES : end]!r} (opcode {opcode})")
        position = end
    return position


Counter = Drained | Copied | Acknowledged | Undecrypted | ChunkCounter
AnswerCounter = Silent | Drained | Marked


def make_counter(peer: Contestant, payload_bytes: int, sock: socket.socket, due_bytes: int = 0) -> Counter:
    """Return what counts this peer's deliveries on one connection; all payloads have one length. due_bytes: of a
    replay.
    """
    if peer.undecrypted:
        return Undecrypted(sock, due_bytes)
    if peer.framed:
        return ChunkCounter(sock, HEADER_BYTES + payload_bytes)
    return Copied(sock) if peer.copied else Drained(sock)


def make_answers(peer: Contestant, sock: socket.socket) -> AnswerCounter:
    """Return what counts this peer's answers to publishes: bytes or marks, as `Contestant.answers_due` has them."""
    if peer.answer_mark:
        return Marked(sock, peer.answer_mark)
    return Drained(sock) if peer.acked else Silent(sock)
