"""A connection that has not sent anything yet: its first byte shows its protocol, and so the class that it becomes.

One that cannot be taken (the node is full) is refused in its own protocol, or, if it stays silent, in a line.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from tailrace.broker.access.identity import Identity
from tailrace.broker.connection.base import Connection
from tailrace.broker.connection.client import ClientConnection, free_unfinished
from tailrace.broker.connection.transport import AnySocket
from tailrace.broker.services import Services
from tailrace.protocol import answers
from tailrace.protocol.errors import Code
from tailrace.protocol.sniff import PEEKED_BYTES, TLS_HANDSHAKE, is_publish, may_be_http, protocol_of, refusal

ConnectionFactory = Callable[[AnySocket, str, Identity], Connection]
"""Makes a connection from its socket, its peer, and who that is."""
ProtocolFactories = Mapping[str, ConnectionFactory]
"""By the name of a protocol. All make a ClientConnection, but for HTTP, which ends in another protocol or soon."""
BeginTLS = Callable[[socket.socket, str, Identity], Connection]
"""Makes a connection that shakes hands, from the same."""

HTTP = "http"
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
            self._replace_by(self.begin_tls(self._plain(), self.peer, self.identity))
            return
        if HTTP in self.protocols and may_be_http(head) and self.refused is None:
            self._replace_by(self.protocols[HTTP](self.layer or self._plain(), self.peer, self.identity))
            return
        protocol = None if is_publish(head) else protocol_of(first)
        if protocol is None or protocol not in self.protocols:
            self.services.metrics.refused.add(Code.PROTOCOL)
            self.out += refusal(head)
            self.finish()
        else:
            self.become(protocol)

    @property
    def needs_tls(self) -> bool:
        """Whether this peer may not speak as it does."""
        return self.services.settings.tls_required and not (self.encrypted or self.identity.local)

    def become(self, protocol: str) -> ClientConnection:
        """Replace this by a client of the protocol, which has read the first bytes."""
        self._hold(0)
        if self.needs_tls and self.refused is None:
            self.refused = Code.DENIED, NEEDS_TLS_TEXT
        client = self.protocols[protocol](self.layer or self._plain(), self.peer, self.identity)
        assert isinstance(client, ClientConnection)
        client.accepted_s = self.accepted_s
        client.encrypted = self.encrypted
        deadlines = self.services.deadlines
        deadlines.forget(self)
        if client.must_log_in:
            deadlines.login.start(client, self.services.now_s)
        self.closed = True  # references to this one are of no use any more
        self.services.replace_client(client)
        if client.layer is not None and client.layer.unsent_bytes:
            client.block()
        if self.refused is not None:
            client.end_with(*self.refused)
        elif client.admitted():
            self._pass_on(client)
        return client

    def _pass_on(self, client: ClientConnection) -> None:
        """Its first bytes wait in the socket."""
        client.readable()

    def _replace_by(self, newcomer: Connection) -> None:
        """Replace this by a connection whose protocol is still to be found."""
        self._hold(0)
        newcomer.accepted_s, newcomer.encrypted = self.accepted_s, newcomer.encrypted or self.encrypted
        self.services.deadlines.forget(self)
        self.closed = True
        self.services.replace_client(newcomer)
        newcomer.readable()

    def _plain(self) -> socket.socket:
        assert isinstance(self.sock, socket.socket)
        return self.sock

    def _hold(self, nbytes: int) -> None:
        """Account for what is held of something that has begun and not ended, before the protocol is known."""
        services = self.services
        services.partial_bytes += nbytes - self.held_bytes
        self.held_bytes = nbytes
        if nbytes and services.partial_bytes > services.settings.max_partial_bytes:
            free_unfinished(services)

    def _release(self) -> None:
        super()._release()
        self._hold(0)

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
