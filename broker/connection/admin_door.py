"""The unix socket of administration: who may open it is decided by the file's mode, and the kernel knows their uid.

The supervisor makes it, and every worker accepts from it, so that it answers while any worker does. Connections through
it do not count for any limit of connections and are not evicted.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable
from typing import Final

from tailrace.broker.process.poller import Poller

ACCEPTS_A_TURN: Final = 8
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


class AdminDoor:
    """`take_in` gets each connection, with the uid and the pid of its peer."""

    def __init__(
        self, listener: socket.socket, poller: Poller, take_in: Callable[[socket.socket, int, int], None]
    ) -> None:
        self._listener = listener
        self._poller = poller
        self._take_in = take_in
        self._open = False

    def start(self) -> None:
        self._listener.setblocking(False)
        self._poller.register(self._listener.fileno(), select.EPOLLIN, self._on_event)
        self._open = True

    def stop(self) -> None:
        if self._open:
            self._poller.unregister(self._listener.fileno())
            self._open = False
        self._listener.close()

    def _on_event(self, _mask: int) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                sock, _address = self._listener.accept()
            except OSError:  # another worker was faster, or the peer has gone
                return
            pid, uid, _gid = peer_credentials(sock)
            self._take_in(sock, uid, pid)


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process that connected."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(data)
    return pid, uid, gid
