"""An MQTT peer of a `World`: it sends packets and takes the answers apart."""

from __future__ import annotations

from typing import Any

from tailrace.broker.connection.detect import UndetectedConnection
from tailrace.broker.connection.mqtt.client import MqttClient
from tests.broker.world import Peer, World
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5, Answer, Delivered

SETTLES_MAX = 4


class MqttPeer:
    """`answers`: the packets of the server except messages, so far; `got`: the messages."""

    def __init__(
        self,
        node: World,
        version: int = V5,
        client_id: str | bytes = "c",
        slot: int = 0,
        *,
        opened: bool = True,
        local: bool = True,
        small: bool = False,
        peer: Peer | None = None,
        **connect: Any,
    ) -> None:
        self.node = node
        self.version = version
        self.peer = node.connect(slot, local=local, small=small) if peer is None else peer
        self.answers: list[Answer] = []
        self.got: list[Delivered] = []
        if opened:
            (self.connack,) = self.ask(wire.connect(version, client_id, **connect))
            assert self.connack.kind == 2 and self.connack.body[:2] == b"\0\0", self.connack

    def send(self, *packets: bytes) -> None:
        self.peer.send_raw(b"".join(packets))

    def take(self) -> list[Answer]:
        """The answers since the last time; messages go to `got`."""
        self._settle()
        return self.collect()

    def collect(self) -> list[Answer]:
        """As `take`, of the packets that have come already."""
        answers = wire.split(bytes(self.peer.received))
        self.peer.received.clear()
        self.got += wire.delivered(self.version, answers)
        found = [answer for answer in answers if answer.kind != 3]
        self.answers += found
        return found

    def _settle(self) -> None:
        """Whether a message is retained is asked between workers once it is published: more turns that move nothing."""
        for _ in range(SETTLES_MAX):
            self.node.settle()
            clients = [client for worker in self.node.workers for client in worker.services.clients.values()]
            if not any(isinstance(client, MqttClient) and client.answers for client in clients):
                return

    def ask(self, *packets: bytes) -> list[Answer]:
        self.send(*packets)
        return self.take()

    def subscribe(self, *filters: tuple[str | bytes, int], raw: bytes = b"") -> list[int]:
        """The reasons in SUBACK."""
        (answer,) = self.ask(wire.subscribe(self.version, 1, *filters, raw=raw))
        assert answer.kind == 9
        return list(answer.body[3 if self.version == V5 else 2 :])

    def payloads(self) -> list[bytes]:
        """Those of the messages so far, which are then forgotten."""
        self.take()
        found, self.got = [each.payload for each in self.got], []
        return found

    @property
    def ended(self) -> bool:
        self.take()
        return self.peer.ended

    @property
    def client(self) -> MqttClient:
        """The broker's side."""
        client = self.node.connection_of(self.peer)
        if isinstance(client, UndetectedConnection):
            client = client.become(MqttClient.protocol)
        assert isinstance(client, MqttClient)
        return client
