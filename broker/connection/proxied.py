"""A connection from a proxy in [listen] proxies: before anything else it must give the address of its client."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tailrace.broker.access.identity import REMOTE
from tailrace.broker.connection.base import Connection, Pause
from tailrace.broker.services import Services
from tailrace.protocol import answers
from tailrace.protocol.errors import Code, PeerError
from tailrace.protocol.preamble import PreambleReader

DISCARD_BYTES = 16 << 10


class ProxiedConnection(Connection):
    """`on_client` gets the socket and the client's HOST:PORT, or the proxy's own if it has no client."""

    __slots__ = ("_on_client", "_preamble")

    def __init__(
        self, services: Services, sock: socket.socket, peer: str, on_client: Callable[[socket.socket, str], None]
    ) -> None:
        super().__init__(services, sock, peer, REMOTE)
        self.traffic = services.metrics.line
        self._on_client = on_client
        self._preamble = PreambleReader()

    def readable(self) -> None:
        try:
            while not self.closed:
                data = self.sock.recv(self._wanted_bytes())
                if self.lingering_since_s:
                    self._read_after_the_end(len(data))
                    return
                if not data:
                    self.close("ended")
                elif self._preamble.take(data):
                    self._pass_on()
        except BlockingIOError:
            return
        except PeerError as error:
            self.end_with(error.code, error.text)
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")

    def pause(self, reason: Pause) -> None:
        """It cannot be handed over in the middle of a preamble, and has asked for nothing yet."""
        self.close("ended")

    def _wanted_bytes(self) -> int:
        return DISCARD_BYTES if self.lingering_since_s else self._preamble.wanted_bytes

    def _pass_on(self) -> None:
        peer = self._preamble.client or self.peer
        self._on_client(socket.socket(fileno=self.leave()), peer)

    @property
    def awaited(self) -> int:
        return 1

    def send_error(self, code: Code, text: str, *, fatal: bool = False) -> None:
        self.out += answers.err(code, text)
        self.services.note_answered(self)
