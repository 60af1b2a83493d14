"""A connection that has not said anything yet: its first byte tells what it speaks, and so what it becomes.

One that cannot be taken (the node is full) hears so in its own protocol, or, when it stays silent, in a line.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from tailrace.broker.access.identity import Identity
from tailrace.broker.connection.base import Connection
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.services import Services
from tailrace.protocol import answers
from tailrace.protocol.errors import Code
from tailrace.protocol.sniff import protocol_of, refusal

ProtocolFactories = Mapping[str, Callable[[socket.socket, str, Identity], ClientConnection]]
"""By its name, what makes a connection that speaks a protocol from its socket, its peer, and who that is."""

DISCARD_BYTES = 16 << 10  # read at once of what comes after the end


class UndetectedConnection(Connection):
    __slots__ = ("protocols", "refused")

    def __init__(
        self, services: Services, protocols: ProtocolFactories, sock: socket.socket, peer: str, identity: Identity
    ) -> None:
        super().__init__(services, sock, peer, identity)
        self.protocols = protocols
        self.traffic = services.metrics.line
        self.refused: tuple[Code, str] | None = None

    def readable(self) -> None:
        """Look at the first byte, which whatever this becomes will read."""
        nbytes, flags = (DISCARD_BYTES, 0) if self.lingering_since_s else (1, socket.MSG_PEEK)
        try:
            data = self.sock.recv(nbytes, flags)
        except BlockingIOError:
            return
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")
            return
        if self.lingering_since_s:
            self._read_after_the_end(len(data))
        elif not data:
            self.close("ended")
        else:
            self._sniff(data[0])

    def _sniff(self, first: int) -> None:
        protocol = protocol_of(first)
        if protocol is None:
            self.services.metrics.refused.add(Code.PROTOCOL)
            self.out += refusal(first)
            self.finish()
        else:
            self.become(protocol)

    def become(self, protocol: str) -> ClientConnection:
        """What this is from here on; it has read what there was."""
        client = self.protocols[protocol](self.sock, self.peer, self.identity)
        client.accepted_s = self.accepted_s
        client.encrypted = self.encrypted
        deadlines = self.services.deadlines
        deadlines.forget(self)
        if client.must_log_in:
            deadlines.login.start(client, self.services.now_s)
        self.closed = True  # whoever still holds this one has nothing to do with it any more
        self.services.replace_client(client)
        if self.refused is not None:
            client.end_with(*self.refused)
        elif client.admitted():
            client.readable()
        return client

    def give_up(self) -> None:
        """It has not shown what it speaks."""
        if self.refused is not None and not self.closed:
            self.end_with(*self.refused)

    def tell(self, code: Code, text: str, *, fatal: bool = False) -> None:
        self.out += answers.err(code, text)
        self.services.note_answered(self)

    def block(self) -> None:
        """What a fresh socket has no room for is one refusal, whose peer reads nothing: it is not waited for."""
        self.close("stalled")
