"""Statements of both MQTT standards about PUBLISH, its acknowledgements, order and retained messages, at a real node.

`mqtt_statements.txt` says which test shows which statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import PUBACK, PUBCOMP, PUBREC, PUBREL, V4, V5, VERSIONS
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import Node, running
from tests.system.streams import lives
from tests.system.test_mqtt_connect import durable

pytestmark = pytest.mark.system

WORKERS = 2
both = pytest.mark.parametrize("version", VERSIONS)
AS_PUBLISHED, NEW_ONLY, NEVER = 0x08, 0x10, 0x20
_numbers = count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("messages") / "data", workers=WORKERS) as node:
        yield node
        assert lives(node)[1] == ["0"] * WORKERS, "a worker has ended by itself"


@pytest.fixture
def name() -> str:
    """The name of a topic and a client that no other test has."""
    return f"name{next(_numbers)}"


# --- PUBLISH ----------------------------------------------------------------------------------------------------------


FAULTY: dict[str, tuple[Callable[[int], bytes], int]] = {
    "QoS 3": (lambda v: wire.packet(0x36, b"\0\1a\0\1" + wire.properties(v)), 0x81),
    "DUP with QoS 0": (lambda v: wire.packet(0x38, b"\0\1a" + wire.properties(v)), 0x81),
    "identifier 0": (lambda v: wire.publish(v, "a", b"", 1, 0), 0x82),
    "+ in a topic": (lambda v: wire.publish(v, "a/+", b"x"), 0x90),
    "# in a topic": (lambda v: wire.publish(v, "a/#", b"x", 1), 0x90),
    "an empty topic": (lambda v: wire.publish(v, "", b"x"), 0x82),
    "half a topic": (lambda v: wire.packet(0x30, b"\0\5a"), 0x81),
    "no identifier": (lambda v: wire.packet(0x32, b"\0\1a\0"), 0x81),
}


@both
@pytest.mark.parametrize("what", FAULTY)
def test_faulty_messages(node: Node, version: int, what: str) -> None:
    made, reason = FAULTY[what]
    with MqttSocket(node.port, version) as peer:
        peer.refused(reason, made(version))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x0b\1", 0x82),  # a Subscription Identifier
        (b"\x08\0\1#", 0x82),  # a wildcard in the Response Topic
        (b"\x23\0\0", 0x94),
        (b"\x23\0\x21", 0x94),  # beyond the maximum of 32
        (b"\x01\2", 0x82),
        (b"\x02\0\0\0\1\x02\0\0\0\1", 0x82),
        (b"\x21\0\1", 0x81),  # not one of PUBLISH
        (b"\x7f", 0x81),
    ],
)
def test_properties_that_a_message_may_not_have(node: Node, raw: bytes, reason: int) -> None:
    with MqttSocket(node.port, V5) as peer:
        peer.send(wire.publish(V5, "a", b"x", 1, raw=raw))
        (answer,) = peer.rest()
        assert wire.reason(answer) in (reason, 0x82 if reason == 0x81 else reason)


@both
def test_each_qos_has_its_answer(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((name, 2))
        peer.send(wire.publish(version, name, b"0"))
        assert peer.ask(wire.publish(version, name, b"1", 1, 0x1234)) == wire.Answer(4, 0, b"\x12\x34")
        assert peer.ask(wire.publish(version, name, b"2", 2, 0xFFFF)) == wire.Answer(5, 0, b"\xff\xff")
        assert peer.ask(wire.ack(PUBREL, 0xFFFF)) == wire.Answer(7, 0, b"\xff\xff")
        found = peer.messages(3)
        assert [(each.payload, each.qos, each.dup) for each in found] == [(b"%d" % n, n, False) for n in range(3)]
        assert found[0].packet_id == 0 and 0 not in (found[1].packet_id, found[2].packet_id)
        assert found[1].packet_id != found[2].packet_id


@both
def test_the_dup_flag_of_a_message_is_not_passed_on(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((name, 2))
        for qos in (1, 2):
            peer.publish(name, b"x", qos, dup=True)
        assert [each.dup for each in peer.messages(2)] == [False, False]


@both
def test_the_same_identifier_with_qos_1_is_another_message(node: Node, version: int, name: str) -> None:
    """Behind its PUBACK, with the DUP flag and without."""
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((name, 0))
        for dup in (False, True):
            peer.publish(name, b"x", 1, 7, dup=dup)
        peer.publish(name, b"last", 0)
        assert len(peer.until(b"last")) == 2


@both
def test_a_qos_2_message_is_one_until_it_is_released(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((name, 0))
        for payload in (b"once", b"once"):
            assert peer.ask(wire.publish(version, name, payload, 2, 7)) == wire.Answer(5, 0, b"\0\7")
            assert peer.ask(wire.publish(version, name, payload, 2, 7, dup=True)) == wire.Answer(5, 0, b"\0\7")
            assert peer.ask(wire.ack(PUBREL, 7)).body == b"\0\7"
        peer.publish(name, b"last", 0)
        assert len(peer.until(b"last")) == 2


def test_an_identifier_whose_message_was_refused_is_free(node: Node, name: str) -> None:
    with MqttSocket(node.port, V5) as peer:
        peer.subscribe((name, 0))
        assert peer.publish("$SYS/x", b"x", 2, 7) == 0x87
        assert peer.publish(name, b"x", 2, 7) == 0
        assert peer.message().payload == b"x"


@both
def test_acknowledgements_come_in_the_order_of_the_messages(node: Node, version: int, name: str) -> None:
    """To the streams of both workers."""
    for qos, kind in ((1, 4), (2, 5)):
        with MqttSocket(node.port, version) as peer:
            peer.send(*(wire.publish(version, f"{name}-{n % 5}", b"x", qos, n + 1) for n in range(50)))
            answers = [peer.answer() for _ in range(50)]
            assert [each and each.body for each in answers] == [(n + 1).to_bytes(2, "big") for n in range(50)]
            assert {each and each.kind for each in answers} == {kind}
            if qos == 2:
                peer.send(*(wire.ack(PUBREL, n + 1) for n in range(50)))
                answers = [peer.answer() for _ in range(50)]
                assert [each and each.body for each in answers] == [(n + 1).to_bytes(2, "big") for n in range(50)]


@both
def test_messages_of_a_topic_keep_their_order(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as reader, MqttSocket(node.port, version) as writer:
        reader.subscribe((f"{name}/+", 2))
        for qos in range(3):
            for number in range(20):
                writer.publish(f"{name}/{qos}", b"%d" % number, qos)
        found = reader.messages(60)
        for qos in range(3):
            assert [int(each.payload) for each in found if each.topic == f"{name}/{qos}"] == list(range(20))


def test_a_release_of_nothing(node: Node) -> None:
    for version in VERSIONS:
        with MqttSocket(node.port, version) as peer:
            answer = peer.ask(wire.ack(PUBREL, 9))
            assert answer.body == (b"\0\x09\x92" if version == V5 else b"\0\x09")


@both
def test_a_message_that_may_not_be_published(node: Node, version: int) -> None:
    """MQTT 3.1.1 has no refusal but the end of the connection."""
    for qos in (1, 2):
        with MqttSocket(node.port, version) as peer:
            if version == V5:
                assert peer.publish("$SYS/x", b"x", qos) == 0x87
            else:
                peer.refused(0, wire.publish(version, "$SYS/x", b"x", qos))


def test_receive_maximum_of_the_broker(node: Node, name: str) -> None:
    with MqttSocket(node.port, V5) as peer:
        assert b"\x21\0\x64" in peer.connack.body
        for number in range(100):
            assert peer.ask(wire.publish(V5, name, b"x", 2, number + 1)).kind == 5
        assert peer.ask(wire.PINGREQ).kind == 13
        peer.refused(0x93, wire.publish(V5, name, b"x", 2, 101))


# --- properties -------------------------------------------------------------------------------------------------------


def test_properties_are_passed_on_unaltered(node: Node, name: str) -> None:
    pairs = [("b", "1"), ("a", ""), ("b", "1"), ("é", "\N{SNOWMAN}")]
    raw = (
        b"\x01\1"
        + b"\x03"
        + wire.text("text/plain; é")
        + b"\x08"
        + wire.text("re/ply")
        + b"\x09"
        + wire.text(b"\0\xff")
    )
    raw += b"".join(b"\x26" + wire.text(key) + wire.text(value) for key, value in pairs)
    with MqttSocket(node.port, V5) as reader, MqttSocket(node.port, V4) as old:
        for peer in (reader, old):
            peer.subscribe((name, 2))
        for qos in range(3):
            reader.publish(name, b"x", qos, raw=raw)
        for found in reader.messages(3):
            assert sorted(_properties(found.raw)) == sorted(_properties(raw))
            assert [each for each in _properties(found.raw) if each[0] == 0x26] == [
                each for each in _properties(raw) if each[0] == 0x26
            ]
        assert [each.payload for each in old.messages(3)] == [b"x"] * 3


def _properties(raw: bytes) -> list[bytes]:
    """One by one, of those that a message has."""
    found = []
    while raw:
        size = {0x01: 2, 0x02: 5, 0x23: 3}.get(raw[0], 0)
        if not size:
            size = 3 + int.from_bytes(raw[1:3], "big")
            if raw[0] == 0x26:
                size += 2 + int.from_bytes(raw[size : size + 2], "big")
        found.append(raw[:size])
        raw = raw[size:]
    return found


def test_the_expiry_is_the_time_that_is_left(node: Node, name: str) -> None:
    durable(node, V5, name).close()
    with durable(node, V5, name) as reader:
        reader.subscribe((name, 1))
    with MqttSocket(node.port, V5) as writer:
        writer.publish(name, b"short", raw=b"\x02\0\0\0\1")
        writer.publish(name, b"long", raw=b"\x02\0\0\0\x64")
        time.sleep(2.1)
        writer.publish(name, b"none")
    with durable(node, V5, name) as reader:
        long, none = reader.messages(2)
        assert (long.payload, none.payload, none.raw) == (b"long", b"none", b"")
        assert long.raw[:1] == b"\x02" and 90 <= int.from_bytes(long.raw[1:], "big") <= 98


def test_topic_aliases(node: Node, name: str) -> None:
    """All of 1 to the maximum; each connection has its own."""
    with durable(node, V5, name) as peer:
        peer.subscribe((f"{name}/+", 1))
        for alias in range(1, 33):
            peer.publish(f"{name}/{alias}", b"", raw=b"\x23" + alias.to_bytes(2, "big"))
        for alias in range(1, 33):
            peer.publish("", b"x", raw=b"\x23" + alias.to_bytes(2, "big"))
        topics = sorted(f"{name}/{alias}" for alias in range(1, 33))
        found = peer.messages(64)
        assert sorted(each.topic for each in found if each.payload) == topics
        assert not any(each.raw for each in found), "the broker was given no maximum, so it sends none"
    with durable(node, V5, name) as peer:
        peer.refused(0x82, wire.publish(V5, "", b"x", 1, raw=b"\x23\0\1"))


# --- messages to a client ---------------------------------------------------------------------------------------------


@both
def test_messages_under_way_are_sent_again(node: Node, version: int, name: str) -> None:
    """With DUP and their identifiers, in their order; those acknowledged are not; PUBREL for those with PUBREC."""
    with durable(node, version, name) as first:
        first.subscribe((name, 2))
        for number in range(6):
            first.publish(name, b"%d" % number, 1 + number % 2, number + 1)
        ids = [each.packet_id for each in first.messages(6)]
        first.send(wire.ack(PUBACK, ids[0]))
        assert first.ask(wire.ack(PUBREC, ids[1])) == wire.Answer(6, 2, ids[1].to_bytes(2, "big"))
        if version == V5:
            first.send(wire.ack(PUBACK, ids[2], b"\x80"))
            first.send(wire.ack(PUBREC, ids[3], b"\x80"))
        else:
            first.send(wire.ack(PUBACK, ids[2]))
            assert first.ask(wire.ack(PUBREC, ids[3])).kind == 6
            first.send(wire.ack(PUBCOMP, ids[3]))
        assert first.ask(wire.PINGREQ).kind == 13
    with durable(node, version, name) as again:
        assert again.answer() == wire.Answer(6, 2, ids[1].to_bytes(2, "big"))
        found = again.messages(2)
        assert [(each.payload, each.packet_id, each.dup, each.qos) for each in found] == [
            (b"4", ids[4], True, 1),
            (b"5", ids[5], True, 2),
        ]
        again.send(wire.ack(PUBCOMP, ids[1]), wire.ack(PUBACK, ids[4]))
        assert again.ask(wire.ack(PUBREC, ids[5])).kind == 6
        again.send(wire.ack(PUBCOMP, ids[5]))
        again.publish(name, b"last", 0)
        assert again.until(b"last") == []


@both
def test_nothing_is_sent_again_while_the_connection_lasts(node: Node, version: int, name: str) -> None:
    with durable(node, version, name) as peer:
        peer.subscribe((name, 2))
        for qos in (1, 2):
            peer.publish(name, b"x", qos)
        peer.messages(2)
        time.sleep(1.5)
        peer.publish(name, b"last", 0)
        assert peer.until(b"last") == []


def test_a_qos_2_message_that_was_sent_does_not_expire(node: Node, name: str) -> None:
    with durable(node, V5, name) as first:
        first.subscribe((name, 2))
        first.publish(name, b"x", 2, raw=b"\x02\0\0\0\1")
        sent = first.message()
    time.sleep(2.1)
    with durable(node, V5, name) as again:
        found = again.message()
        assert (found.payload, found.packet_id, found.dup) == (b"x", sent.packet_id, True)
        assert again.ask(wire.ack(PUBREC, sent.packet_id)).body == sent.packet_id.to_bytes(2, "big")
        again.send(wire.ack(PUBCOMP, sent.packet_id))


def test_qos_2_goes_on_for_a_message_that_has_expired_meanwhile(node: Node, name: str) -> None:
    with MqttSocket(node.port, V5) as peer:
        assert peer.ask(wire.publish(V5, name, b"x", 2, 5, raw=b"\x02\0\0\0\1")).kind == 5
        time.sleep(1.2)
        assert peer.ask(wire.publish(V5, name, b"x", 2, 5, raw=b"\x02\0\0\0\1", dup=True)).kind == 5
        assert peer.ask(wire.ack(PUBREL, 5)) == wire.Answer(7, 0, b"\0\5")


def test_receive_maximum_of_a_client(node: Node, name: str) -> None:
    """No more than it are under way; all else goes on meanwhile; a refusal makes room."""
    with MqttSocket(node.port, V5, raw=b"\x21\0\2") as peer:
        peer.subscribe((name, 2), (f"{name}-0", 0))
        for number in range(6):
            peer.publish(name, b"%d" % number, 1 + number % 2, number + 1)
        first, second = peer.messages(2)
        assert peer.ask(wire.PINGREQ).kind == 13
        peer.publish(f"{name}-0", b"QoS 0", 0)
        assert peer.message().payload == b"QoS 0"
        peer.send(wire.ack(PUBACK, first.packet_id))
        third = peer.message()
        assert peer.ask(wire.ack(PUBREC, second.packet_id)).kind == 6
        peer.publish(f"{name}-0", b"still", 0)
        assert peer.message().payload == b"still", "PUBREC is no end"
        peer.send(wire.ack(PUBCOMP, second.packet_id))
        assert peer.message().payload == b"3"
        peer.send(wire.ack(PUBACK, third.packet_id, b"\x80"))
        assert peer.message().payload == b"4"


@both
def test_identifiers_that_are_not_under_way(node: Node, version: int) -> None:
    with MqttSocket(node.port, version) as peer:
        peer.send(wire.ack(PUBACK, 77), wire.ack(PUBCOMP, 78))
        answer = peer.ask(wire.ack(PUBREC, 79))
        assert (answer.kind, answer.flags) == (6, 2)
        assert answer.body == (b"\0\x4f\x92" if version == V5 else b"\0\x4f")


def test_reasons_that_acknowledgements_do_not_have(node: Node) -> None:
    for first, reason in ((PUBACK, 1), (PUBREC, 0x92), (PUBREL, 0x80), (PUBCOMP, 0x10)):
        with MqttSocket(node.port, V5) as peer:
            peer.refused(0x81, wire.ack(first, 1, bytes((reason,))))


# --- retained ---------------------------------------------------------------------------------------------------------


@both
def test_retained_messages_are_replaced_and_deleted(node: Node, version: int, name: str) -> None:
    topic = f"{name}/t"

    def kept() -> list[bytes]:
        with MqttSocket(node.port, version) as reader:
            reader.subscribe((topic, 2))
            reader.publish(topic, b"last", 0)
            found = reader.until(b"last")
            assert all(each.retain for each in found)
            return [each.payload for each in found]

    with MqttSocket(node.port, version) as live, MqttSocket(node.port, version) as writer:
        live.subscribe((topic, 2))
        for qos in range(3):
            writer.publish(topic, b"%d" % qos, qos, retain=True)
            found = live.message()
            assert (found.payload, found.qos, found.retain) == (b"%d" % qos, qos, False)
        assert kept() == [b"2"]
        writer.publish(topic, b"passing", 1)
        writer.publish(topic, b"", 1)
        assert kept() == [b"2"]
        writer.publish(topic, b"", 1, retain=True)
        assert kept() == []
        writer.publish(topic, b"", 1, retain=True)
        assert kept() == []


@both
def test_a_retained_message_has_the_lesser_qos(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        for qos in range(3):
            peer.publish(f"{name}/{qos}", b"x", qos, retain=True)
        for granted in range(3):
            peer.subscribe((f"{name}/+", granted))
            found = {each.topic[-1]: each.qos for each in peer.messages(3)}
            assert found == {str(qos): min(qos, granted) for qos in range(3)}


@pytest.mark.parametrize(("handling", "counts"), [(0, (1, 1)), (NEW_ONLY, (1, 0)), (NEVER, (0, 0))])
def test_retain_handling(node: Node, handling: int, counts: tuple[int, int], name: str) -> None:
    with MqttSocket(node.port, V5) as peer:
        peer.publish(name, b"kept", retain=True)
        for wanted in counts:
            peer.subscribe((name, handling | 1))
            peer.publish(name, b"last", 1)
            assert [each.payload for each in peer.until(b"last")] == [b"kept"] * wanted


def test_retain_as_published(node: Node, name: str) -> None:
    with MqttSocket(node.port, V5) as plain, MqttSocket(node.port, V5) as kept:
        plain.subscribe((name, 1))
        kept.subscribe((name, AS_PUBLISHED | 1))
        for retain in (True, False):
            plain.publish(name, b"x", retain=retain)
        assert [each.retain for each in plain.messages(2)] == [False, False]
        assert [each.retain for each in kept.messages(2)] == [True, False]
