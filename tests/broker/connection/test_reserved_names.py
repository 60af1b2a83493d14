"""Nobody but the broker writes its own streams, at any door and with any rights, nor makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.shard.frame import pack_frame
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.consumers.owning import Member
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5

NAMES = ("s/$dead", "$cursor/s", "$last/s", "$sessions/3", "$x")


def by_lines(node: World, name: str) -> None:
    peer = node.connect()
    for line in (f"pub {name} |x", f"consume {name} c 0", f"master {name}"):
        assert node.ask(peer, line)[0].startswith("err "), line


def by_binary(node: World, peer: BinaryPeer, name: str) -> None:
    assert isinstance(peer.ask(m.Open(1, name.encode()))[0], m.Failed)
    frames = pack_frame(b"x")
    peer.peer.send_raw(m.pack_publish(1, m.Ack.APPENDED, [1], frames) + frames)
    node.settle()
    assert isinstance(peer.take()[0], m.Failed)


def by_mqtt(node: World, version: int, name: str) -> None:
    peer = MqttPeer(node, version, f"{version}{name}")
    peer.ask(wire.publish(version, name, b"x", 0), wire.publish(version, name, b"x", 1, 1, retain=True))
    will = MqttPeer(node, version, f"{version}{name}will", opened=False)
    answers = will.ask(wire.connect(version, "will", will=(name, b"x", 1)))
    assert will.ended and all(answer.body[1] for answer in answers)


@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_writes_none(tmp_path: Path, name: str) -> None:
    with world(tmp_path) as node:
        node.fill("s", [b"a"])
        by_lines(node, name)
        by_binary(node, BinaryPeer(node), name)
        by_binary(node, BinaryPeer(node, node_id="another"), name)
        assert isinstance(Member(node).ask(c.Consume(1, "create", name.encode(), b"c", FROM_START))[0], m.Failed)
        for version in (V4, V5):
            by_mqtt(node, version, name)
        assert list(node.workers[0].owner.catalog.names) == [b"s"]
