"""Subscriptions that begin in the past and go on with new messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.process.timers import now_us
from tailrace.broker.topics.rules import TopicRule
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

both = pytest.mark.parametrize("version", VERSIONS)
FIRST_LEVEL = (TopicRule("#", "{1}"),)
LASTING = b"\x11\0\0\x0e\x10"


def publish(node: World, topic: str, first: int, count: int) -> list[bytes]:
    writer = MqttPeer(node, V5, "the writer")
    sent = [b"%s %d" % (topic.encode(), first + n) for n in range(count)]
    writer.ask(*(wire.publish(V5, topic, each, 1, n + 1) for n, each in enumerate(sent)))
    writer.ask(wire.DISCONNECT)
    return sent


def pair(name: str, value: str) -> bytes:
    """A user property."""
    return b"\x26" + wire.text(name) + wire.text(value)


@pytest.mark.few(4)
@both
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("rules", [(), FIRST_LEVEL], ids=["streams", "topics"])
def test_it_begins_in_the_past_and_goes_on(
    tmp_path: Path, version: int, qos: int, rules: tuple[TopicRule, ...]
) -> None:
    with world(tmp_path, 2, affinity=False, topics=rules) as node:
        old = publish(node, "a/x", 0, 5)
        publish(node, "b/x", 0, 5)
        between_us = now_us()
        middle = publish(node, "a/x", 5, 5) + publish(node, "a/y", 0, 3)
        peer = MqttPeer(node, version)
        assert peer.subscribe(("$replay/0/a/x", qos), (f"$s/{between_us}/a/+", qos)) == [qos, qos]
        new = publish(node, "a/x", 10, 3)
        got = peer.payloads()
        assert sorted(got) == sorted(old + middle[:5] + new + middle + new)
        (answer,) = peer.ask(wire.unsubscribe(version, 9, "$replay/0/a/x"))
        assert version == V4 or answer.body[-1] == 0
        assert peer.subscribe(("$replay/-1h/a/#", 0)) == [0]
        assert sorted(peer.payloads()) == sorted(old + middle + new)


@both
def test_messages_of_one_stream_from_a_seq(tmp_path: Path, version: int) -> None:
    with world(tmp_path, topics=FIRST_LEVEL) as node:
        sent = publish(node, "a/x", 0, 5) + publish(node, "a/y", 0, 5)
        peer = MqttPeer(node, version)
        assert peer.subscribe(("$replay/#7/a/+", 1), ("$stream/a/a/x", 1), ("$replay/@3/a/x", 0)) == [1, 1, 0]
        assert sorted(peer.payloads()) == sorted(sent[7:] + sent[3:5])
        assert MqttPeer(node, version, "other").subscribe(("$stream/a", 0)) == [0]


@pytest.mark.parametrize(
    "topic_filter",
    [
        "$replay/yesterday/a",
        "$replay/0",
        "$replay//a",
        "$replay/0/a/#/b",
        "$replay/0/$SYS/#",
        "$replay/#5/+/x",
        "$s/x/a",
        "$stream/",
        "$stream/$cursor",
        "$share/g/$replay/0/a",
    ],
)
def test_filters_that_are_refused(tmp_path: Path, topic_filter: str) -> None:
    with world(tmp_path, topics=FIRST_LEVEL) as node:
        assert MqttPeer(node).subscribe((topic_filter, 1), ("good", 1)) == [0x8F, 1]
        assert MqttPeer(node, V4, "old").subscribe((topic_filter, 1), ("good", 1)) == [0x80, 1]


def test_the_user_property_and_the_marks(tmp_path: Path) -> None:
    with world(tmp_path, topics=FIRST_LEVEL) as node:
        began_us = now_us()
        sent = publish(node, "a/x", 0, 2)
        peer = MqttPeer(node)
        raw = pair("from", "0") + pair("with", "seq,time")
        assert peer.subscribe(("a/+", 1), ("$stream/a", 0), raw=raw) == [1, 0]
        peer.take()
        assert sorted(each.payload for each in peer.got) == sorted(2 * sent)
        for each in peer.got:
            seq, time = pair("seq", each.payload.decode()[-1]), b"\x26" + wire.text("time")
            assert each.raw.startswith(seq + time)
            assert began_us <= int(each.raw.removeprefix(seq + time)[2:]) <= now_us()
        assert peer.subscribe(("b", 1), raw=pair("from", "never")) == [0x8F]
        assert peer.subscribe(("$share/g/a/x", 1), raw=pair("from", "0")) == [0x83]


@both
def test_the_same_filter_again_begins_again(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        sent = publish(node, "a", 0, 3)
        peer = MqttPeer(node, version)
        for _ in range(2):
            assert peer.subscribe(("$replay/0/a", 0), ("$replay/0/a", 0)) == [0, 0]
            assert peer.payloads() == sent
        assert len(peer.client.cursors) == 1 == len(peer.client.forms)


@both
def test_it_is_paced_by_the_window(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        sent = [each for n in range(25) for each in publish(node, "a", 50 * n, 50)]
        peer = MqttPeer(node, version)
        peer.subscribe(("$replay/0/a", 1))
        peer.take()
        assert len(peer.got) == 1_000
        peer.ask(*(wire.ack(wire.PUBACK, each.packet_id) for each in peer.got))
        assert peer.payloads() == sent


@both
@pytest.mark.parametrize("qos", [0, 1])
def test_a_durable_session_goes_on_at_its_place(tmp_path: Path, version: int, qos: int) -> None:
    raw = LASTING if version == V5 else b""
    with world(tmp_path, 2, affinity=False) as node:
        sent = publish(node, "a", 0, 3)
        got = []
        for slot in (0, 1):
            peer = MqttPeer(node, version, "d", slot, opened=False)
            peer.ask(wire.connect(version, "d", clean=False, raw=raw))
            if not slot:
                assert peer.subscribe(("$replay/0/a", qos)) == [qos]
            peer.take()
            peer.ask(*(wire.ack(wire.PUBACK, each.packet_id) for each in peer.got if each.qos))
            got += peer.payloads()
            peer.ask(wire.DISCONNECT)
            if not slot:
                sent += publish(node, "a", 3, 2)
        assert got == sent


def test_no_retained_message_comes_before_a_replay(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        writer = MqttPeer(node, V5, "writer")
        writer.ask(wire.publish(V5, "a", b"kept", 1, 1, retain=True), wire.publish(V5, "a", b"later", 1, 2))
        for start, payloads in ((0, [b"kept", b"later"]), (1, [b"later"])):
            peer = MqttPeer(node, V5, f"c{start}")
            peer.subscribe(("a", 1), raw=pair("from", f"@{start}"))
            peer.take()
            assert [(each.payload, each.retain) for each in peer.got] == [(each, False) for each in payloads]
