"""A connection that has not sent anything yet: its first byte shows its protocol, and so the class that it becomes.

One that cannot be taken (the node is full) is refused in its own protocol, or, if it stays silent, in a line.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from tailrace.broker.access.identity import Identity
from tailrace.broker.connection.base import Connection
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.transport import AnySocket
from tailrace.broker.services import Services
from tailrace.protocol import answers
from tailrace.protocol.errors import Code
from tailrace.protocol.sniff import PEEKED_BYTES, TLS_HANDSHAKE, protocol_of, refusal

ProtocolFactories = Mapping[str, Callable[[AnySocket, str, Identity], ClientConnection]]
"""By its name, what makes a connection that speaks a protocol from its socket, its peer, and who that is."""
BeginTLS = Callable[[socket.socket, str, Identity], Connection]
"""Makes a connection that shakes hands, from the same."""

NEEDS_TLS_TEXT = "this node takes connections from other machines over TLS only"

DISCARD_BYTES = 16 << 10  # read at once of input after the end


class UndetectedConnection(Connection):
    __slots__ = ("begin_tls", "protocols", "refused")

    def __init__(
        self,
        services: Services,
        protocols: ProtocolFactories,
        sock: AnySocket,
        peer: str,
        identity: Identity,
        begin_tls: BeginTLS | None,
    ) -> None:
        """begin_tls: None if this node has no certificate, or if this is TLS already."""
        super().__init__(services, sock, peer, identity)
        self.protocols = protocols
        self.begin_tls = begin_tls
        self.traffic = services.metrics.line
        self.refused: tuple[Code, str] | None = None

    def readable(self) -> None:
        """Look at the first byte, and leave it for the class that this becomes."""
        data = self._receive(*(DISCARD_BYTES, 0) if self.lingering_since_s else (PEEKED_BYTES, socket.MSG_PEEK))
        if data is None:
            return
        if self.lingering_since_s:
            self._read_after_the_end(len(data))
        elif not data:
            self.close("ended")
        else:
            self._sniff(data)

    def _receive(self, nbytes: int, flags: int) -> bytes | None:
        """None if nothing is there, or the connection is gone."""
        try:
            return self.sock.recv(nbytes, flags)
        except BlockingIOError:
            return None
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")
            return None

    def _sniff(self, head: bytes) -> None:
        first = head[0]
        if first == TLS_HANDSHAKE and self.begin_tls is not None and self.refused is None:
            self._begin_tls(self.begin_tls)
            return
        protocol = protocol_of(first)
        if protocol is None or protocol not in self.protocols:
            self.services.metrics.refused.add(Code.PROTOCOL)
            self.out += refusal(head)
            self.finish()
        else:
            self.become(protocol)

    def become(self, protocol: str) -> ClientConnection:
        """Replace this by a client of the protocol, which has read the first bytes."""
        bare = self.tls is None and not self.identity.local
        if bare and self.services.settings.tls_required and self.refused is None:
            self.refused = Code.DENIED, NEEDS_TLS_TEXT
        client = self.protocols[protocol](self.tls or self._plain(), self.peer, self.identity)
        client.accepted_s = self.accepted_s
        client.encrypted = self.encrypted
        deadlines = self.services.deadlines
        deadlines.forget(self)
        if client.must_log_in:
            deadlines.login.start(client, self.services.now_s)
        self.closed = True  # references to this one are of no use any more
        self.services.replace_client(client)
        if client.tls is not None and client.tls.unsent_bytes:
            client.block()
        if self.refused is not None:
            client.end_with(*self.refused)
        elif client.admitted():
            client.readable()
        return client

    def _begin_tls(self, begin_tls: BeginTLS) -> None:
        newcomer = begin_tls(self._plain(), self.peer, self.identity)
        newcomer.accepted_s = self.accepted_s
        self.services.deadlines.forget(self)
        self.closed = True
        self.services.replace_client(newcomer)
        newcomer.readable()

    def _plain(self) -> socket.socket:
        assert isinstance(self.sock, socket.socket)
        return self.sock

    def give_up(self) -> None:
        """It has not shown its protocol."""
        if self.refused is not None and not self.closed:
            self.end_with(*self.refused)

    def send_error(self, code: Code, text: str, *, fatal: bool = False) -> None:
        self.out += answers.err(code, text)
        self.services.note_answered(self)

    def block(self) -> None:
        """What a fresh socket has no room for is one refusal, whose peer reads nothing: it is not waited for."""
        self.close("stalled")
