"""Statements of both MQTT standards about SUBSCRIBE, UNSUBSCRIBE and topics, at a real node.

`mqtt_statements.txt` says which test shows which statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import PUBACK, PUBCOMP, PUBREC, V4, V5, VERSIONS
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import Node, running
from tests.system.streams import lives

pytestmark = pytest.mark.system

WORKERS = 2
both = pytest.mark.parametrize("version", VERSIONS)
NO_LOCAL = 0x04
_numbers = count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("filters") / "data", workers=WORKERS) as node:
        yield node
        assert lives(node)[1] == ["0"] * WORKERS, "a worker has ended by itself"


@pytest.fixture
def name() -> str:
    """The name of a topic and a client that no other test has."""
    return f"name{next(_numbers)}"


# --- SUBSCRIBE --------------------------------------------------------------------------------------------------------


@both
def test_each_filter_has_its_reason_in_order(node: Node, version: int, name: str) -> None:
    failed = 0x80 if version == V4 else 0x8F
    with MqttSocket(node.port, version) as peer:
        filters = [(f"{name}/a", 0), ("bad/#/x", 1), (f"{name}/b", 2), (f"{name}/+", 1), (f"{name}/a", 2)]
        answer = peer.ask(wire.subscribe(version, 0xABCD, *filters))
        assert answer.kind == 9 and answer.body[:2] == b"\xab\xcd"
        assert list(answer.body[-5:]) == [0, failed, 2, 1, 2]
        assert len(answer.body) == (8 if version == V5 else 7)


@both
def test_the_same_filter_again_replaces_the_subscription(node: Node, version: int, name: str) -> None:
    """Its retained messages come again, and no message is lost or comes twice."""
    with MqttSocket(node.port, version) as peer, MqttSocket(node.port, version) as writer:
        peer.publish(name, b"kept", retain=True)
        peer.subscribe((name, 0))
        assert (peer.message().payload, peer.subscribe((name, 2))) == (b"kept", [2])
        found = peer.message()
        assert (found.payload, found.retain, found.qos) == (b"kept", True, 1)
        for number in range(50):
            writer.publish(name, b"%d" % number, 1)
            if number % 10 == 5:
                peer.send(wire.subscribe(version, 9, (name, 1)))
        live = [each for each in peer.until(b"49") if not each.retain]
        assert [int(each.payload) for each in live] == list(range(49)) and {each.qos for each in live} == {1}


@both
def test_overlapping_filters_respect_the_greatest_qos(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        for number, (topic_filter, qos) in enumerate([(f"{name}/#", 0), (f"{name}/a", 2), (f"{name}/+", 1)]):
            peer.subscribe((topic_filter, qos), raw=bytes((0x0B, number + 1)) if version == V5 else b"")
        peer.publish(f"{name}/a", b"x", 2)
        found = peer.messages(3)
        assert sorted(each.qos for each in found) == [0, 1, 2]
        if version == V5:
            assert {(each.qos, each.raw) for each in found} == {(0, b"\x0b\1"), (2, b"\x0b\2"), (1, b"\x0b\3")}


@both
def test_messages_have_the_lesser_qos(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        for granted in range(3):
            assert peer.subscribe((name, granted)) == [granted]
            for qos in range(3):
                peer.publish(name, b"x", qos)
            found = peer.messages(3)
            assert [each.qos for each in found] == [min(qos, granted) for qos in range(3)]


def test_no_local(node: Node, name: str) -> None:
    with MqttSocket(node.port, V5, "mine") as peer, MqttSocket(node.port, V5) as other:
        peer.subscribe((name, NO_LOCAL | 1))
        peer.publish(name, b"mine")
        other.publish(name, b"theirs")
        assert peer.message().payload == b"theirs"


FAULTY: dict[str, tuple[Callable[[int], bytes], int]] = {
    "no filter": (lambda v: wire.subscribe(v, 1), 0x82),
    "no filter to unsubscribe": (lambda v: wire.unsubscribe(v, 1), 0x82),
    "QoS 3": (lambda v: wire.subscribe(v, 1, ("a", 3)), 0x81),
    "reserved options": (lambda v: wire.subscribe(v, 1, ("a", 0xC0)), 0x81),
    "an empty filter": (lambda v: wire.subscribe(v, 1, ("", 0)), 0x81),
    "an empty filter to unsubscribe": (lambda v: wire.unsubscribe(v, 1, ""), 0x81),
    "identifier 0": (lambda v: wire.subscribe(v, 0, ("a", 0)), 0x82),
    "identifier 0 to unsubscribe": (lambda v: wire.unsubscribe(v, 0, "a"), 0x82),
    "half a filter": (lambda v: wire.packet(0x82, b"\0\1" + wire.properties(v) + b"\0\5a"), 0x81),
    "no options": (lambda v: wire.packet(0x82, b"\0\1" + wire.properties(v) + b"\0\1a"), 0x81),
}


@both
@pytest.mark.parametrize("what", FAULTY)
def test_faulty_packets(node: Node, version: int, what: str) -> None:
    made, reason = FAULTY[what]
    with MqttSocket(node.port, version) as peer:
        peer.send(made(version))
        answers = peer.rest()
        assert [(each.kind, wire.reason(each) in (reason, 0x81, 0x82)) for each in answers] == (
            [(14, True)] if version == V5 else []
        )


def test_options_of_version_5(node: Node) -> None:
    """In MQTT 3.1.1 they are reserved."""
    for options in (0x04, 0x08, 0x10, 0x20):
        with MqttSocket(node.port, V4) as peer:
            peer.refused(0, wire.subscribe(V4, 1, ("a", options)))
        with MqttSocket(node.port, V5) as peer:
            assert peer.subscribe(("a", options)) == [0]
    for packet in (
        wire.subscribe(V5, 1, ("$share/g/a", 4)),
        wire.subscribe(V5, 1, ("a", 0), raw=b"\x0b\0"),
        wire.subscribe(V5, 1, ("a", 0x30)),
    ):
        with MqttSocket(node.port, V5) as peer:
            peer.refused(0x82, packet)


# --- UNSUBSCRIBE ------------------------------------------------------------------------------------------------------


@both
def test_unsubscribing(node: Node, version: int, name: str) -> None:
    """Filters are compared character by character; each has its reason in order, also one that nobody had."""
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((f"{name}/+", 1), (f"{name}/a", 1), (f"{name}/b", 1))
        answer = peer.ask(wire.unsubscribe(version, 0x1234, f"{name}/+", f"{name}/A", f"{name}/b", f"{name}/#"))
        assert answer == wire.Answer(11, 0, b"\x12\x34" + (b"\0\0\x11\0\x11" if version == V5 else b""))
        for topic in ("c", "b", "a"):
            peer.publish(f"{name}/{topic}", topic.encode())
        assert peer.message().payload == b"a"
        peer.publish(f"{name}/a", b"last")
        assert peer.until(b"last") == []


@both
def test_what_has_begun_is_finished_after_unsubscribing(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((name, 2))
        for qos in (1, 2):
            peer.publish(name, b"x", qos)
        first, second = peer.messages(2)
        assert peer.ask(wire.unsubscribe(version, 5, name)).kind == 11
        peer.send(wire.ack(PUBACK, first.packet_id))
        assert peer.ask(wire.ack(PUBREC, second.packet_id)) == wire.Answer(6, 2, second.packet_id.to_bytes(2, "big"))
        peer.send(wire.ack(PUBCOMP, second.packet_id))
        assert peer.ask(wire.PINGREQ).kind == 13


# --- topics and filters -----------------------------------------------------------------------------------------------

MATCHES = [
    ("sport/tennis/player1/#", ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/a/b"]),
    ("sport/#", ["sport", "sport/", "sport/a/b"]),
    ("sport/tennis/+", ["sport/tennis/player1", "sport/tennis/player2"]),
    ("sport/+", ["sport/"]),
    ("+/+", ["/finance", "a/b"]),
    ("/+", ["/finance"]),
    ("+", ["finance", "Accounts payable"]),
    ("+/tennis/#", ["sport/tennis", "/tennis/x"]),
    ("/", ["/"]),
    ("//+", ["//a", "//"]),
    ("a b/*/|", ["a b/*/|"]),
    ("a+b", []),
]
UNMATCHED = [
    ("sport/+", "sport"),
    ("sport/tennis/+", "sport/tennis/player1/ranking"),
    ("+", "/finance"),
    ("finance", "/finance"),
    ("/finance", "finance"),
    ("ACCOUNTS", "Accounts"),
    ("sport", "sport/"),
    ("sport/", "sport"),
    ("e\u0301", "\u00e9"),
    ("a//b", "a/b"),
]


@both
@pytest.mark.parametrize(("topic_filter", "topics"), MATCHES, ids=[each[0] for each in MATCHES])
def test_what_a_filter_matches(node: Node, version: int, topic_filter: str, topics: list[str]) -> None:
    """The standard's own examples, without a rule of topics."""
    with MqttSocket(node.port, version) as peer, MqttSocket(node.port, version) as writer:
        reasons = peer.subscribe((topic_filter, 1))
        assert reasons == ([1] if topics else [0x80 if version == V4 else 0x8F])
        for topic in topics:
            assert writer.publish(topic, b"x") == 0
        found: list[str] = []
        while len(found) < len(topics):  # retained messages of other tests come too
            found += [each.topic for each in peer.messages(1) if not each.retain]
        assert sorted(found) == sorted(topics)


