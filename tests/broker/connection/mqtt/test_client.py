"""An MQTT connection as a whole: publishing, receiving, its window, its end, its moving."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tailrace.broker.connection import handover
from tailrace.broker.connection.mqtt.client import WINDOW_MAX, MqttClient
from tailrace.broker.connection.mqtt.publishing import ALIASES_MAX, RECEIVE_MAXIMUM, UNRELEASED_MAX
from tailrace.broker.topics.rules import TopicRule
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ack, pack_publish
from tailrace.protocol.mqtt.responses import PINGRESP
from tailrace.protocol.topics import topic_metadata
from tailrace.shard.frame import pack_frame
from tailrace.shard.topics import TOPIC_BYTES_MAX
from tests.broker.binary import BinaryPeer
from tests.broker.mqtt import MqttPeer
from tests.broker.world import World, world
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

pytestmark = pytest.mark.usefixtures("refusals_left")
both = pytest.mark.parametrize("version", VERSIONS)


def log_of(node: World, name: str) -> list[tuple[int, bytes]]:
    """(seq, payload) of all messages of a stream, by the binary protocol."""
    peer = BinaryPeer(node)
    peer.subscribe(1, name)
    node.settle()
    peer.take()
    return peer.got.get(1, [])


@both
def test_a_packet_that_came_in_parts_is_not_owed_any_more_while_it_waits_for_its_answer(
    tmp_path: Path, version: int
) -> None:
    """CONNECT waits for other workers, and nothing is read meanwhile."""
    with world(tmp_path, 2, affinity=False) as node:
        peer = MqttPeer(node, version, opened=False)
        packet = wire.connect(version, "parts")
        assert peer.ask(packet[:5]) == [] and len(node.workers[0].services.deadlines.request.peers) == 1
        assert [each.kind for each in peer.ask(packet[5:])] == [2]
        assert not node.workers[0].services.deadlines.request.peers and not peer.client.held_bytes


# --- publishing -------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("slot", [0, 1])
def test_messages_come_back_in_their_order_with_their_qos(tmp_path: Path, version: int, slot: int) -> None:
    with world(tmp_path, 2, affinity=False) as node:
        name = node.name(slot)
        reader = MqttPeer(node, version, "reader", 1)
        assert reader.subscribe((name, 2)) == [2]
        writer = MqttPeer(node, version, "writer")
        answers = writer.ask(*(wire.publish(version, name, b"%d" % n, n % 3, n + 1) for n in range(9)))
        assert [(each.kind, each.body[:2]) for each in answers] == [
            (4 if n % 3 == 1 else 5, (n + 1).to_bytes(2, "big")) for n in range(9) if n % 3
        ]
        reader.take()
        assert [(each.payload, each.qos) for each in reader.got] == [(b"%d" % n, n % 3) for n in range(9)]
        assert [each.packet_id for each in reader.got if each.qos] == list(range(1, 7))


@both
def test_acknowledgements_keep_the_order_of_the_messages(tmp_path: Path, version: int) -> None:
    """[MQTT-4.6.0-2], [MQTT-4.6.0-3], however fast their streams are."""
    with world(tmp_path, 2, affinity=False) as node:
        here, there = node.name(0), node.name(1)
        writer = MqttPeer(node, version)
        packets = [wire.publish(version, (here, there)[n % 2], b"x", 1, n + 1) for n in range(20)]
        assert [each.body for each in writer.ask(*packets)] == [(n + 1).to_bytes(2, "big") for n in range(20)]


def _door(tmp_path: Path, version: int, seed: int, rules: tuple[TopicRule, ...]) -> tuple[object, ...]:
    """What a client gets for a random conversation, and what lies in the streams after it."""
    rng, packets = random.Random(seed), []
    topics = ("a", "a/b", "b", "b/c", "a b", "é/1", "$SYS/x", "a/$dead", "/".join("x" * 200))
    for number in range(150):
        topic = rng.choice(topics if rng.random() < 0.1 and version == V5 else topics[:4])
        raw = b"\x01\1" if version == V5 and rng.random() < 0.1 else b""
        payload = bytes(300) if rng.random() < 0.03 and version == V5 else b"%d" % number
        packets.append(wire.publish(version, topic, payload, rng.choice((0, 1, 1, 2)), number + 1, raw=raw))
        if rng.random() < 0.1:
            packets.append(wire.ack(wire.PUBREL, max(number - 60, 1)))  # its PUBREC has come
    if seed % 3 == 2:
        packets.insert(rng.randrange(50), wire.packet(0x30, b"\0"))
    with world(tmp_path, topics=rules, max_message_bytes=256) as node:
        writer = MqttPeer(node, version)
        answers, at = [], 0
        while at < len(packets) and not writer.ended:
            size = rng.choice((1, 7, 40))
            answers += writer.ask(*packets[at : at + size])
            at += size
        names = ("a", "b", "a/b", "b/c", "topics", "é")
        return answers, writer.ended, [log_of(node, name) for name in names]


@pytest.mark.few(4)
@both
@pytest.mark.parametrize("seed", range(6))
def test_runs_are_answered_as_packets_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, seed: int
) -> None:
    rules = (TopicRule("#", "{1}"),) if seed % 2 else ()
    staged = _door(tmp_path / "staged", version, seed, rules)
    monkeypatch.setattr(MqttClient, "_staging_limits", lambda _client, _pending: None)
    assert staged == _door(tmp_path / "plain", version, seed, rules)


def test_a_run_that_is_refused(tmp_path: Path) -> None:
    """MQTT 5 says so of each message; MQTT 3.1.1 closes behind the acknowledgements of those before."""
    with world(tmp_path) as node:
        names = ["s", "n/" * 128, "s", "n/" * 128]
        writer = MqttPeer(node)
        answers = writer.ask(*(wire.publish(V5, name, b"x", 1, n + 1) for n, name in enumerate(names)))
        assert [(each.body[:2], wire.reason(each) if each.body[2:] else 0) for each in answers] == [
            ((n + 1).to_bytes(2, "big"), 0 if name == "s" else 0x90) for n, name in enumerate(names)
        ]
        old = MqttPeer(node, V4, "old")
        answers = old.ask(*(wire.publish(V4, name, b"x", 1, n + 1) for n, name in enumerate(names)))
        assert [each.body for each in answers] == [b"\0\1"] and old.ended
        assert len(log_of(node, "s")) == 4


@both
def test_a_qos_2_message_is_logged_once(tmp_path: Path, version: int) -> None:
    """[MQTT-4.3.3-8] to [MQTT-4.3.3-13]."""
    with world(tmp_path) as node:
        writer = MqttPeer(node, version)
        first = writer.ask(wire.publish(version, "s", b"once", 2, 7))
        again = writer.ask(wire.publish(version, "s", b"once", 2, 7, dup=True))
        assert first == again and first[0].kind == 5
        (completed,) = writer.ask(wire.ack(wire.PUBREL, 7))
        assert (completed.kind, completed.body) == (7, b"\0\7")
        writer.ask(wire.publish(version, "s", b"next", 2, 7))
        assert log_of(node, "s") == [(0, b"once"), (1, b"next")]


def test_a_release_of_nothing(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        (answer,) = MqttPeer(node).ask(wire.ack(wire.PUBREL, 7))
        assert (answer.kind, answer.body) == (7, b"\0\7\x92")
        (answer,) = MqttPeer(node, V4, "d").ask(wire.ack(wire.PUBREL, 7))
        assert (answer.kind, answer.body) == (7, b"\0\7")


def test_topic_aliases(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        writer = MqttPeer(node)
        writer.ask(
            wire.publish(V5, "s", b"a", raw=b"\x23\0\1"),
            wire.publish(V5, "", b"b", raw=b"\x23\0\1"),
            wire.publish(V5, "t", b"c", raw=b"\x23\0\1"),
            wire.publish(V5, "", b"d", 1, raw=b"\x23\0\1"),
        )
        assert [payload for _, payload in log_of(node, "s")] == [b"a", b"b"]
        assert [payload for _, payload in log_of(node, "t")] == [b"c", b"d"]


@pytest.mark.parametrize("topic", ["t" * 3_000, "é" * 1_500])
def test_an_alias_holds_no_more_than_a_topic_may_have(tmp_path: Path, topic: str) -> None:
    """Else 32 of them are two megabytes of a connection. A name that is refused is refused by its alias too, also if
    that is cut within a character.
    """
    with world(tmp_path) as node:
        writer = MqttPeer(node)
        long = wire.publish(V5, topic, b"x", 1, 1, raw=b"\x23\0\1")
        fits = wire.publish(V5, "t" * TOPIC_BYTES_MAX, b"x", 0, raw=b"\x23\0\2")
        answers = writer.ask(long, wire.publish(V5, "", b"x", 1, 2, raw=b"\x23\0\1"), fits)
        assert [wire.reason(each) for each in answers] == [0x90, 0x90] and not writer.ended
        assert sorted(map(len, writer.client.aliases.values())) == [TOPIC_BYTES_MAX, TOPIC_BYTES_MAX + 1]


@pytest.mark.parametrize(
    ("alias", "reason"), [(0, 0x94), (ALIASES_MAX + 1, 0x94), (5, 0x82)], ids=["0", "too large", "unknown"]
)
def test_wrong_topic_aliases(tmp_path: Path, alias: int, reason: int) -> None:
    """[MQTT-3.3.2-8], [MQTT-3.3.2-9]."""
    with world(tmp_path) as node:
        writer = MqttPeer(node)
        (answer,) = writer.ask(wire.publish(V5, "", b"x", raw=b"\x23" + alias.to_bytes(2, "big")))
        assert (answer.kind, wire.reason(answer)) == (14, reason) and writer.ended


def test_properties_come_back_and_the_frame_has_them(tmp_path: Path) -> None:
    raw = b"\x01\1" + b"\x03" + wire.text("text/plain") + b"\x08" + wire.text("re/ply") + b"\x09" + wire.text(b"\0\1")
    raw += b"".join(b"\x26" + wire.text(name) + wire.text(value) for name, value in (("b", "1"), ("a", ""), ("b", "1")))
    with world(tmp_path) as node:
        reader = MqttPeer(node, client_id="reader")
        reader.subscribe(("s", 1), raw=b"\x0b\x07")
        MqttPeer(node).ask(wire.publish(V5, "s", b"x", 1, raw=raw))
        reader.take()
        (found,) = reader.got
        assert sorted(found.raw) == sorted(raw + b"\x0b\x07")
        assert found.raw.index(b"\x26" + wire.text("b")) < found.raw.index(b"\x26" + wire.text("a"))


@pytest.mark.parametrize("topic", ["$SYS/x", "$cursor/s", "s/$dead"])
def test_topics_of_the_broker_take_no_message(tmp_path: Path, topic: str) -> None:
    with world(tmp_path) as node:
        writer = MqttPeer(node)
        (answer,) = writer.ask(wire.publish(V5, topic, b"x", 1), wire.publish(V5, topic, b"x"))
        assert (answer.kind, wire.reason(answer)) == (4, 0x87)
        (answer,) = writer.ask(wire.publish(V5, topic, b"x", 2, 3))
        assert (answer.kind, wire.reason(answer)) == (5, 0x87) and not writer.client.unreleased
        old = MqttPeer(node, V4, "old")
        answers = old.ask(wire.publish(V4, "s", b"x", 1, 1), wire.publish(V4, topic, b"x", 1, 2))
        assert [each.kind for each in answers] == [4] and old.ended, "[MQTT-3.3.5-2] of 3.1.1"
        assert node.workers[0].metrics.refused.counts[Code.RESERVED] == 4


@both
def test_a_message_that_is_too_large(tmp_path: Path, version: int) -> None:
    with world(tmp_path, max_message_bytes=1_000) as node:
        writer = MqttPeer(node, version)
        answers = writer.ask(
            wire.publish(version, "s", bytes(1_000), 1, 1), wire.publish(version, "s", bytes(1_001), 1, 2)
        )
        assert [(each.kind, wire.reason(each)) for each in answers] == [(4, 0), (4, 0x97)][: 1 + (version == V5)]
        assert writer.ended == (version == V4)
        large = MqttPeer(node, version, "large")
        answers = large.ask(wire.publish(version, "s", bytes(200_000))[:10])
        assert [wire.reason(each) for each in answers] == [0x95][: int(version == V5)] and large.ended


def test_receive_maximum(tmp_path: Path) -> None:
    """[MQTT-3.3.4-7]: the server ends a client that has more under way than it may."""
    with world(tmp_path) as node:
        writer = MqttPeer(node)
        assert b"\x21" + RECEIVE_MAXIMUM.to_bytes(2, "big") in writer.connack.body
        packets = [wire.publish(V5, "s", b"x", 2, number + 1) for number in range(RECEIVE_MAXIMUM + 1)]
        assert len(writer.ask(*packets[:-1])) == RECEIVE_MAXIMUM
        assert not writer.peer.ended
        (answer,) = writer.ask(packets[-1])
        assert (answer.kind, wire.reason(answer)) == (14, 0x93) and writer.ended


def test_version_3_1_1_has_a_bound_of_unreleased_messages(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        writer = MqttPeer(node, V4)
        for start in range(0, UNRELEASED_MAX, 512):
            writer.ask(*(wire.publish(V4, "s", b"", 2, start + n + 1) for n in range(512)))
        assert not writer.ended
        writer.ask(wire.publish(V4, "s", b"", 2, UNRELEASED_MAX + 1))
        assert writer.ended


# --- the window -------------------------------------------------------------------------------------------------------


@both
def test_no_more_than_the_window_is_sent(tmp_path: Path, version: int) -> None:
    """[MQTT-3.3.4-9]; QoS 0 is not held up by it."""
    with world(tmp_path) as node:
        raw = b"\x21\0\3" if version == V5 else b""
        window = 3 if version == V5 else WINDOW_MAX
        reader = MqttPeer(node, version, "reader", raw=raw)
        reader.subscribe(("s", 1), ("t", 1))
        node.fill("s", [b"%d" % n for n in range(window + 2)])
        assert reader.payloads() == [b"%d" % n for n in range(window)]
        MqttPeer(node, version).ask(wire.publish(version, "t", b"t", 1))
        assert reader.payloads() == []
        reader.send(wire.ack(wire.PUBACK, 1))
        assert len(reader.payloads()) == 1
        reader.send(wire.ack(wire.PUBACK, 2), wire.ack(wire.PUBACK, 3))
        assert len(reader.payloads()) == 2
        assert reader.client.room == 0


def test_qos_2_to_a_client(tmp_path: Path) -> None:
    """[MQTT-4.3.3-1] to [MQTT-4.3.3-7]."""
    with world(tmp_path) as node:
        reader = MqttPeer(node, raw=b"\x21\0\1")
        reader.subscribe(("s", 2))
        writer = MqttPeer(node, client_id="writer")
        writer.ask(wire.publish(V5, "s", b"a", 2, 1), wire.publish(V5, "s", b"b", 2, 2))
        assert reader.payloads() == [b"a"]
        (answer,) = reader.ask(wire.ack(wire.PUBREC, 1))
        assert (answer.kind, answer.flags, answer.body) == (6, 2, b"\0\1") and reader.payloads() == []
        assert reader.ask(wire.ack(wire.PUBCOMP, 1)) == [] and reader.payloads() == [b"b"]
        (answer,) = reader.ask(wire.ack(wire.PUBREC, 9))
        assert (answer.kind, answer.body) == (6, b"\0\x09\x92")
        assert reader.ask(wire.ack(wire.PUBREC, 2, b"\x97")) == [] and reader.client.room == 1


@both
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_reader_gets_every_packet_whole(tmp_path: Path, version: int, seed: int) -> None:
    """With a socket that is full in the middle of chunks, and windows of any size."""
    rng = random.Random(seed)
    payloads = [b"%d " % n * rng.randrange(700) for n in range(300)]
    with world(tmp_path) as node:
        raw = b"\x21\0" + bytes((rng.randrange(1, 40),)) if version == V5 else b""
        reader = MqttPeer(node, version, "reader", small=True, raw=raw)
        quick = MqttPeer(node, version, "quick", small=True)
        reader.subscribe(("s", 1))
        quick.subscribe(("s", 0))
        reader.peer.deaf = quick.peer.deaf = True
        node.fill("s", payloads)
        reader.peer.deaf = quick.peer.deaf = False
        got: list[bytes] = []
        numbers: list[int] = []
        for _ in range(2_000):
            reader.take()
            reader.send(*(wire.ack(wire.PUBACK, each.packet_id) for each in reader.got))
            got += [each.payload for each in reader.got]
            numbers += [each.packet_id for each in reader.got]
            reader.got.clear()
            if len(got) == len(payloads):
                break
        assert got == payloads == quick.payloads()
        assert numbers == list(range(1, len(payloads) + 1))


@both
def test_a_reader_moves_in_the_middle_of_a_chunk(tmp_path: Path, version: int) -> None:
    payloads = [b"%d " % n * 300 for n in range(100)]
    with world(tmp_path, 2, affinity=False) as node:
        name = node.name(0)
        reader = MqttPeer(node, version, "reader", small=True, keep_alive_s=60, will=("gone", b"x", 0))
        reader.subscribe((name, 1), ("other/#", 2))
        reader.ask(wire.publish(version, "in", b"x", 2, 9))
        reader.peer.deaf = True
        node.fill(name, payloads)
        moved = 0
        for _ in range(20):
            client = reader.client
            if handover.possible(client):
                source = node.worker_of(client)
                link = source.links.link_to(1 - source.slot)
                assert link is not None
                source.links.hand_over(link, *handover.detach(client))
                source.siblings.flush()
                assert not source.mqtt.sessions and not source.mqtt.keep_alives
                node.workers[1 - source.slot].turn()
                moved += 1
            reader.peer.received += reader.peer.sock.recv(700)
            node.settle()
        assert moved == 20 and reader.client.unreleased == {9}
        assert reader.client.will is not None and len(node.worker_of(reader.client).mqtt.keep_alives) == 1
        assert [bool(worker.metrics.will_bytes) for worker in node.workers] == [
            worker is node.worker_of(reader.client) for worker in node.workers
        ]
        reader.peer.deaf = False
        assert reader.payloads() == payloads
        reader.ask(wire.ack(wire.PUBREL, 9), *(wire.ack(wire.PUBACK, n + 1) for n in range(100)))
        assert reader.client.room == WINDOW_MAX
        MqttPeer(node, version, "w").ask(wire.publish(version, "other/made-later", b"y", 2, 1))
        for worker in node.workers:
            worker.mqtt.wildcards.tick()
        assert reader.payloads() == [b"y"]


# --- the end ----------------------------------------------------------------------------------------------------------


@both
def test_ping(tmp_path: Path, version: int) -> None:
    """[MQTT-3.12.4-1]."""
    with world(tmp_path) as node:
        assert MqttPeer(node, version).ask(wire.PINGREQ) == [wire.Answer(13, 0, b"")]


ENDS = {
    "disconnect": wire.DISCONNECT,
    "with will": wire.packet(0xE0, b"\4"),
    "with an error": wire.packet(0xE0, b"\x80"),
    "for a malformed packet": wire.packet(0xE0, b"\x81\0"),
    "malformed": wire.packet(0xC1),
    "eof": b"",
}


@pytest.mark.parametrize("how", [*ENDS, "reset", "stop"])
@both
def test_the_will_is_published_unless_the_client_disconnects(tmp_path: Path, version: int, how: str) -> None:
    """[MQTT-3.1.2-8], [MQTT-3.1.2-10], [MQTT-3.14.4-3]."""
    if how in ("with will", "with an error", "for a malformed packet") and version == V4:
        return
    with world(tmp_path) as node:
        reader = MqttPeer(node, version, "reader")
        reader.subscribe(("will/topic", 1))
        peer = MqttPeer(node, version, "mortal", will=("will/topic", b"gone", 1), will_raw=b"\x18\0\0\0\5")
        client = peer.client
        if how == "reset":
            client.close("reset")
        elif how == "stop":
            client.end_with(Code.CLOSING, "this node is stopping")
        elif how == "eof":
            peer.peer.close()
        else:
            peer.ask(wire.publish(version, "will/topic", b"before", 1), ENDS[how])
            assert reader.payloads() == ([b"before"] if how == "disconnect" else [b"before", b"gone"])
            return
        assert reader.payloads() == ([] if how == "stop" else [b"gone"])


def test_a_session_that_was_to_last_may_be_given_another_time(tmp_path: Path) -> None:
    """Only a Session Expiry Interval of 0 in CONNECT forbids another one, also once the connection has moved."""
    with world(tmp_path, 2) as node:
        reader = MqttPeer(node, client_id="reader")
        reader.subscribe(("w", 0))
        for moves in (False, True):
            peer = MqttPeer(node, client_id="mortal", raw=b"\x11\0\0\0\x64", will=("w", b"gone", 0))
            if moves:
                source = node.worker_of(peer.client)
                link = source.links.link_to(1 - source.slot)
                assert link is not None
                source.links.hand_over(link, *handover.detach(peer.client))
                node.settle()
                assert node.worker_of(peer.client) is not source
            assert peer.ask(wire.packet(0xE0, b"\0\5\x11\0\0\0\x0a")) == [] and peer.ended
        assert reader.payloads() == []


def test_errors_are_read_before_the_end(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node)
        (answer,) = peer.ask(wire.packet(0xC1))
        assert (answer.kind, wire.reason(answer)) == (14, 0x81) and peer.ended
        old = MqttPeer(node, V4)
        assert old.ask(wire.packet(0xC1)) == [] and old.ended
        (answer,) = MqttPeer(node).ask(wire.packet(0xF0, b"\x18\0"))
        assert (answer.kind, wire.reason(answer)) == (14, 0x82)
        (answer,) = MqttPeer(node).ask(wire.packet(0xE0, b"\0\5\x11\0\0\0\1"))
        assert (answer.kind, wire.reason(answer)) == (14, 0x82), "[MQTT-3.14.2-2]"


def test_nothing_follows_disconnect(tmp_path: Path) -> None:
    """[MQTT-3.14.4-1], also if an answer of another worker comes later."""
    with world(tmp_path, 2, affinity=False) as node:
        peer = MqttPeer(node)
        answers = peer.ask(wire.subscribe(V5, 1, (node.name(1), 0)), wire.packet(0xC1))
        assert [each.kind for each in answers] == [9, 14] and peer.ended
        peer = MqttPeer(node)
        peer.send(wire.subscribe(V5, 1, (node.name(1), 0)))
        node.settle(0)
        peer.client.end_with(Code.CLOSING, "this node is stopping")
        assert [each.kind for each in peer.take()] == [14] and peer.ended
        peer = MqttPeer(node)
        peer.client.end_with(Code.CLOSING, "this node is stopping")
        peer.client.send_packet(PINGRESP)
        assert [each.kind for each in peer.take()] == [14] and peer.ended


def test_a_client_with_a_small_maximum_packet_size_gets_no_reason_string(tmp_path: Path) -> None:
    """[MQTT-3.14.2-3]."""
    with world(tmp_path) as node:
        (answer,) = MqttPeer(node, raw=b"\x27\0\0\0\x20").ask(wire.packet(0xC1))
        assert answer.body == b"\x81\0"


@both
def test_a_node_that_stops_ends_its_clients(tmp_path: Path, version: int) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node, version)
        peer.client.end_with(Code.CLOSING, "this node is stopping")
        answers = peer.take()
        assert [wire.reason(each) for each in answers] == ([0x8B] if version == V5 else []) and peer.ended


def test_keep_alive(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = MqttPeer(node, keep_alive_s=2)
        worker = node.workers[0]
        assert len(worker.mqtt.keep_alives) == 1
        worker.mqtt.keep_alives.tick(worker.services.now_s + 2.5)
        assert not peer.ended
        worker.mqtt.keep_alives.tick(worker.services.now_s + 3.5)
        (answer,) = peer.take()
        assert wire.reason(answer) == 0x8D and peer.ended


def test_an_incomplete_packet_does_not_keep_a_connection_alive(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        worker = node.workers[0]
        peers = [MqttPeer(node, client_id=name, keep_alive_s=2) for name in ("drips", "whole")]
        for peer in peers:
            peer.client.packet_s -= 2.5
            worker.mqtt.keep_alives.add(peer.client)
        peers[0].ask(wire.publish(V5, "s", bytes(100))[:50])
        peers[1].ask(wire.publish(V5, "s", bytes(100)) + wire.publish(V5, "s", bytes(100))[:50])
        worker.mqtt.keep_alives.tick(worker.services.now_s + 1.5)
        assert [peer.ended for peer in peers] == [True, False]


# --- the same by every door -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["plain", "sensors/7/temp"])
def test_a_message_is_the_same_whoever_publishes_it(tmp_path: Path, topic: str) -> None:
    """Same stream, next seq, same bytes."""
    with world(tmp_path, topics=(TopicRule("+/#", "{1}"),) if "/" in topic else ()) as node:
        stream = topic.partition("/")[0]
        for version in VERSIONS:
            MqttPeer(node, version, f"w{version}").ask(wire.publish(version, topic, b"hello", 1))
        given = f" topic {topic}" if topic != stream else ""
        assert node.ask(node.connect(), f"pub {stream}{given} |hello") == []
        binary = BinaryPeer(node)
        binary.open(stream)
        frame = pack_frame(b"hello", metadata=topic_metadata(topic.encode()) if topic != stream else b"")
        binary.peer.send_raw(pack_publish(1, Ack.NONE, [1], frame, 0) + frame)
        node.settle()
        reader = node.workers[0].readers.get(stream.encode())
        content = os.pread(reader.content_fd, 4_096, reader.offset_of(0))
        size = int.from_bytes(content[:4], "little")
        frames = [content[size * n : size * (n + 1)] for n in range(4)]
        assert [frame[8:16] for frame in frames] == [n.to_bytes(8, "little") for n in range(4)]
        assert len({(frame[:4], frame[28:]) for frame in frames}) == 1, "but for seq, time and checksum"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("lasts", [False, True])
def test_topics_have_an_alias_if_the_client_allows_them(tmp_path: Path, qos: int, lasts: bool) -> None:
    """[MQTT-3.1.2-26], [MQTT-3.1.2-27]: messages of QoS 0 stay behind those with the alias of their topic."""
    with world(tmp_path, topics=(TopicRule("#", "{1}"),)) as node:
        raw = b"\x22\0\2" + (b"\x11\0\0\0\x3c" if lasts else b"")
        reader, writer = MqttPeer(node, V5, "r", raw=raw), MqttPeer(node, V5, "w")
        reader.subscribe(("long/+", qos), ("long/a", 0))
        for number in range(3):
            writer.ask(wire.publish(V5, "long/a", b"%d" % number, qos, 1), wire.ack(wire.PUBREL, 1))
        for topic in ("long/b", "long/c", "long/a"):
            writer.ask(wire.publish(V5, topic, b"last", 1, 2))
        reader.send()
        reader.node.settle()
        topics: dict[int, bytes] = {}
        found = []
        for answer in wire.split(bytes(reader.peer.received)):
            if answer.kind != 3:
                continue
            size = int.from_bytes(answer.body[:2], "big")
            at = 2 + size + (2 if answer.flags & 6 else 0)
            assert answer.body[at : at + 2] == b"\3\x23"
            alias = int.from_bytes(answer.body[at + 2 : at + 4], "big")
            topics[alias] = answer.body[2 : 2 + size] or topics[alias]
            assert alias in (1, 2)
            found.append((topics[alias], answer.body[at + 4 :]))
        wanted = [(b"long/a", b"%d" % number) for number in range(3) for _ in range(2)]
        wanted += [(b"long/b", b"last"), (b"long/c", b"last"), (b"long/a", b"last"), (b"long/a", b"last")]
        assert sorted(found) == sorted(wanted)
