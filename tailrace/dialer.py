"""A socket on its way to an address: each of the addresses a name stands for is tried, without waiting for any."""

from __future__ import annotations

import errno
import os
import socket

from tailrace.address import Address

SocketAddress = tuple[socket.AddressFamily, tuple[object, ...]]


class DialError(Exception):
    """There is no connection; the text says why."""


def resolve(address: Address) -> list[SocketAddress]:
    """What a name stands for. Takes as long as the resolver does. Raises DialError."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise DialError(f"cannot find the host {address.host!r}: {error.strerror}") from None
    except UnicodeError as error:
        raise DialError(f"{address.host!r} is no host's name: {error}") from None
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


def is_numeric(host: str) -> bool:
    """Whether nobody must be asked what the host stands for."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
            return True
        except (OSError, UnicodeError):
            pass
    return False


def why(error: int) -> str:
    """An error number of connect(2), in words."""
    return os.strerror(error) + ("; is the broker running there?" if error == errno.ECONNREFUSED else "")


class Dialer:
    """Call `proceed` at first, and when `sock` is writable."""

    def __init__(self, candidates: list[SocketAddress]) -> None:
        self.sock: socket.socket | None = None
        self._candidates = candidates[::-1]
        self._error = 0

    def proceed(self) -> bool:
        """Whether the socket is connected; if not, it will be writable. Raises DialError when no address is left."""
        if self.sock is not None:
            self._error = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not self._error:
                return True
            self.close()
        while self._candidates:
            family, sockaddr = self._candidates.pop()
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._error = self.sock.connect_ex(sockaddr)
            if self._error in (0, errno.EINPROGRESS):
                return not self._error
            self.close()
        raise DialError(why(self._error))

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None
