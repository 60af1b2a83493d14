"""TLS over anything that receives and sends as a non-blocking socket does: what broker and client share.

Bounds: TLS_READ_MAX_BYTES are received at once, ENCRYPT_MAX_BYTES encrypted at once, and nothing more is encrypted
before the socket has taken that. A last batch may be longer by RECORD_BYTES, so that no send has only a few bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

from tailrace.protocol.tls import (
    RECORD_BYTES,
    RECORD_HEAD_BYTES,
    PeerCertificate,
    TLSBuffers,
    TLSEngine,
    TLSFailed,
    TLSInput,
)

HEAD_MAX_BYTES: Final = 64
"""A first buffer of `sendmsg` that is shorter is sent together with the next one."""
TLS_READ_MAX_BYTES: Final = 256 << 10
"""Received and decrypted at once, and what RECORD_SHARE adds."""
RECORD_SHARE: Final = 9
"""A read of 2 ** 9 bytes receives one more, for what TLS adds: a full record comes with a read of its length."""
ENCRYPT_BYTES: Final = 64 << 10
"""Encrypted at once at first, and at least."""
ENCRYPT_MAX_BYTES: Final = 256 << 10
"""Encrypted at once while the socket takes all of it, and so about the most that is held for a peer that does not
read. Larger batches leave the cache of the processor, smaller ones cost more calls. Each time that the socket is full
the next batch is half as long.
"""
BATCH_MAX_BYTES: Final = ENCRYPT_MAX_BYTES + RECORD_BYTES
"""The longest batch: one whose rest would be shorter than a record."""
HELD_MAX_BYTES: Final = ENCRYPT_MAX_BYTES + (64 << 10)
"""With what TLS itself adds and answers (key updates). A peer that has not read this much is given up."""
HALF_RECORD_BYTES: Final = 17 << 10
"""What OpenSSL holds for a record that has begun and not ended, also if one byte of it has come."""
HANDSHAKE_MAX_BYTES: Final = 256 << 10
"""Received before the handshake is done."""
WITHOUT_DATA_MAX_BYTES: Final = 2 * (RECORD_BYTES + 1_024)
"""Received since the last byte of plaintext: more than two records. A peer that sends nothing but empty records or key
updates makes work for nothing."""

Sendable: TypeAlias = bytes | bytearray | memoryview


class ByteChannel(Protocol):
    """A non-blocking socket, as far as it is needed. Both raise BlockingIOError, OSError."""

    def recv_into(self, buffer: memoryview, nbytes: int, /) -> int: ...

    def send(self, data: bytes | memoryview, /) -> int: ...


class TLSWorkspace:
    """The memory that all TLS connections of a thread can share: it is used within one call and then free."""

    def __init__(self) -> None:
        self.buffers = TLSBuffers.make()
        self.received = memoryview(bytearray(TLS_READ_MAX_BYTES + (TLS_READ_MAX_BYTES >> RECORD_SHARE)))
        self.batch = memoryview(bytearray(BATCH_MAX_BYTES))


class TLSStream:
    """One side of a connection under TLS.

    unsent_bytes: encrypted, and not taken by the socket yet. While there are any nothing more is encrypted.
    half_record_bytes: held for a record that has begun and not ended: 0 or HALF_RECORD_BYTES.
    batch_bytes: how many the next batch has, ENCRYPT_BYTES to ENCRYPT_MAX_BYTES.
    """

    __slots__ = (
        "_bare_bytes",
        "_encrypt",
        "_ending",
        "_engine",
        "_received_bytes",
        "_record_bytes",
        "_record_head",
        "_sock",
        "_speaks_first",
        "_take",
        "_unsent",
        "_workspace",
        "batch_bytes",
        "certificate",
    )

    def __init__(self, sock: ByteChannel, engine: TLSEngine, workspace: TLSWorkspace) -> None:
        self.certificate: PeerCertificate | None = None  # of the peer, once the handshake is done
        self._encrypt = engine.encrypt
        self._sock = sock
        self._take = engine.take
        self._engine = engine
        self._workspace = workspace
        self._unsent = memoryview(b"")
        self._received_bytes = 0  # since the last plaintext
        self._record_bytes = 0  # of a record that has begun and not ended,
        self._record_head = b""  # and its head, as far as it has come
        self._speaks_first = not engine.is_server
        self._ending = False
        self.batch_bytes = ENCRYPT_BYTES
        self._bare_bytes = 0  # received beyond the plaintext that they brought

    @property
    def unsent_bytes(self) -> int:
        return len(self._unsent)

    @property
    def half_record_bytes(self) -> int:
        return HALF_RECORD_BYTES if self._record_bytes else 0

    @property
    def received_bytes(self) -> int:
        """Since the last plaintext; during the handshake all that has come."""
        return self._received_bytes

    @property
    def ended(self) -> bool:
        """Whether the peer has said that it sends no more."""
        return self._engine.ended

    # --- the handshake ----------------------------------------------------------------------------------------------

    def handshake(self) -> bool:
        """A step, with the bytes that have come. True when it is done. Raises OSError, such as TLSFailed."""
        if self._speaks_first:
            self._speaks_first = False
            self._engine.handshake(b"")
            self._push()
        try:
            count = self._sock.recv_into(self._workspace.received, RECORD_BYTES)
        except BlockingIOError:
            return False
        if not count:
            raise TLSFailed("the connection ended within the handshake")
        self._note_received(count, HANDSHAKE_MAX_BYTES)
        try:
            done = self._engine.handshake(self._workspace.received[:count])
        finally:
            self._push()
        if done:
            self._received_bytes = 0
            self.certificate = self._engine.peer_certificate()
        return done

    # --- receiving --------------------------------------------------------------------------------------------------

    def recv_into(self, buffer: Any, nbytes: int) -> int:
        """Decrypt about `nbytes` into the buffer, at most READ_SLACK_BYTES more, and at most TLS_READ_MAX_BYTES and
        these. Returns 0 at the end. Raises BlockingIOError, OSError.
        """
        received = self._workspace.received
        count = 0
        if self._engine.left:
            self._follow_records(self._engine.left)
        else:
            nbytes = min(nbytes, TLS_READ_MAX_BYTES)
            count = self._sock.recv_into(received, nbytes + (nbytes >> RECORD_SHARE))
            if not count or self._ending:
                return count
            self._follow_records(received[:count])
        with memoryview(buffer) as room:
            try:
                plain = self._engine.decrypt(received[:count], room)
            finally:
                self._push()
        self._bare_bytes += count - plain
        if plain or self._engine.ended:
            self._received_bytes = 0
            return plain
        self._note_received(count, WITHOUT_DATA_MAX_BYTES)
        raise BlockingIOError

    def take_bare_bytes(self) -> int:
        """How many bytes have come since the last call beyond the plaintext that they brought: empty records, heads."""
        count = self._bare_bytes
        if count <= 0:  # the rest of a record that had begun before
            return 0
        self._bare_bytes = 0
        return count

    def _follow_records(self, data: TLSInput) -> None:
        """Find out whether the last record is whole. Whether OpenSSL waits for the rest of one cannot be asked."""
        count, begin, head = len(data), 0, self._record_head
        if head:
            head += bytes(data[: RECORD_HEAD_BYTES - len(head)])
            end = count + 1
            if len(head) == RECORD_HEAD_BYTES:
                end = RECORD_HEAD_BYTES + (head[3] << 8 | head[4]) - self._record_bytes
            if end > count:
                self._record_head = head
                self._record_bytes += count
                return
            begin = end
        while begin + RECORD_HEAD_BYTES <= count:
            end = begin + RECORD_HEAD_BYTES + (data[begin + 3] << 8 | data[begin + 4])
            if end > count:
                break
            begin = end
        self._record_head = bytes(data[begin : begin + RECORD_HEAD_BYTES])
        self._record_bytes = count - begin

    def _note_received(self, count: int, bytes_max: int) -> None:
        self._received_bytes += count
        if self._received_bytes > bytes_max:
            raise TLSFailed(f"more than {bytes_max} bytes brought no data")

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, data: Sendable) -> int:
        """Encrypt and send as much as the socket takes, in whole batches; how many bytes of `data` that were.

        Raises BlockingIOError while bytes of an earlier call have not been taken, OSError.
        """
        if self._unsent and not self.flush():
            raise BlockingIOError
        count = len(data)
        if count <= self.batch_bytes + RECORD_BYTES:
            return self._send_batch(data)
        taken = 0
        with memoryview(data) as whole:
            while taken < count and not self._unsent:
                with whole[taken : taken + self._next_batch_bytes(count - taken)] as batch:
                    taken += self._send_batch(batch)
        return taken

    def batch_room(self, due_bytes: int) -> memoryview:
        """Memory for the next batch of the bytes that are due, to be filled and given to `send`. All streams of a
        thread share it.
        """
        return self._workspace.batch[: self._next_batch_bytes(due_bytes)]

    def _next_batch_bytes(self, due_bytes: int) -> int:
        size = self.batch_bytes
        return due_bytes if due_bytes <= size + RECORD_BYTES else size

    def _send_batch(self, batch: Sendable) -> int:
        """Nothing may be unsent. The next batch may be larger if the socket takes all of this one.

        A replay calls this 4,000 times a gigabyte with cold caches: each statement takes microseconds.
        """
        count = len(batch)
        if count:
            self._encrypt(batch)
            fresh = self._take()
            try:
                sent = self._sock.send(fresh)
            except BlockingIOError:
                sent = 0
            if sent < len(fresh):
                self._unsent = memoryview(fresh)[sent:]
                self.batch_bytes = max(ENCRYPT_BYTES, self.batch_bytes // 2)
            elif count >= self.batch_bytes < ENCRYPT_MAX_BYTES:
                self.batch_bytes *= 2
        return count

    def sendmsg(self, buffers: Sequence[Sendable]) -> int:
        """As `send`, buffer by buffer; up to RECORD_BYTES go out as one record, and a short head with its data."""
        if self._unsent and not self.flush():
            raise BlockingIOError
        if sum(map(len, buffers)) <= RECORD_BYTES:
            return self._send_batch(b"".join(buffers))
        taken = 0
        for buffer in buffers:
            if self._unsent:
                break
            if not taken and len(buffer) < HEAD_MAX_BYTES:
                self._encrypt(buffer)
                taken = len(buffer)
            else:
                taken += self.send(buffer)
        return taken

    def flush(self) -> bool:
        """Send encrypted bytes. False if the socket does not take all of it. Raises OSError."""
        while self._unsent:
            try:
                sent = self._sock.send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]
        return True

    def _push(self) -> bool:
        """Send the bytes that were encrypted last, behind the unsent ones."""
        if not self._engine.pending_bytes:
            return not self._unsent
        fresh = self._engine.take()
        self._unsent = memoryview(b"".join((self._unsent, fresh)) if self._unsent else fresh)
        if len(self._unsent) > HELD_MAX_BYTES:
            raise TLSFailed(f"it has not read {HELD_MAX_BYTES} bytes")
        return self.flush()

    def end(self) -> None:
        """Once: tell the peer that no more comes, unless it does not read. Its input is not decrypted any more."""
        if not self._ending:
            self._ending = True
            self._engine.end()
            self._push()
