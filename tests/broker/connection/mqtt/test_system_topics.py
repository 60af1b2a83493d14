"""`$SYS/…`: the figures of the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.access.rules import Right
from tailrace.broker.connection.mqtt.client import MqttClient
from tailrace.broker.connection.mqtt.system_topics import EVERY_S
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

both = pytest.mark.parametrize("version", VERSIONS)


def figures(node: World, peer: MqttPeer, at_s: float | None = None) -> dict[str, str]:
    """By topic, those that come now, or at another time."""
    for worker in node.workers:
        worker._measure()
        worker.mqtt.system.tick(worker.services.now_s if at_s is None else at_s)
    peer.take()
    found = {each.topic: each.payload.decode() for each in peer.got}
    assert all(each.qos == 0 for each in peer.got)
    peer.got = []
    return found


@both
def test_they_come_after_subscribe_and_every_ten_seconds(tmp_path: Path, version: int) -> None:
    with world(tmp_path, 2, affinity=False) as node:
        for worker in node.workers:
            worker.board.metric_rows[worker.slot].take(1)
        node.stop_timers()
        now_s = node.workers[0].services.now_s
        peer = MqttPeer(node, version)
        peer.ask(wire.publish(version, "a", b"x", 1, 1))
        assert peer.subscribe(("$SYS/broker/#", 2), ("#", 0)) == [0, 0]
        for worker in node.workers:
            worker.mqtt.system.tick(now_s)
        peer.take()
        assert peer.got and all(each.retain for each in peer.got)
        assert {each.topic for each in peer.got} >= {"$SYS/broker/version", "$SYS/broker/messages/received"}
        peer.got = []
        assert not figures(node, peer, now_s + EVERY_S / 2)
        later = figures(node, peer, now_s + 2 * EVERY_S)
        assert all(topic.startswith("$SYS/broker/") for topic in later)
        assert not figures(node, peer, now_s + 2 * EVERY_S + 1)
        peer.ask(wire.unsubscribe(version, 9, "$SYS/broker/#"))
        assert not figures(node, peer, now_s + 9 * EVERY_S)


def test_one_of_them(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node)
        name = "$SYS/metrics/tailrace_connections"
        assert peer.subscribe((name, 0), ("$SYS/+/version", 1)) == [0, 0]
        found = figures(node, peer)
        assert set(found) <= {name, "$SYS/broker/version"} and "$SYS/broker/version" in found


@both
def test_a_durable_session_has_them_again(tmp_path: Path, version: int) -> None:
    raw = b"\x11\0\0\x0e\x10" if version == V5 else b""
    with world(tmp_path, 2, affinity=False) as node:
        for slot in (0, 1):
            peer = MqttPeer(node, version, "d", slot, opened=False)
            peer.ask(wire.connect(version, "d", clean=False, raw=raw))
            if not slot:
                assert peer.subscribe(("$SYS/broker/version", 0)) == [0]
            assert list(figures(node, peer)) == ["$SYS/broker/version"]
            peer.ask(wire.DISCONNECT)


def test_with_users_they_take_the_right_to_administrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node)
        peer.client.is_free = False
        monkeypatch.setattr(MqttClient, "may", lambda _client, right, _stream: right is not Right.ADMIN)
        assert peer.subscribe(("$SYS/#", 0)) == [0x87]


@both
def test_wildcards_do_not_match_them_and_nobody_publishes_there(tmp_path: Path, version: int) -> None:
    """[MQTT-4.7.2-1]."""
    with world(tmp_path) as node:
        peer = MqttPeer(node, version)
        peer.subscribe(("#", 0), ("+/broker/#", 0))
        assert not figures(node, peer, node.workers[0].services.now_s + EVERY_S)
        answers = peer.ask(wire.publish(version, "$SYS/broker/version", b"x", 1, 1))
        assert peer.ended if version == V4 else answers[0].body[2] == 0x87
