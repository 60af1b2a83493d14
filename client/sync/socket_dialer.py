"""Sockets on their way to an address: those that a name stands for are tried one after the other, without waiting."""

from __future__ import annotations

import errno
import math
import select
import socket
import ssl

from tailrace.core.address_selector import STAGGER_S
from tailrace.protocol.tls import TLSEngine
from tailrace.protocol.tls_stream import TLSStream, TLSWorkspace
from tailrace.sockets import DialError, SocketAddress, tls_reason, tune, why


class SocketDialer:
    """Call `proceed` at first, when one of `socks` has an event of `events`, and when `due_s` has come.

    context, host: for TLS; `stream` is then the connection under it, once `proceed` has returned its socket.
    """

    def __init__(
        self,
        candidates: list[SocketAddress],
        silence_s: float = math.inf,
        context: ssl.SSLContext | None = None,
        host: str = "",
    ) -> None:
        self.stream: TLSStream | None = None
        self._context = context
        self._host = host
        self.socks: list[socket.socket] = []  # that are on their way, or one that is connected
        self.due_s = -math.inf
        self._candidates = candidates[::-1]
        self._silence_s = silence_s
        self._error = 0

    def proceed(self, now_s: float) -> socket.socket | None:
        """A socket that is connected, the only one that is left, or None. Raises DialError when no address is left, or
        when TLS is refused.
        """
        sock = self.socks[0] if self.stream is not None else self._connect(now_s)
        return sock if sock is None or self._is_secured(sock) else None

    @property
    def events(self) -> int:
        if self.stream is None or self.stream.unsent_bytes:
            return select.POLLOUT
        return select.POLLIN

    def _is_secured(self, sock: socket.socket) -> bool:
        """A step of the handshake, if TLS is wanted; whether it is done."""
        if self._context is None:
            return True
        try:
            if self.stream is None:
                workspace = TLSWorkspace()
                engine = TLSEngine(self._context, workspace.buffers, server_hostname=self._host)
                self.stream = TLSStream(sock, engine, workspace)
            return self.stream.flush() and self.stream.handshake()
        except (OSError, ValueError) as error:
            self.close()
            raise DialError(tls_reason(error)) from error

    def _connect(self, now_s: float) -> socket.socket | None:
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