@both
def test_what_a_filter_does_not_match(node: Node, version: int) -> None:
    for topic_filter, topic in UNMATCHED:
        with MqttSocket(node.port, version) as peer, MqttSocket(node.port, version) as writer:
            peer.subscribe((topic_filter, 1), ("the end", 1))
            writer.publish(topic, b"x", 1)
            writer.publish("the end", b"last", 1)
            assert [each for each in peer.until(b"last") if not each.retain] == [], topic_filter


@both
@pytest.mark.parametrize("topic_filter", ["a/#/b", "a#", "a/b#", "a+", "a/+b", "+b/c", "##", "#/"])
def test_wildcards_stand_alone(node: Node, version: int, topic_filter: str) -> None:
    with MqttSocket(node.port, version) as peer:
        assert peer.subscribe((topic_filter, 1)) == [0x80 if version == V4 else 0x8F]


@both
def test_wildcards_do_not_match_topics_of_the_broker(node: Node, version: int, name: str) -> None:
    """There are such streams, for instance those of retained messages and sessions."""
    with MqttSocket(
        node.port, version, "lasting", clean=False, raw=b"\x11\0\0\0\x64" if version == V5 else b""
    ) as peer:
        peer.publish(name, b"kept", retain=True)
        peer.subscribe(("#", 1), ("+/#", 1), ("+/+", 1))
        peer.publish(name, b"last")
        assert not [each.topic for each in peer.until(b"last") if each.topic.startswith("$")]


@both
def test_topics_are_not_changed(node: Node, version: int, name: str) -> None:
    topics = [f"{name}/{each}" for each in ("e\u0301", "\u00e9", "A", "a", " ", "  ", "x/", "x//y", "\N{SNOWMAN}", "*")]
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((f"{name}/#", 0))
        for topic in topics:
            peer.publish(topic, topic.encode())
        found = peer.messages(len(topics))
        assert sorted(each.topic for each in found) == sorted(topics)
        assert all(each.topic.encode() == each.payload for each in found)


@both
def test_the_topic_of_a_message_matches_its_filter(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        peer.subscribe((f"{name}/+/x", 0), (f"{name}/b", 0))
        for topic in ("a/x", "a/y", "b", "b/x/y", "c"):
            peer.publish(f"{name}/{topic}", b"x")
        assert sorted(each.topic for each in peer.messages(2)) == [f"{name}/a/x", f"{name}/b"]
        peer.publish(f"{name}/b", b"last")
        assert peer.until(b"last") == []
