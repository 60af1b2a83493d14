"""The connection of an uplink: one TCP socket to another node's port, on which this worker is the client.

The thin shell: queue out, bytes in. What is said is `broker.replication.uplink`'s business. The queue out is bounded by
those who fill it: publishes by the uplink's window, reports by one a stream, questions by `FOLLOWS_AT_ONCE`.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Iterator
from typing import Any, TypeAlias

from broker.protocol.binary import ClientCodec
from broker.protocol.errors import PeerError
from broker.protocol.features import REPLICATION
from broker.protocol.messages import Response
from broker.protocol.outgoing import Buffer, Outgoing

# Of one read. Several chunks, so that most of them lie whole in it and need not be put together; fewer bytes while
# messages are very small and many.
RECEIVE_BYTES, RECEIVE_MIN_BYTES = 4 << 20, 16 << 10
MESSAGES_A_READ = 2_048  # more of them would keep everybody else of this worker waiting

_receive_buffer = memoryview(bytearray(RECEIVE_BYTES))  # one a process: filled and read within one call

Address: TypeAlias = tuple[socket.AddressFamily, Any]
"""An address family, and an address as its sockets take it."""


class WireClosed(Exception):
    """The connection is no more, or of no use; the text says why."""


def numeric_address(host: str, port: int) -> Address | None:
    """The address of a host that is written as one; None for a name, which must be looked up."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return found[0][0], found[0][4]


def look_up(host: str, port: int) -> Address:
    """The first address of a host. Waits for the network. Raises OSError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a..b, or a label of more than 63 characters
        raise OSError(f"{host} is no name of a host: {error}") from error
    return found[0][0], found[0][4]


class Wire:
    __slots__ = ("_codec", "_out", "_read_bytes", "closed", "received_bytes", "sock")

    def __init__(self, address: Address) -> None:
        """Begin to connect; it is done when the socket is writable (`connected`). Raises WireClosed."""
        family, where = address
        self.closed = False
        self.received_bytes = 0
        self._codec = ClientCodec(features=frozenset({REPLICATION}))
        self._read_bytes = RECEIVE_BYTES
        self._out = Outgoing()
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            raise WireClosed(error.strerror or "no socket can be had") from error
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        code = self.sock.connect_ex(where)
        if code not in (0, errno.EINPROGRESS):
            self.close()
            raise WireClosed(os.strerror(code))

    def fileno(self) -> int:
        return self.sock.fileno()

    def connected(self) -> None:
        """To be asked once the socket is writable for the first time. Raises WireClosed when nobody is there."""
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise WireClosed(os.strerror(code))

    @property
    def interest(self) -> int:
        return select.EPOLLIN | (select.EPOLLOUT if self._out.nbytes else 0)

    @property
    def queued_bytes(self) -> int:
        return self._out.nbytes

    def queue(self, *buffers: Buffer) -> None:
        """Queue bytes to go out; they are the wire's from here on."""
        self._out.add(*buffers)

    def flush(self) -> None:
        """Send what the socket takes. Raises WireClosed."""
        while self._out.nbytes:
            try:
                sent = self.sock.sendmsg(self._out.head())
            except BlockingIOError:
                return
            except OSError as error:
                raise WireClosed(error.strerror or "the connection is gone") from error
            self._out.sent(sent)

    def receive(self) -> Iterator[Response]:
        """Read once; the messages that are whole. The frames of a Chunk are valid until the next step.

        Raises WireClosed at the end of the input, and for bytes that no broker sends.
        """
        try:
            count = self.sock.recv_into(_receive_buffer, self._read_bytes)
        except BlockingIOError:
            return
        except OSError as error:
            raise WireClosed(error.strerror or "the connection is gone") from error
        if not count:
            raise WireClosed("the other node has closed the connection")
        self.received_bytes += count
        messages = 0
        try:
            for message in self._codec.feed(_receive_buffer[:count]):
                messages += 1
                yield message
        except PeerError as error:
            raise WireClosed(f"what it sent is no binary protocol: {error.text}") from error
        if messages > MESSAGES_A_READ:
            self._read_bytes = max(self._read_bytes // 2, RECEIVE_MIN_BYTES)
        elif messages < MESSAGES_A_READ // 4:
            self._read_bytes = min(self._read_bytes * 2, RECEIVE_BYTES)

    def close(self) -> None:
        self.closed = True
        self._out.clear()
        self.sock.close()
