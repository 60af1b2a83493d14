"""A connection that begins as an HTTP request: it becomes one of MQTT over WebSocket, or is refused.

Also one whose first bytes may still turn out to be a line such as `GET stream group`.
"""

from __future__ import annotations

from tailrace.broker.access.identity import Identity
from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.client import ClientConnection
from tailrace.broker.connection.detect import NEEDS_TLS_TEXT, ProtocolFactories, UndetectedConnection
from tailrace.broker.connection.transport import AnySocket
from tailrace.broker.connection.websocket_transport import WebSocketTransport
from tailrace.broker.services import Services
from tailrace.protocol.errors import Code
from tailrace.protocol.foreign import http_400
from tailrace.protocol.sniff import HTTP_START, may_be_http
from tailrace.protocol.websocket_upgrade import HEAD_MAX_BYTES, Upgraded, UpgradeReader


class UpgradingConnection(UndetectedConnection):
    """It holds the head of a request, up to HEAD_MAX_BYTES, and stays in its worker."""

    __slots__ = ("_head", "_reader")

    def __init__(
        self, services: Services, protocols: ProtocolFactories, sock: AnySocket, peer: str, identity: Identity
    ) -> None:
        super().__init__(services, protocols, sock, peer, identity, None)
        self._reader: UpgradeReader | None = None  # once it is seen to be a request
        self._head = b""  # what has been read
        services.deadlines.request.start(self, services.now_s)

    def readable(self) -> None:
        if self.lingering_since_s:
            super().readable()
            return
        services = self.services
        try:
            count = self.sock.recv_into(services.receive_buffer, HEAD_MAX_BYTES - len(self._head))
        except BlockingIOError:
            return
        except OSError:  # the peer reset the connection, or the network did
            self.close("reset")
            return
        if not count:
            self.close("ended")
            return
        data = bytes(services.receive_view[:count])
        self._head += data
        self._take(data)

    def _take(self, data: bytes) -> None:
        """`data`: the last bytes of the head."""
        if self._reader is None:
            if not may_be_http(self._head):
                self.become("line")
                return
            if len(self._head) >= len(HTTP_START):
                denied = NEEDS_TLS_TEXT if self.needs_tls else ""
                self._reader, data = UpgradeReader(self.services.settings.websocket_origins, denied), self._head
        outcome = None if self._reader is None else self._reader.feed(data)
        if isinstance(outcome, Upgraded):
            self._upgrade(outcome)
        elif outcome is not None or len(self._head) >= HEAD_MAX_BYTES:
            self._refuse(b"" if outcome is None else outcome.answer)
        else:
            self._hold(len(self._head))

    def _upgrade(self, upgraded: Upgraded) -> None:
        try:
            sent = self.sock.send(upgraded.answer)
        except OSError:  # also a fresh socket that has no room for so little
            sent = 0
        if sent < len(upgraded.answer):
            self.close("stalled")
            return
        self.traffic.bytes_out += sent
        self._head = b""
        self.sock = self.layer = WebSocketTransport(self.layer or self._plain(), upgraded.rest)
        self.become("mqtt")

    def finish(self) -> None:
        self._head = b""
        self._hold(0)
        super().finish()

    def _refuse(self, answer: bytes) -> None:
        self.services.metrics.refused.add(Code.PROTOCOL)
        self.out += answer or http_400(self.services.settings.metrics_port)
        self.finish()

    def _pass_on(self, client: ClientConnection) -> None:
        """Let the client have what has been read."""
        if not self._head:
            super()._pass_on(client)
            return
        count = len(self._head)
        self.services.receive_buffer[:count] = self._head
        client.received(count)

    @property
    def awaited(self) -> int:
        """It cannot be handed over: its head is here, and is answered soon, or refused by its deadline."""
        return 0 if self.lingering_since_s else 1

    def pause(self, reason: Pause) -> None:
        """It has asked for nothing yet."""
        self.close("ended")
