"""Retained messages, by the statements of the standard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.connection.mqtt import retained as module
from tailrace.broker.process.settings import StreamPolicy
from tailrace.broker.topics.rules import TopicRule
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5, VERSIONS

both = pytest.mark.parametrize("version", VERSIONS)
layouts = pytest.mark.parametrize("rules", [(), (TopicRule("#", "{1}"),)], ids=["streams", "topics"])
AS_PUBLISHED, NEW_ONLY, NEVER = 0x08, 0x10, 0x20
"""Options of a subscription."""


def node(path: Path, rules: tuple[TopicRule, ...] = (), **settings: Any) -> Any:
    return world(path, 2, affinity=False, topics=rules, **settings)


def retain(
    made: World, version: int, *messages: tuple[str, bytes], qos: int = 1, slot: int = 0, raw: bytes = b""
) -> None:
    writer = MqttPeer(made, version, "the writer", slot)
    packets = [
        wire.publish(version, topic, payload, qos, number + 1, retain=True, raw=raw)
        for number, (topic, payload) in enumerate(messages)
    ]
    answers = writer.ask(*packets)
    assert all(wire.reason(each) == 0 for each in answers) and len(answers) == (len(messages) if qos else 0)
    writer.ask(wire.DISCONNECT)


def got(peer: MqttPeer) -> list[tuple[str, bytes, bool]]:
    """Topic, payload and RETAIN of the messages so far, which are then forgotten, by topic."""
    peer.take()
    found, peer.got = [(each.topic, each.payload, each.retain) for each in peer.got], []
    return sorted(found)


@pytest.mark.few(4)
@both
@layouts
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_new_subscription_gets_the_last_one_of_each_topic(
    tmp_path: Path, version: int, rules: tuple[TopicRule, ...], qos: int
) -> None:
    """MQTT-3.3.1-5, -6, -9 (MQTT 3.1.1: -5, -6, -8)."""
    with node(tmp_path, rules) as made:
        retain(made, version, ("a/b", b"old"), ("a/c", b"c"), ("a/b", b"new"), ("x", b"x"), qos=qos)
        for number, (topic_filter, wanted) in enumerate(
            [
                ("a/b", [("a/b", b"new", True)]),
                ("a/+", [("a/b", b"new", True), ("a/c", b"c", True)]),
                ("#", [("a/b", b"new", True), ("a/c", b"c", True), ("x", b"x", True)]),
                ("none", []),
            ]
        ):
            peer = MqttPeer(made, version, f"c{number}", slot=number % 2)
            assert peer.subscribe((topic_filter, 2)) == [2]
            assert got(peer) == wanted


@both
def test_each_has_the_lesser_qos(tmp_path: Path, version: int) -> None:
    with node(tmp_path) as made:
        for qos in range(3):
            retain(made, version, (f"q{qos}", b"x"), qos=qos)
        peer = MqttPeer(made, version)
        peer.subscribe(("q0", 2), ("q1", 2), ("q2", 1))
        peer.take()
        assert sorted((each.topic, each.qos) for each in peer.got) == [("q0", 0), ("q1", 1), ("q2", 1)]


@both
@layouts
def test_one_without_a_payload_deletes(tmp_path: Path, version: int, rules: tuple[TopicRule, ...]) -> None:
    """MQTT-3.3.1-6, -7 (MQTT 3.1.1: -10, -11): and it goes to subscribers as any other."""
    with node(tmp_path, rules) as made:
        retain(made, version, ("a/b", b"x"), ("a/c", b"y"))
        live = MqttPeer(made, version, "live")
        live.subscribe(("a/+", 0))
        got(live)
        retain(made, version, ("a/b", b""))
        assert got(live) == [("a/b", b"", False)]
        late = MqttPeer(made, version, "late")
        late.subscribe(("a/+", 0))
        assert got(late) == [("a/c", b"y", True)]


@both
def test_one_without_the_flag_changes_nothing(tmp_path: Path, version: int) -> None:
    """MQTT-3.3.1-8 (MQTT 3.1.1: -12)."""
    with node(tmp_path) as made:
        retain(made, version, ("t", b"kept"))
        writer = MqttPeer(made, version, "w")
        writer.ask(wire.publish(version, "t", b"passing", 1), wire.publish(version, "t", b"", 1))
        peer = MqttPeer(made, version)
        peer.subscribe(("t", 0))
        assert got(peer) == [("t", b"kept", True)]


@both
@layouts
def test_a_subscription_that_is_there_gets_it_without_the_flag(
    tmp_path: Path, version: int, rules: tuple[TopicRule, ...]
) -> None:
    """MQTT-3.3.1-12 (MQTT 3.1.1: -9); -13: with Retain As Published it has the flag."""
    with node(tmp_path, rules) as made:
        peer = MqttPeer(made, version)
        peer.subscribe(("a/b", 0))
        published = MqttPeer(made, V5, "p")
        published.subscribe(("a/b", AS_PUBLISHED))
        retain(made, version, ("a/b", b"x"))
        MqttPeer(made, version, "w").ask(wire.publish(version, "a/b", b"y", 1))
        assert got(peer) == [("a/b", b"x", False), ("a/b", b"y", False)]
        assert got(published) == [("a/b", b"x", True), ("a/b", b"y", False)]


@pytest.mark.parametrize(
    ("options", "first", "second"), [(0, 1, 1), (NEW_ONLY, 1, 0), (NEVER, 0, 0)], ids=["0", "1", "2"]
)
@layouts
def test_retain_handling(tmp_path: Path, options: int, first: int, second: int, rules: tuple[TopicRule, ...]) -> None:
    """MQTT-3.3.1-9, -10, -11; MQTT-3.8.4-4: the filter again."""
    with node(tmp_path, rules) as made:
        retain(made, V5, ("a/b", b"x"))
        peer = MqttPeer(made, V5)
        peer.subscribe(("a/+", options))
        assert got(peer) == [("a/b", b"x", True)] * first
        peer.subscribe(("a/+", options))
        assert got(peer) == [("a/b", b"x", True)] * second
        retain(made, V5, ("a/b", b"live"))
        assert got(peer) == [("a/b", b"live", False)]


@both
def test_the_filter_again_in_mqtt_3_1_1_sends_them_again(tmp_path: Path, version: int) -> None:
    """MQTT 3.1.1: MQTT-3.8.4-3."""
    with node(tmp_path) as made:
        retain(made, version, ("t", b"x"))
        peer = MqttPeer(made, version)
        for _ in range(2):
            peer.subscribe(("t", 1))
            assert got(peer) == [("t", b"x", True)]


def test_properties_are_kept_and_the_expiry_is_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MQTT-3.3.2-5, -6."""
    with node(tmp_path) as made:
        expiry = b"\x02" + (100).to_bytes(4, "big")
        retain(made, V5, ("t", b"x"), raw=expiry + b"\x26" + wire.text("k") + wire.text("v"))
        shift_us = 0
        monkeypatch.setattr(module, "now_us", lambda: made.workers[0].owner.clock_us() + shift_us)
        for shift_us, wanted in ((0, 1), (40_000_000, 1), (100_000_000, 0)):
            peer = MqttPeer(made, V5, f"c{shift_us}")
            peer.subscribe(("t", 0), raw=b"\x0b\x07")
            peer.take()
            assert len(peer.got) == wanted
            for message in peer.got:
                left_s = int.from_bytes(message.raw[message.raw.index(b"\x02") + 1 :][:4], "big")
                assert 98 - shift_us // 1_000_000 <= left_s <= 100 - shift_us // 1_000_000
                assert b"\x26" + wire.text("k") + wire.text("v") in message.raw and b"\x0b\x07" in message.raw


