"""SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tailrace.broker.connection import handover
from tailrace.broker.connection.mqtt.subscribing import _suback_reason
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol.errors import Code
from tests.broker.mqtt import MqttPeer
from tests.broker.world import PATIENCE_S, World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

both = pytest.mark.parametrize("version", VERSIONS)
FIRST_LEVEL = (TopicRule("#", "{1}"),)


def publish(node: World, version: int, *topics: str, qos: int = 1) -> None:
    """A message for each topic, whose payload it is."""
    writer = MqttPeer(node, version, "the writer")
    answers = writer.ask(*(wire.publish(version, topic, topic.encode(), qos, n + 1) for n, topic in enumerate(topics)))
    assert all(wire.reason(each) == 0 for each in answers)
    writer.ask(wire.DISCONNECT)


def delete(node: World, name: str) -> None:
    """Until its files are gone, which a helper thread removes."""
    peer = node.connect()
    peer.send(f"delete {name}")
    until_s = time.monotonic() + PATIENCE_S
    while not peer.lines and time.monotonic() < until_s:
        node.settle()
        time.sleep(0.001)
    assert peer.lines[0].startswith("ok"), peer.lines


@both
@pytest.mark.parametrize("rules", [(), FIRST_LEVEL], ids=["streams", "topics"])
def test_messages_from_now_on(tmp_path: Path, version: int, rules: tuple[TopicRule, ...]) -> None:
    with world(tmp_path, 2, affinity=False, topics=rules) as node:
        publish(node, version, "a/b", "a/c", "x")
        peer = MqttPeer(node, version)
        assert peer.subscribe(("a/b", 1), ("new", 0)) == [1, 0]
        publish(node, version, "a/b", "a/c", "x", "new", "a/b")
        assert sorted(peer.payloads()) == [b"a/b", b"a/b", b"new"]


@both
def test_what_a_connection_publishes_behind_its_subscribe_comes_to_it(tmp_path: Path, version: int) -> None:
    with world(tmp_path, 2, affinity=False) as node:
        for name in (node.name(0), node.name(1)):
            peer = MqttPeer(node, version)
            peer.send(
                wire.publish(version, name, b"before", 1, 1),
                wire.subscribe(version, 2, (name, 0)),
                wire.publish(version, name, b"after", 1, 3),
            )
            assert peer.payloads() == [b"after"]


@both
@pytest.mark.parametrize("topic_filter", ["{}", "{}/+"])
def test_a_connection_stays_until_it_is_subscribed(tmp_path: Path, version: int, topic_filter: str) -> None:
    """The other worker would not know of the SUBSCRIBE, and nobody would answer it."""
    with world(tmp_path, 2, affinity=False) as node:
        peer = MqttPeer(node, version)
        client = peer.client
        assert handover.possible(client)
        peer.send(wire.subscribe(version, 1, (topic_filter.format(node.name(1)), 1)))
        node.settle(0)  # the owner of the stream is slow
        assert not peer.collect() and not handover.possible(client)
        assert [each.kind for each in peer.take()] == [9] and handover.possible(client)


@pytest.mark.parametrize(
    ("topic_filter", "reason"),
    [
        ("a/#/b", 0x8F),
        ("a+", 0x8F),
        ("$SYS", 0x8F),
        ("$SYSTEM/#", 0x8F),
        ("$cursor/x", 0x8F),
        ("x" * 1_025, 0x8F),
        ("$share/group", 0x8F),
        ("$share/group/", 0x8F),
        ("$share//a", 0x8F),
        ("$share/g+/a", 0x8F),
        ("$share/g#/a", 0x8F),
        ("$share/g/a/#/b", 0x8F),
        ("$share/g/$SYS/#", 0x8F),
        ("$share/g/" + "x" * 300, 0x97),
    ],
)
def test_filters_that_are_refused(tmp_path: Path, topic_filter: str, reason: int) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node)
        assert peer.subscribe((topic_filter, 1), ("good", 1)) == [reason, 1]
        assert MqttPeer(node, V4, "old").subscribe((topic_filter, 1), ("good", 1)) == [0x80, 1]


def test_a_suback_has_only_reasons_of_its_table() -> None:
    """[MQTT-3.9.3-2]."""
    allowed = {0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
    assert {int(_suback_reason(code)) for code in Code} <= allowed


def test_the_number_of_subscriptions_has_a_bound(tmp_path: Path) -> None:
    with world(tmp_path, max_subscriptions=2) as node:
        peer = MqttPeer(node)
        assert peer.subscribe(("a", 0), ("b", 0), ("c", 0), ("a", 1)) == [0, 0, 0x97, 0x97]
        publish(node, V5, "d", "e", "f")
        assert MqttPeer(node, client_id="wild").subscribe(("#", 0)) == [0], "of any number of streams, from new"
        assert node.workers[0].metrics.refused.counts[Code.SUBSCRIPTIONS] == 2


@both
def test_the_same_filter_again_changes_its_options(tmp_path: Path, version: int) -> None:
    """[MQTT-3.8.4-3]: no message is lost, none comes twice."""
    with world(tmp_path) as node:
        peer = MqttPeer(node, version)
        peer.subscribe(("s", 0))
        publish(node, version, "s")
        peer.send(wire.subscribe(version, 2, ("s", 1)), wire.publish(version, "s", b"x", 1, 3))
        peer.take()
        assert [(each.payload, each.qos) for each in peer.got] == [(b"s", 0), (b"x", 1)]
        assert len(peer.client.cursors) == 1 == len(peer.client.forms)


@both
def test_a_filter_that_stands_twice_in_one_subscribe_has_an_answer_for_each(tmp_path: Path, version: int) -> None:
    """[MQTT-3.8.4-6]: in their order, wherever the stream is; the last options count."""
    with world(tmp_path, 2, affinity=False) as node:
        for number, name in enumerate((node.name(0), node.name(1), "all/#")):
            peer = MqttPeer(node, version, f"c{number}")
            assert peer.subscribe((name, 0), ("other", 1), (name, 2), (name, 1)) == [0, 1, 2, 1]
            topic = name.replace("#", "x")
            MqttPeer(node, version, "writer").ask(wire.publish(version, topic, b"x", 2))
            for worker in node.workers:
                worker.mqtt.wildcards.tick()
            peer.take()
            assert [each.qos for each in peer.got] == [1]


def test_suback_and_unsuback_are_no_larger_than_the_client_takes(tmp_path: Path) -> None:
    """[MQTT-3.1.2-24]."""
    with world(tmp_path) as node:
        many = [(f"f{n}", 0) for n in range(60)]
        peer = MqttPeer(node, raw=b"\x27\0\0\0\x40")
        (answer,) = peer.ask(wire.subscribe(V5, 1, *many))
        assert (answer.kind, wire.reason(answer)) == (14, 0x95) and peer.ended and not peer.client.cursors
        peer = MqttPeer(node, client_id="d", raw=b"\x27\0\0\0\x40")
        assert peer.subscribe(*many[:59]) == [0] * 59
        (answer,) = peer.ask(wire.unsubscribe(V5, 1, *(each for each, _ in many)))
        assert (answer.kind, wire.reason(answer)) == (14, 0x95) and peer.ended


@both
def test_unsubscribe(tmp_path: Path, version: int) -> None:
    """[MQTT-3.10.4-1] to [MQTT-3.10.4-6]."""
    with world(tmp_path) as node:
        peer = MqttPeer(node, version)
        peer.subscribe(("a", 1), ("b", 1), ("#", 0))
        (answer,) = peer.ask(wire.unsubscribe(version, 9, "a", "nothing", "#"))
        assert (answer.kind, answer.body) == (11, b"\0\x09" + (b"\0\0\x11\0" if version == V5 else b""))
        publish(node, version, "a", "b", "c")
        node.workers[0].mqtt.wildcards.tick()
        assert peer.payloads() == [b"b"] and list(peer.client.forms) == list(peer.client.cursors)


@both
def test_overlapping_subscriptions_have_a_copy_each(tmp_path: Path, version: int) -> None:
    """[MQTT-3.3.4-2], [MQTT-3.3.4-5]: each with its QoS and its identifier."""
    with world(tmp_path, topics=FIRST_LEVEL) as node:
        peer = MqttPeer(node, version)

        def number(n: int) -> bytes:
            return bytes((0x0B, n)) if version == V5 else b""

        peer.subscribe(("a/b", 2), raw=number(1))
        peer.subscribe(("a/#", 0), raw=number(2))
        publish(node, version, "a/b")
        peer.take()
        assert sorted((each.qos, each.raw) for each in peer.got) == [(0, number(2)), (1, number(1))]


def test_no_local(tmp_path: Path) -> None:
    """[MQTT-3.8.3-3]."""
    with world(tmp_path, topics=FIRST_LEVEL) as node:
        peer, other = MqttPeer(node), MqttPeer(node, client_id="other")
        other.subscribe(("s/x", 1))
        peer.subscribe(("s/x", 1 | 4))
        peer.send(wire.publish(V5, "s/x", b"mine", 1, 1))
        other.send(wire.publish(V5, "s/x", b"theirs", 1, 1))
        assert peer.payloads() == [b"theirs"] and other.payloads() == [b"mine", b"theirs"]
        peer.subscribe(("s/x", 1))
        peer.send(wire.publish(V5, "s/x", b"again", 1, 1))
        assert peer.payloads() == [b"again"]


@both
def test_a_stream_that_is_deleted_is_read_on_when_it_is_made_again(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        peer, wild = MqttPeer(node, version), MqttPeer(node, version, "wild")
        peer.subscribe(("s", 0))
        publish(node, version, "s")
        wild.subscribe(("+", 0))
        assert peer.payloads() == [b"s"]
        delete(node, "s")
        node.workers[0].services.delays.tick(node.workers[0].services.now_s)
        node.workers[0].mqtt.wildcards.tick()
        node.settle()
        publish(node, version, "s")
        node.workers[0].mqtt.wildcards.tick()
        assert peer.payloads() == [b"s"] and wild.payloads() == [b"s"] and not peer.ended


@both
def test_a_subscription_that_cannot_go_on_ends_the_connection(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node, version)
        peer.subscribe(("s", 0))
        (cursor,) = peer.client.cursors.values()
        node.workers[0].fanout.give_up(cursor, Code.DAMAGED, "broken")
        answers = peer.take()
        assert [wire.reason(each) for each in answers] == ([0x83] if version == V5 else []) and peer.ended
