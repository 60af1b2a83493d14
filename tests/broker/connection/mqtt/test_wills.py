"""The wills of one worker's connections, and their bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.connection.mqtt.wills import PAIR_BYTES, WILL_BYTES, Wills, memory_of
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.protocol.mqtt.packets import WillMessage
from tailrace.protocol.mqtt.properties import NO_PROPERTIES, Properties, PropertyId
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, VERSIONS

SIZE_BYTES = 10_000
BOUND_BYTES = 25_000

both = pytest.mark.parametrize("version", VERSIONS)


def held(node: World) -> int:
    return sum(worker.metrics.will_bytes for worker in node.workers)


def will(payload: bytes = b"", properties: Properties = NO_PROPERTIES) -> WillMessage:
    return WillMessage(b"gone", payload, 1, False, properties)


def test_user_properties_count_as_what_they_take() -> None:
    assert memory_of(will(b"12345")) == WILL_BYTES + 9
    pairs = will(properties={PropertyId.USER_PROPERTY: [(b"a", b"bc"), (b"", b"")], PropertyId.WILL_DELAY: 7})
    assert memory_of(pairs) == WILL_BYTES + 4 + 2 * PAIR_BYTES + 3
    assert memory_of(will(properties={PropertyId.CONTENT_TYPE: b"text"})) == WILL_BYTES + 8


def test_the_account() -> None:
    metrics = WorkerMetrics()
    wills, one = Wills(2 * memory_of(will(b"x")), metrics), will(b"x")
    wills.exchange(None, one)
    assert wills.has_room_for(one) and not wills.has_room_for(will(b"xx"))
    wills.exchange(None, will(b"beyond"))
    assert not wills.has_room_for(will())
    wills.exchange(one, will())
    assert metrics.will_bytes == memory_of(will(b"beyond")) + memory_of(will())


@both
@pytest.mark.parametrize("ends", ["disconnect", "eof"])
def test_a_connect_beyond_the_bound_is_refused(tmp_path: Path, version: int, ends: str) -> None:
    with world(tmp_path, 1, max_will_bytes=BOUND_BYTES) as node:
        willed = ("gone", bytes(SIZE_BYTES), 1)
        peers = [MqttPeer(node, version, f"client-{number}", will=willed) for number in range(2)]
        beyond = MqttPeer(node, version, opened=False)
        answers = beyond.ask(wire.connect(version, "beyond", will=willed))
        assert [each.body for each in answers] == [b"\0\3"] if version == V4 else wire.reason(answers[0]) == 0x97
        assert beyond.ended and 2 * SIZE_BYTES < held(node) <= BOUND_BYTES
        assert MqttPeer(node, version, "without").client.greeted
        if ends == "disconnect":
            peers[0].ask(wire.packet(0xE0))
        else:
            peers[0].peer.close()
            node.settle()
        assert SIZE_BYTES < held(node) < 2 * SIZE_BYTES
        assert MqttPeer(node, version, "beyond", will=willed).client.will is not None
    assert held(node) == 0