@both
def test_a_will_may_be_retained(tmp_path: Path, version: int) -> None:
    """MQTT-3.1.2-14, -15 (MQTT 3.1.1: -16, -17)."""
    with node(tmp_path) as made:
        for retained in (False, True):
            topic = f"will/{retained}"
            dying = MqttPeer(made, version, topic, will=(topic, b"gone", 1), will_retain=retained)
            dying.peer.close()
            made.settle()
            peer = MqttPeer(made, version, f"reader of {topic}")
            peer.subscribe((topic, 0))
            assert got(peer) == [(topic, b"gone", True)] * retained


@both
@layouts
def test_what_comes_while_they_are_sent_comes_once_and_behind_them(
    tmp_path: Path, version: int, rules: tuple[TopicRule, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "VALUES_MAX", 2)
    with node(tmp_path, rules) as made:
        retain(made, version, *((f"a/{number}", b"old") for number in range(9)))
        peer = MqttPeer(made, version)
        peer.send(wire.subscribe(version, 1, ("a/+", 1)))
        writer, wanted = MqttPeer(made, version, "w"), []
        for number in range(9):
            writer.send(wire.publish(version, f"a/{number}", b"new", 1, 1 + number, retain=True))
            for worker in made.workers:
                worker.turn()
        peer.take()
        by_topic: dict[str, list[tuple[bytes, bool]]] = {}
        for each in peer.got:
            by_topic.setdefault(each.topic, []).append((each.payload, each.retain))
        for topic, came in by_topic.items():
            assert came in ([(b"old", True), (b"new", False)], [(b"new", True)], [(b"new", False)]), (topic, came)
            wanted.append(topic)
        assert len(wanted) == 9


@both
def test_no_more_are_under_way_than_the_client_takes(tmp_path: Path, version: int) -> None:
    """MQTT-3.3.4-9: the others come with the acknowledgements, and then the live ones."""
    with node(tmp_path, (TopicRule("#", "{1}"),)) as made:
        retain(made, version, *((f"a/{number}", b"%d" % number) for number in range(20)))
        raw = b"\x21\x00\x03" if version == V5 else b""
        peer = MqttPeer(made, version, raw=raw)
        peer.client.window.size = 3
        peer.subscribe(("a/#", 1))
        retain(made, version, ("a/live", b"live"))
        came: list[bytes] = []
        while True:
            peer.take()
            assert len(peer.got) <= 3
            if not peer.got:
                break
            came += [each.payload for each in peer.got]
            ids, peer.got = [each.packet_id for each in peer.got], []
            peer.send(*(wire.ack(wire.PUBACK, each) for each in ids))
        assert sorted(came[:20]) == sorted(b"%d" % number for number in range(20)) and came[20:] == [b"live"]


def test_the_next_page_is_asked_for_in_the_same_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each page would wait as long as an idle worker sleeps."""
    monkeypatch.setattr(module, "AHEAD_BYTES", 0)
    monkeypatch.setattr(module, "VALUES_MAX", 2)
    with node(tmp_path, (TopicRule("#", "{1}"),)) as made:
        first = made.name(0)
        retain(made, V5, *((f"{first}/{number}", b"x") for number in range(9)))
        peer = MqttPeer(made, V5, slot=1)
        peer.send(wire.subscribe(V5, 1, (f"{first}/#", 0)))
        for _ in range(100):
            for worker in made.workers:
                worker.turn()
                assert not worker.links.touched
        assert len(got(peer)) == 9


def test_a_client_that_does_not_read_is_sent_no_more_than_a_page(tmp_path: Path) -> None:
    with node(tmp_path, (TopicRule("#", "{1}"),)) as made:
        for number in range(80):
            retain(made, V5, (f"a/{number}", b"x" * 20_000))
        peer = MqttPeer(made, V5, small=True)
        client = peer.client
        peer.peer.deaf = True
        peer.send(wire.subscribe(V5, 1, ("a/#", 0)))
        made.settle()
        assert client.unsent_bytes < 600_000 and client.sendings and client.awaited
        peer.peer.deaf = False
        assert len(got(peer)) == 80
        assert not client.sendings


def reasons(peer: MqttPeer, *packets: bytes) -> list[int]:
    return [wire.reason(each) for each in peer.ask(*packets)]


def test_the_first_message_without_room_is_refused_in_the_same_read(tmp_path: Path) -> None:
    """Published it is nevertheless. Another value of a topic that has one needs no room, and a deletion makes some."""
    with node(tmp_path, (TopicRule("#", "{1}"),), max_last_values=5) as made:
        stream = made.name(1)
        peer = MqttPeer(made, V5)  # of the other worker

        def publish(number: int, payload: bytes = b"x", qos: int = 1) -> bytes:
            return wire.publish(V5, f"{stream}/{number}", payload, qos, 100 + number, retain=True)

        assert reasons(peer, *map(publish, range(8))) == [0] * 5 + [0x97] * 3
        assert reasons(peer, *map(publish, (7, 0, 6, 4))) == [0x97, 0, 0x97, 0]
        assert reasons(peer, publish(0, b""), publish(7), publish(6), publish(7)) == [0, 0, 0x97, 0]
        assert reasons(peer, publish(7, b"")) == [0] and reasons(peer, publish(6, qos=2)) == [0]
        assert reasons(peer, publish(5, b""), publish(8, qos=2)) == [0, 0x97]
        reader = MqttPeer(made, V5)
        reader.subscribe((f"{stream}/#", 0))
        assert [topic for topic, *_rest in got(reader)] == [f"{stream}/{number}" for number in (1, 2, 3, 4, 6)]


@both
@layouts
def test_no_room_for_another_topic(tmp_path: Path, version: int, rules: tuple[TopicRule, ...]) -> None:
    """MQTT 3.1.1 has the messages before it acknowledged. The topics are of one stream, or of one each."""
    with world(tmp_path, 1, topics=rules, max_last_values=3) as made:
        peer = MqttPeer(made, version)
        sent = [wire.publish(version, f"a/{number}", b"x", 1, number + 1, retain=True) for number in range(5)]
        answers = peer.ask(*sent)
        if version == V5:
            assert [wire.reason(each) for each in answers] == [0, 0, 0, 0x97, 0x97]
        else:
            assert len(answers) == 3 and peer.ended
        late = MqttPeer(made, V5)
        unneeded = wire.publish(V5, "a/new", b"", 1, 7, retain=True)
        assert reasons(late, unneeded, wire.publish(V5, "a/1", b"", 1, 8, retain=True)) == [0, 0]
        assert reasons(late, wire.publish(V5, "a/4", b"y", 1, 9, retain=True)) == [0]
        made.workers[0].last_values.tick()
        assert made.workers[0].metrics.last_values == 3 and made.workers[0].metrics.last_values_dropped == 2


def test_a_message_of_both_kinds_without_room_counts_once(tmp_path: Path) -> None:
    """In a stream that keeps the last message of each topic, and of those that are to be retained."""
    keeping = (StreamPolicy("*", last_values=True),)
    with world(tmp_path, 1, topics=(TopicRule("#", "{1}"),), streams=keeping, max_last_values=4) as made:
        peer = MqttPeer(made, V5)
        sent = [wire.publish(V5, f"a/{number}", b"x", 1, number + 1, retain=True) for number in range(7)]
        found = reasons(peer, *sent)
        made.workers[0].last_values.tick()
        assert found.count(0x97) == 7
        assert (made.workers[0].metrics.last_values, made.workers[0].metrics.last_values_dropped) == (4, 7)


@both
def test_only_what_may_be_read(tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with node(tmp_path, (TopicRule("#", "{1}"),)) as made:
        retain(made, version, ("a/1", b"x"), ("a/2", b"x"))
        peer = MqttPeer(made, version)
        monkeypatch.setattr(type(peer.client), "readable_topics", lambda _self, _stream, _filter: b"a/2")
        peer.subscribe(("a/+", 0))
        assert got(peer) == [("a/2", b"x", True)]


def test_unsubscribing_ends_them(tmp_path: Path) -> None:
    with node(tmp_path, (TopicRule("#", "{1}"),)) as made:
        retain(made, V5, *((f"a/{number}", b"x") for number in range(9)))
        peer = MqttPeer(made, V5, raw=b"\x21\x00\x02")
        peer.subscribe(("a/#", 1), ("b", 1))
        peer.take()
        first = len(peer.got)
        assert first == 2
        peer.ask(wire.unsubscribe(V5, 2, "a/#"), *(wire.ack(wire.PUBACK, each.packet_id) for each in peer.got))
        retain(made, V5, ("a/1", b"y"), ("b", b"z"))
        peer.take()
        assert [each.payload for each in peer.got[first:]] == [b"z"]
        assert not peer.client.sendings
