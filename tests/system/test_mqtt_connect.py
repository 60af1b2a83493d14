"""Statements of both MQTT standards about strings, CONNECT, CONNACK, sessions, wills and DISCONNECT, at a real node.

`mqtt_statements.txt` says which test shows which statement.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS
from tests.system.mqtt_socket import CONNACK, DISCONNECT, MqttSocket
from tests.system.node import Node, running
from tests.system.streams import lives

pytestmark = pytest.mark.system

WORKERS = 2
both = pytest.mark.parametrize("version", VERSIONS)
LASTING = b"\x11\0\0\0\x64"
"""A Session Expiry Interval of 100 s."""
NOT_UTF_8 = {"no UTF-8": b"a\xff", "a surrogate": b"\xed\xa0\x80", "U+0000": b"a\0b", "overlong": b"\xc0\x80"}
_numbers = count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("connect") / "data", workers=WORKERS) as node:
        yield node
        assert lives(node)[1] == ["0"] * WORKERS, "a worker has ended by itself"


@pytest.fixture
def name() -> str:
    """The name of a topic and a client that no other test has."""
    return f"name{next(_numbers)}"


def durable(node: Node, version: int, client_id: str, **more: Any) -> MqttSocket:
    raw = LASTING if version == V5 else b""
    return MqttSocket(node.port, version, client_id, clean=False, raw=raw, **more)


def not_accepted(node: Node, version: int, code: int, reason: int, connect: bytes, behind: bytes = b"") -> None:
    """This CONNECT gets this return code, or no answer if that is 0, in MQTT 5 this reason, and the connection ends."""
    with MqttSocket(node.port, version, opened=False) as peer:
        peer.send(connect, behind)
        answers = peer.rest()
    if version == V4:
        assert answers == ([wire.Answer(CONNACK, 0, bytes((0, code)))] if code else [])
    else:
        assert [(each.kind, each.body[:2]) for each in answers] == [(CONNACK, bytes((0, reason)))]


# --- strings ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("text", NOT_UTF_8.values(), ids=NOT_UTF_8)
def test_strings_of_connect_that_are_not_utf_8(node: Node, version: int, text: bytes) -> None:
    user = wire.connect(version, user="xxxx", password=b"")
    user = user.replace(wire.text(b"xxxx"), wire.text(text.ljust(4, b"x")))
    will = wire.connect(version, will=("xxxx", b"", 0)).replace(wire.text(b"xxxx"), wire.text(text.ljust(4, b"x")))
    for connect in (wire.connect(version, text), user, will):
        not_accepted(node, version, 0, 0x81, connect)


@both
@pytest.mark.parametrize("text", NOT_UTF_8.values(), ids=NOT_UTF_8)
def test_strings_of_other_packets_that_are_not_utf_8(node: Node, version: int, text: bytes) -> None:
    packets = [
        wire.publish(version, text, b"x", 1),
        wire.publish(version, text, b"x"),
        wire.subscribe(version, 1, (text, 0)),
        wire.unsubscribe(version, 1, text),
    ]
    if version == V5:
        field, plain = wire.text(text), wire.text("a")
        faulty = (b"\x26" + field + plain, b"\x26" + plain + field, b"\x03" + field, b"\x08" + field)
        packets += [wire.publish(version, "a", b"x", 1, raw=raw) for raw in faulty]
        packets += [wire.subscribe(version, 1, ("a", 0), raw=faulty[0])]
    for packet in packets:
        with MqttSocket(node.port, version) as peer:
            peer.refused(0x81, packet)


@both
def test_a_byte_order_mark_is_a_character(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as peer:
        topics = [name, f"{name}/x\ufeff", f"{name}/x"]
        peer.subscribe((f"{name}/+", 0))
        for topic in topics:
            peer.publish(topic, topic.encode())
        assert sorted(each.topic for each in peer.messages(2)) == sorted(topics[1:])


def test_lengths_have_no_more_bytes_than_they_need(node: Node) -> None:
    for version in VERSIONS:
        with MqttSocket(node.port, version) as peer:
            peer.refused(0x81, b"\xc0\x80\0")
        with MqttSocket(node.port, version) as peer:
            peer.refused(0x81, b"\xc0\xff\xff\xff\xff\x01")
    with MqttSocket(node.port, V5) as peer:
        peer.refused(0x81, wire.packet(0x30, b"\0\1a\x80\0x"))


# --- CONNECT ----------------------------------------------------------------------------------------------------------


@both
def test_the_first_packet_is_connect(node: Node, version: int) -> None:
    for packet in (wire.publish(version, "a", b"x"), wire.PINGREQ, wire.subscribe(version, 1, ("a", 0))):
        with MqttSocket(node.port, version, opened=False) as peer:
            peer.send(packet, wire.connect(version))
            assert peer.rest() == []


@both
def test_a_second_connect(node: Node, version: int) -> None:
    with MqttSocket(node.port, version) as peer:
        peer.refused(0x82, wire.connect(version))


@both
def test_names_and_levels_of_the_protocol(node: Node, version: int) -> None:
    with MqttSocket(node.port, version, opened=False) as peer:
        peer.send(wire.connect(version, name=b"MQTX"))
        assert peer.rest() == []
    for level, answer in ((3, b"\0\1"), (2, b"\0\1"), (6, b"\0\x84")):
        with MqttSocket(node.port, version, opened=False) as peer:
            peer.send(wire.connect(level))
            (found,) = peer.rest()
            assert found.kind == CONNACK and found.body.startswith(answer)


FLAGS = {
    "the reserved flag": 0x03,
    "a will's QoS without a will": 0x0A,
    "a will's QoS of 3": 0x1E,
    "a will's RETAIN without a will": 0x22,
}


@both
@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_flags_of_connect(node: Node, version: int, flags: int) -> None:
    will = wire.properties(version) + wire.text("w") + wire.text("x") if flags & 4 else b""
    made = wire.connect(version, flags=flags)
    body = made[2:] + will
    not_accepted(node, version, 0, 0x81, wire.packet(0x10, body))


@both
def test_fields_of_connect_are_those_of_its_flags(node: Node, version: int) -> None:
    """In their order; a field that is missing or too much is malformed."""
    fields: dict[str, Any] = {"will": ("w", b"gone", 1), "user": "u", "password": b"p"}
    MqttSocket(node.port, version, "all", **fields).close()
    missing = [wire.connect(version, flags=flags) for flags in (0x06, 0x82, 0xC2)]
    too_much = [wire.connect(version, flags=0x02, **{key: fields[key]}) for key in ("user", "will")]
    for connect in (*missing, *too_much):
        not_accepted(node, version, 0, 0x81, connect)


def test_a_password_without_a_user_name(node: Node) -> None:
    """Only MQTT 5 allows it."""
    not_accepted(node, V4, 0, 0, wire.connect(V4, password=b"x"))
    MqttSocket(node.port, V5, password=b"x").close()


@both
def test_client_identifiers(node: Node, version: int, name: str) -> None:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for client_id in (letters[:23], letters[23:46], letters[46:], "x"):
        with MqttSocket(node.port, version, client_id) as peer:
            assert b"\x12" not in peer.connack.body[3:4]
    with MqttSocket(node.port, version, "") as one, MqttSocket(node.port, version, "") as other:
        assert one.ask(wire.PINGREQ).kind == other.ask(wire.PINGREQ).kind == 13
        if version == V5:
            assert b"\x12" in one.connack.body and one.connack.body != other.connack.body
    if version == V4:
        not_accepted(node, version, 2, 0, wire.connect(version, "", clean=False))
    not_accepted(node, version, 2, 0x85, wire.connect(version, "x" * 2_000))


@both
def test_nothing_behind_a_connect_that_is_refused_is_processed(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as reader:
        reader.subscribe((name, 0))
        behind = wire.publish(version, name, b"not this")
        not_accepted(node, version, 2, 0x85, wire.connect(version, "x" * 2_000), behind)
        reader.publish(name, b"this")
        assert reader.message().payload == b"this"


@both
def test_connack_comes_first_and_once(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version, opened=False) as peer:
        peer.send(wire.connect(version), wire.PINGREQ, wire.publish(version, name, b"x", 1, 7), wire.DISCONNECT)
        answers = peer.rest()
        assert [each.kind for each in answers] == [2, 13, 4] and answers[0].body[:2] == b"\0\0"


@both
def test_another_connection_of_the_same_client(node: Node, version: int, name: str) -> None:
    for _ in range(4):  # some of them at the other worker
        with MqttSocket(node.port, version, name) as old, MqttSocket(node.port, version, name) as new:
            assert [wire.reason(each) for each in old.rest()] == ([0x8E] if version == V5 else [])
            assert new.ask(wire.PINGREQ).kind == 13


# --- sessions ---------------------------------------------------------------------------------------------------------


@both
def test_session_present(node: Node, version: int, name: str) -> None:
    with durable(node, version, name) as first:
        assert not first.present
        first.subscribe((name, 1))
    with durable(node, version, name) as again:
        assert again.present
    with MqttSocket(node.port, version, name) as clean:
        assert not clean.present
    with durable(node, version, name) as after:
        assert not after.present, "a clean start has ended the session"
        after.publish(name, b"x")
        assert after.ask(wire.PINGREQ).kind == 13 and not after._messages


@both
def test_messages_that_come_while_the_client_is_away(node: Node, version: int, name: str) -> None:
    durable(node, version, name).close()
    with durable(node, version, name) as first:
        first.subscribe((f"{name}/+", 2))
    with MqttSocket(node.port, version) as writer:
        for number in range(6):
            writer.publish(f"{name}/x", b"%d" % number, 1 + number % 2, number + 1)
    with durable(node, version, name) as again:
        found = again.messages(6)
        assert [(each.payload, each.qos) for each in found] == [(b"%d" % n, 1 + n % 2) for n in range(6)]
        assert not any(each.dup for each in found)


@both
def test_an_identifier_names_the_session(node: Node, version: int, name: str) -> None:
    with durable(node, version, name) as first:
        first.subscribe((name, 1))
    with durable(node, version, name + "-other") as other:
        assert not other.present


def test_a_session_without_an_expiry_ends_with_its_connection(node: Node, name: str) -> None:
    """In MQTT 5; and DISCONNECT may give it another time, but not if CONNECT had none."""
    MqttSocket(node.port, V5, name, clean=False).close()
    with durable(node, V5, name) as peer:
        assert not peer.present
        peer.send(wire.packet(0xE0, b"\0\5\x11\0\0\0\0"))
        assert peer.rest() == []
    with MqttSocket(node.port, V5, name, clean=False) as peer:
        assert not peer.present
        peer.refused(0x82, wire.packet(0xE0, b"\0\5\x11\0\0\0\1"))


def test_a_session_ends_when_its_expiry_is_over(node: Node, name: str) -> None:
    MqttSocket(node.port, V5, name, clean=False, raw=b"\x11\0\0\0\1").close()
    time.sleep(1.5)
    with durable(node, V5, name) as peer:
        assert not peer.present


@both
def test_retained_messages_belong_to_no_session(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version, name) as peer:
        peer.publish(name, b"kept", retain=True)
    with MqttSocket(node.port, version) as reader:
        reader.subscribe((name, 0))
        assert reader.message().payload == b"kept"


# --- wills ------------------------------------------------------------------------------------------------------------


def ended(peer: MqttSocket, how: bytes) -> None:
    """The connection ends: with these packets, or without one."""
    if how:
        peer.send(how)
        peer.rest()
    peer.close()


@both
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_is_published_with_its_qos(node: Node, version: int, qos: int, name: str) -> None:
    raw = (
        b"\x03" + wire.text("t") + b"\x26" + wire.text("b") + wire.text("1") + b"\x26" + wire.text("a") + wire.text("")
    )
    with MqttSocket(node.port, version) as reader:
        reader.subscribe((name, 2))
        will_raw = raw if version == V5 else b""
        ended(MqttSocket(node.port, version, will=(name, b"gone", qos), will_raw=will_raw), b"")
        found = reader.message()
        assert (found.payload, found.qos, found.retain) == (b"gone", qos, False)
        assert found.raw == will_raw, "the properties of the will, in their order"


@both
def test_a_will_is_published_for_a_fault_and_not_for_disconnect(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as reader:
        reader.subscribe((name, 1))
        ended(MqttSocket(node.port, version, will=(name, b"not this", 1)), wire.DISCONNECT)
        ended(MqttSocket(node.port, version), b"")  # none
        ended(MqttSocket(node.port, version, will=(name, b"for a fault", 1)), wire.packet(0xC1))
        assert reader.message().payload == b"for a fault"
        if version == V5:
            ended(MqttSocket(node.port, version, will=(name, b"asked for", 1)), wire.packet(0xE0, b"\4"))
            assert reader.message().payload == b"asked for"
        reader.publish(name, b"last")
        assert reader.until(b"last") == []


@both
def test_a_will_may_be_retained(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as reader:
        reader.subscribe((f"{name}/+", 1))
        for retained in (False, True):
            made = MqttSocket(node.port, version, will=(f"{name}/{retained}", b"x", 1), will_retain=retained)
            ended(made, b"")
        assert len(reader.messages(2)) == 2
    with MqttSocket(node.port, version) as late:
        late.subscribe((f"{name}/False", 0), (f"{name}/True", 0))
        found = late.message()
        assert (found.topic, found.retain) == (f"{name}/True", True)
        late.publish(f"{name}/False", b"last")
        assert late.until(b"last") == []


def test_a_delayed_will(node: Node, name: str) -> None:
    """It waits; it comes with the end of its session if that is earlier; and not if the client is back before."""
    delay = b"\x18\0\0\0\x02"
    with MqttSocket(node.port, V5) as reader:
        reader.subscribe((f"{name}/#", 1))
        began_s = time.monotonic()
        durable(node, V5, f"{name}a", will=(f"{name}/a", b"late", 1), will_raw=delay).close()
        durable(node, V5, f"{name}b", will=(f"{name}/a", b"not this", 1), will_raw=delay).close()
        durable(node, V5, f"{name}b").close()
        MqttSocket(node.port, V5, will=(f"{name}/a", b"soon", 1), will_raw=delay).close()
        assert reader.message().payload == b"soon" and time.monotonic() - began_s < 2
        assert reader.message().payload == b"late" and time.monotonic() - began_s >= 2
        reader.publish(f"{name}/a", b"last")
        assert reader.until(b"last") == []


# --- keep alive, PINGREQ, DISCONNECT ----------------------------------------------------------------------------------


@both
def test_keep_alive(node: Node, version: int) -> None:
    with MqttSocket(node.port, version, keep_alive_s=1) as peer, MqttSocket(node.port, version) as other:
        began_s = time.monotonic()
        time.sleep(0.9)
        assert peer.ask(wire.PINGREQ).kind == 13
        assert [wire.reason(each) for each in peer.rest()] == ([0x8D] if version == V5 else [])
        assert time.monotonic() - began_s >= 2.3
        assert other.ask(wire.PINGREQ).kind == 13, "a keep alive of 0 ends nothing"


@both
def test_nothing_is_read_behind_disconnect(node: Node, version: int, name: str) -> None:
    with MqttSocket(node.port, version) as reader, MqttSocket(node.port, version) as peer:
        reader.subscribe((name, 0))
        peer.send(wire.DISCONNECT, wire.publish(version, name, b"not this", 1), wire.PINGREQ)
        assert peer.rest() == []
        reader.publish(name, b"this")
        assert reader.message().payload == b"this"


def test_reasons_of_disconnect(node: Node) -> None:
    for body, reason in ((b"\x01", 0x82), (b"\x8b", 0x82), (b"\0\1\1", 0x81)):
        with MqttSocket(node.port, V5) as peer:
            peer.send(wire.packet(0xE0, body))
            (answer,) = peer.rest()
            assert answer.kind == DISCONNECT and wire.reason(answer) in (reason, 0x81)
            assert b"\x11" not in answer.body[2:3], "a server gives no Session Expiry Interval"
    with MqttSocket(node.port, V4) as peer:
        peer.refused(0, wire.packet(0xE0, b"\0"))


FIXED_FLAGS = {
    "CONNECT": 0x11,
    "PUBACK": 0x41,
    "PUBREC": 0x52,
    "PUBREL": 0x60,
    "PUBCOMP": 0x72,
    "SUBSCRIBE": 0x80,
    "UNSUBSCRIBE": 0xA0,
    "PINGREQ": 0xC1,
    "DISCONNECT": 0xE1,
    "AUTH": 0xF1,
    "reserved": 0x00,
}


@both
@pytest.mark.parametrize("first", FIXED_FLAGS.values(), ids=FIXED_FLAGS)
def test_flags_in_the_fixed_header(node: Node, version: int, first: int) -> None:
    bodies = {8: b"\0\1" + wire.properties(version) + b"\0\1a\0", 0xA: b"\0\1" + wire.properties(version) + b"\0\1a"}
    body = bodies.get(first >> 4, b"\0\1" if 4 <= first >> 4 <= 7 else b"")
    with MqttSocket(node.port, version) as peer:
        peer.refused(0x81, wire.packet(first, body))


@both
def test_packets_of_a_server(node: Node, version: int) -> None:
    for first, body in ((0x20, b"\0\0"), (0x90, b"\0\1\0"), (0xB0, b"\0\1"), (0xD0, b"")):
        with MqttSocket(node.port, version) as peer:
            peer.refused(0x82, wire.packet(first, body))


@both
def test_other_connections_notice_nothing_of_a_fault(node: Node, version: int) -> None:
    with MqttSocket(node.port, version) as other:
        for _ in range(4):
            with MqttSocket(node.port, version) as peer:
                peer.refused(0x81, wire.packet(0xC1))
        assert other.ask(wire.PINGREQ).kind == 13


# --- the limits of a client -------------------------------------------------------------------------------------------


def test_packets_are_no_larger_than_the_client_takes(node: Node, name: str) -> None:
    """A message that is counts as sent; texts are left out; an answer that cannot be shortened ends the connection."""
    with MqttSocket(node.port, V5, raw=b"\x27\0\0\0\x40") as peer:
        peer.subscribe((name, 1))
        for size in (10, 100, 11):
            peer.publish(name, bytes(size))
        assert [len(each.payload) for each in peer.messages(2)] == [10, 11]
        peer.refused(0x95, wire.subscribe(V5, 1, *[("a", 0)] * 70))
    with MqttSocket(node.port, V5, "short", raw=b"\x27\0\0\0\x20") as peer:
        peer.send(wire.packet(0xC1))
        (answer,) = peer.rest()
        assert answer.body == b"\x81\0"


def test_without_request_problem_information_acknowledgements_have_no_texts(node: Node, name: str) -> None:
    with MqttSocket(node.port, V5, raw=b"\x17\0") as peer:
        assert peer.ask(wire.subscribe(V5, 1, ("a/#/b", 0), (name, 0))).body == b"\0\1\0\x8f\0"
        assert peer.ask(wire.unsubscribe(V5, 2, name)).body == b"\0\2\0\0"
        assert peer.ask(wire.publish(V5, "$SYS/x", b"x", 1, 3)).body in (b"\0\3\x87", b"\0\3\x87\0")
        assert peer.ask(wire.publish(V5, "$SYS/x", b"x", 2, 4)).body in (b"\0\4\x87", b"\0\4\x87\0")
        assert peer.ask(wire.ack(wire.PUBREL, 9)).body in (b"\0\x09\x92", b"\0\x09\x92\0")


def test_connack_has_no_response_information(node: Node) -> None:
    for raw in (b"", b"\x19\0"):
        with MqttSocket(node.port, V5, raw=raw) as peer:
            assert b"\x1a" not in peer.connack.body[2:]


def test_auth_without_a_method(node: Node) -> None:
    with MqttSocket(node.port, V5) as peer:
        assert b"\x15" not in peer.connack.body[2:]
        peer.refused(0x82, wire.packet(0xF0, b"\x18\0"))
    with MqttSocket(node.port, V4) as peer:
        peer.refused(0, wire.packet(0xF0))


def test_a_method_that_is_not_known(node: Node) -> None:
    not_accepted(node, V5, 0, 0x8C, wire.connect(V5, raw=b"\x15" + wire.text("no such method")))


@pytest.mark.parametrize("raw", [b"\x21\0\0", b"\x27\0\0\0\0", b"\x17\2", b"\x11\0\0\0\1\x11\0\0\0\1", b"\x0b\1"])
def test_properties_that_connect_may_not_have(node: Node, raw: bytes) -> None:
    reason = 0x81 if raw == b"\x0b\1" else 0x82
    with MqttSocket(node.port, V5, opened=False) as peer:
        peer.send(wire.connect(V5, raw=raw))
        (answer,) = peer.rest()
        assert answer.kind == CONNACK and answer.body[1] in (reason, 0x81, 0x82)
