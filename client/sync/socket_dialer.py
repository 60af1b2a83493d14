"""Sockets on their way to an address: those that a name stands for are tried one after the other, without waiting."""

from __future__ import annotations

import errno
import math
import socket

from tailrace.core.address_selector import STAGGER_S
from tailrace.sockets import DialError, SocketAddress, tune, why


class SocketDialer:
    """Call `proceed` at first, when one of `socks` is writable, and when `due_s` has come."""

    def __init__(self, candidates: list[SocketAddress], silence_s: float = math.inf) -> None:
        self.socks: list[socket.socket] = []  # that are on their way, or one that is connected
        self.due_s = -math.inf
        self._candidates = candidates[::-1]
        self._silence_s = silence_s
        self._error = 0

    def proceed(self, now_s: float) -> socket.socket | None:
        """A socket that is connected, the only one that is left, or None. Raises DialError when no address is left."""
        for sock in list(self.socks):
            if is_connected(sock):
                return self._take(sock)
            self._error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if self._error:
                self._drop(sock)
                self.due_s = now_s
        while self._candidates and now_s >= self.due_s:
            begun = self._begin(*self._candidates.pop())
            if begun is not None:
                self.due_s = now_s + STAGGER_S
                if is_connected(begun):
                    return self._take(begun)
        if not self._candidates:
            self.due_s = math.inf
        if not self.socks and not self._candidates:
            raise DialError(why(self._error))
        return None

    def close(self) -> None:
        for sock in list(self.socks):
            self._drop(sock)

    def _begin(self, family: socket.AddressFamily, sockaddr: tuple[object, ...]) -> socket.socket | None:
        """A socket that connects; None if it cannot."""
        self.socks.append(socket.socket(family, socket.SOCK_STREAM))
        sock = self.socks[-1]
        sock.setblocking(False)
        self._error = sock.connect_ex(sockaddr)
        if self._error in (0, errno.EINPROGRESS):
            return sock
        self._drop(sock)
        return None

    def _take(self, taken: socket.socket) -> socket.socket:
        for sock in [each for each in self.socks if each is not taken]:
            self._drop(sock)
        tune(taken, self._silence_s)  # not before: TCP_USER_TIMEOUT would bound connecting too
        return taken

    def _drop(self, sock: socket.socket) -> None:
        sock.close()
        self.socks.remove(sock)


def is_connected(sock: socket.socket) -> bool:
    """Whether connecting succeeded. Leaves the error in place."""
    try:
        sock.getpeername()
        return True
    except OSError:
        return False
