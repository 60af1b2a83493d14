"""What connections send and receive over: a plain socket, or a layer over one, such as TLS.

A file is sent as it is by `send_file` alone, which takes a plain socket. A TLS connection is not one, and has neither a
descriptor to give nor a method that would take a file: all that goes out of it is encrypted.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from tailrace.protocol.tls import TLSEngine
from tailrace.protocol.tls_stream import Sendable, TLSStream, TLSWorkspace


class Transport(Protocol):
    """What a connection needs of its socket. BlockingIOError: nothing is there, or nothing fits."""

    def recv_into(self, buffer: Any, nbytes: int) -> int: ...

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """As they came over the network: for looking whether anything is there, and for discarding it."""

    def send(self, data: Sendable) -> int: ...

    def sendmsg(self, buffers: Sequence[Sendable]) -> int: ...

    def shutdown(self, how: int) -> None: ...

    def close(self) -> None: ...


class Layer(Transport, Protocol):
    """A transport between a connection and its socket. It may hold bytes that the socket has not taken.

    polled_fd: for epoll, and the name of the connection; nothing is sent over it by anybody else. unsent_bytes: taken
    from the connection, and not by the socket yet. half_record_bytes: held of input that has begun and not ended.
    ended: the peer sends no more.
    """

    polled_fd: int

    @property
    def unsent_bytes(self) -> int: ...

    @property
    def half_record_bytes(self) -> int: ...

    @property
    def ended(self) -> bool: ...

    def take_bare_bytes(self) -> int:
        """How many bytes have come since the last call beyond those given to the connection: empty records, pings."""
        ...

    def batch_room(self, due_bytes: int) -> memoryview:
        """Memory for as much of the bytes that are due as is best sent at once."""
        ...

    def flush(self) -> bool:
        """Send the held bytes. False if the socket does not take all of it. Raises OSError."""
        ...


def send_file(sock: socket.socket, file_fd: int, offset: int, count: int) -> int:
    """Bytes of a file, from `offset` on, straight into a plain socket. Raises BlockingIOError, OSError."""
    return os.sendfile(sock.fileno(), file_fd, offset, count)


class TLSTransport(TLSStream):
    """A socket under TLS. It stays in this process: its keys and counters are OpenSSL's."""

    __slots__ = ("_early", "_raw", "polled_fd")

    def __init__(self, sock: socket.socket, engine: TLSEngine, workspace: TLSWorkspace) -> None:
        super().__init__(sock, engine, workspace)
        self.polled_fd = sock.fileno()  # for epoll, and the name of the connection; nothing is sent over it
        self._raw = sock
        self._early = b""  # plaintext that was looked at and put back

    @property
    def ended(self) -> bool:
        return super().ended and not self._early

    def recv_into(self, buffer: Any, nbytes: int) -> int:
        if self._early:
            count, self._early, early = len(self._early), b"", self._early
            buffer[:count] = early
            return count
        return super().recv_into(buffer, nbytes)

    def put_back(self, plaintext: bytes) -> None:
        """Let the next `recv_into` give this."""
        self._early = plaintext

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        return self._raw.recv(bufsize, flags)

    def shutdown(self, how: int) -> None:
        self.end()
        self._raw.shutdown(how)

    def close(self) -> None:
        try:
            self.end()
        except OSError:  # the peer is gone
            pass
        self._raw.close()


AnySocket: TypeAlias = socket.socket | Layer
