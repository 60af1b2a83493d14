"""Random conversations of one client with a durable session, at the workers of one process, against a model of it.

Each conversation is a pure function of its seed: `pytest --pyargs ... -k 'seed'` repeats one.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.broker.mqtt import MqttPeer
from tests.broker.world import PATIENCE_S, World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, Delivered

STEPS = 60
WORKERS = 2
PUBREC_KIND, PUBREL_KIND = 5, 6


class ModelClient:
    """What a client of MQTT knows by the standard, and so what may come to it.

    under_way: payloads by packet identifier that it has and the broker may not know; `acked`: payloads whose
    acknowledgement the broker has; `unreleased`: identifiers of QoS 2 messages that it has acknowledged with PUBREC.
    """

    def __init__(self, node: World, rng: random.Random, version: int) -> None:
        self.node, self.rng, self.version = node, rng, version
        self.peer: MqttPeer | None = None
        self.was_there = False
        self.losses = 0
        self.under_way: dict[int, tuple[bytes, int]] = {}
        self.unreleased: set[int] = set()
        self.acked: set[bytes] = set()
        self.order: list[bytes] = []  # of the first copies
        self.expected_again: list[tuple[int, bytes]] = []
        self.kills = 0

    def connect(self) -> None:
        raw = b"\x11\0\0\x0e\x10" if self.version == V5 else b""
        if self.version == V5 and self.rng.random() < 0.5:
            raw += b"\x21" + self.rng.choice((1, 3, 20)).to_bytes(2, "big")
        peer = MqttPeer(self.node, self.version, "model", self.rng.randrange(WORKERS), opened=False)
        self.expected_again = [(number, payload) for number, (payload, _qos) in self.under_way.items()]
        self.peer = peer
        answers = peer.ask(wire.connect(self.version, "model", clean=False, raw=raw))
        assert answers[0].kind == 2 and answers[0].body[:2] == bytes((self.was_there, 0)), answers
        self.note(answers[1:])
        if not self.was_there:
            options = [(f"{name}/#", 2 if n else 1) for n, name in enumerate(self.names())]
            assert peer.subscribe(*options) == [1, 2]
            self.was_there = True

    def names(self) -> list[str]:
        return [self.node.name(slot) for slot in range(WORKERS)]

    def take(self) -> None:
        if self.peer is not None:
            self.note(self.peer.take())

    def note(self, answers: list[wire.Answer]) -> None:
        assert self.peer is not None
        for message in self.peer.got:
            self.note_message(message)
        self.peer.got.clear()
        for answer in answers:
            if answer.kind == PUBREL_KIND:
                number = int.from_bytes(answer.body[:2], "big")
                self.unreleased.discard(number)
                self.peer.send(wire.ack(wire.PUBCOMP, number))

    def note_message(self, message: Delivered) -> None:
        payload, number = message.payload, message.packet_id
        if not message.qos:
            return
        if payload in self.acked and self.kills and message.qos == 1 and message.dup:
            self.under_way[number] = payload, message.qos
            return
        assert payload not in self.acked, f"{payload!r} was acknowledged and comes again"
        if number in self.under_way:
            assert self.under_way[number][0] == payload, "an identifier that is in use has another message"
            assert message.dup and (number, payload) in self.expected_again, "sent twice on one connection"
            self.expected_again.remove((number, payload))
            return
        assert self.losses or not message.dup, "a message that no connection has begun to send"
        assert number not in self.unreleased
        assert payload not in self.order, f"{payload!r} comes again with another identifier"
        self.order.append(payload)
        self.under_way[number] = payload, message.qos

    def acknowledge(self, most: int) -> None:
        """Some of what it has, oldest first, mostly."""
        self.take()
        if self.peer is None:
            return
        again = dict(self.expected_again)  # these have not come on this connection yet
        numbers = [number for number in self.under_way if number not in again][: self.rng.randrange(most + 1)]
        if self.rng.random() < 0.2:
            self.rng.shuffle(numbers)
        for number in numbers:
            payload, qos = self.under_way.pop(number)
            self.acked.add(payload)
            if qos == 2:
                self.unreleased.add(number)
            self.peer.send(wire.ack(wire.PUBACK if qos == 1 else wire.PUBREC, number))
        self.take()

    def lose(self) -> None:
        """The connection, with or without DISCONNECT; with or without a word to the broker before the next one."""
        peer, self.peer = self.peer, None
        if peer is None:
            return
        self.losses += 1
        if self.rng.random() < 0.3:
            self.kills += 1
            peer.client.session = None
        if self.rng.random() < 0.4:
            peer.send(wire.DISCONNECT)
        if self.rng.random() < 0.7:
            peer.peer.close()
        if self.rng.random() < 0.5:
            self.node.settle()


@pytest.mark.few(6)
@pytest.mark.parametrize("version", [V4, V5])
@pytest.mark.parametrize("seed", range(8))
def test_a_random_conversation(tmp_path: Path, version: int, seed: int) -> None:
    """Each message comes, in the order of its stream, and none again that was acknowledged."""
    print(f"seed {seed}")
    rng = random.Random(1_000 * version + seed)
    with world(tmp_path, WORKERS, affinity=False) as node:
        client, writer = ModelClient(node, rng, version), MqttPeer(node, V5, "writer")
        sent: dict[str, list[bytes]] = {name: [] for name in client.names()}
        number = 0
        for name in client.names():  # a filter finds a stream that is made later at intervals only
            writer.ask(wire.publish(V5, f"{name}/t", b"earlier", 1, 1))
        client.connect()
        for _ in range(STEPS):
            action = rng.random()
            if action < 0.45:
                name = rng.choice(client.names())
                count = rng.choice((1, 3, 30))
                payloads = [b"%s:%d" % (name.encode(), number + n) for n in range(count)]
                number += count
                sent[name] += payloads
                qos = rng.choice((1, 2))
                packets = [wire.publish(V5, f"{name}/t", each, qos, n + 1) for n, each in enumerate(payloads)]
                writer.ask(*packets)
                if qos == 2:
                    writer.ask(*(wire.ack(wire.PUBREL, n + 1) for n in range(count)))
            elif action < 0.75:
                client.acknowledge(25)
            elif client.peer is None:
                client.connect()
            else:
                client.lose()
        client.lose()
        client.connect()
        deadline_s = time.monotonic() + PATIENCE_S
        while len(client.acked) < number and time.monotonic() < deadline_s:
            client.acknowledge(50)
        assert len(client.acked) == number, (len(client.acked), number)
        for name, payloads in sent.items():
            assert [each for each in client.order if each.startswith(name.encode() + b":")] == payloads
