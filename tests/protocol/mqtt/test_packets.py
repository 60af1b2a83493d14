"""Packets of a client: parsed as another implementation made them, and refused as in the standard."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.protocol.mqtt import packets as p
from tailrace.protocol.mqtt.codec import MqttCodec
from tailrace.protocol.mqtt.properties import PacketType, PropertyId
from tailrace.protocol.mqtt.reasons import PacketError, Reason
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5, VERSIONS

TEXT = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20)
PAIRS = st.lists(st.tuples(TEXT, TEXT), max_size=3)
FOUR = st.integers(1, 0xFFFFFFFF)


def parse(data: bytes, version: int = 0) -> Any:
    """The only packet in these bytes. Raises PacketError."""
    codec = MqttCodec(1 << 20)
    codec.version = version
    (found,) = codec.feed(data)
    if isinstance(found, PacketError):
        raise found
    return found


def reason_for(data: bytes, version: int) -> Reason:
    with pytest.raises(PacketError) as caught:
        parse(data, version)
    return caught.value.reason


# --- by another implementation ----------------------------------------------------------------------------------------


@given(st.data())
def test_connect_of_another_implementation(data: st.DataObject) -> None:
    draw = data.draw
    will = mqtt5.Will("will/topic", payload=draw(st.binary(max_size=9)), qos=mqtt5.QoS(draw(st.integers(0, 2))))
    made = mqtt5.ConnectPacket(
        draw(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=9)),
        username=draw(st.none() | TEXT),
        password=draw(st.none() | st.binary(max_size=9)),
        clean_start=draw(st.booleans()),
        will=draw(st.none() | st.just(will)),
        keep_alive=draw(st.integers(0, 0xFFFF)),
        receive_max=draw(st.integers(1, 0xFFFF)),
        max_packet_size=draw(st.none() | FOUR),
        user_properties=draw(PAIRS),
    )
    found = parse(made.write())
    assert isinstance(found, p.ConnectPacket) and found.version == V5
    assert (found.client_id.decode(), found.clean, found.keep_alive_s, found.password) == (
        made.client_id,
        made.clean_start,
        made.keep_alive,
        made.password,
    )
    assert (None if found.user is None else found.user.decode()) == made.username
    assert found.properties.get(PropertyId.RECEIVE_MAXIMUM, 0xFFFF) == made.receive_max
    assert found.properties.get(PropertyId.MAXIMUM_PACKET_SIZE) == made.max_packet_size
    if found.will is not None:
        assert made.will is not None
        assert (found.will.topic, found.will.payload, found.will.qos) == (b"will/topic", will.payload, will.qos)


@given(st.data())
def test_publish_of_another_implementation(data: st.DataObject) -> None:
    draw = data.draw
    qos = draw(st.integers(0, 2))
    made = mqtt5.PublishPacket(
        draw(TEXT),
        draw(st.binary(max_size=99)),
        qos=mqtt5.QoS(qos),
        packet_id=draw(st.integers(1, 0xFFFF)) if qos else None,
        retain=draw(st.booleans()),
        duplicate=draw(st.booleans()) if qos else False,
        content_type=draw(st.none() | TEXT),
        response_topic=draw(st.none() | TEXT),
        correlation_data=draw(st.none() | st.binary(max_size=9)),
        message_expiry_interval=draw(st.none() | FOUR),
        topic_alias=draw(st.none() | st.integers(1, 9)),
        user_properties=draw(PAIRS),
    )
    found = parse(made.write(), V5)
    assert isinstance(found, p.PublishPacket)
    assert (found.topic.decode(), found.payload, found.qos, found.packet_id) == (
        made.topic,
        made.payload,
        qos,
        made.packet_id or 0,
    )
    assert (found.retain, found.dup) == (made.retain, made.duplicate)
    kept = found.properties
    assert kept.get(PropertyId.CORRELATION_DATA) == made.correlation_data
    assert kept.get(PropertyId.MESSAGE_EXPIRY) == made.message_expiry_interval
    assert kept.get(PropertyId.TOPIC_ALIAS) == made.topic_alias
    pairs = [(name.decode(), value.decode()) for name, value in kept.get(PropertyId.USER_PROPERTY, [])]
    assert pairs == made.user_properties


@given(st.lists(st.tuples(TEXT, st.integers(0, 2), st.booleans(), st.integers(0, 2)), min_size=1, max_size=4))
def test_subscribe_of_another_implementation(rows: list[tuple[str, int, bool, int]]) -> None:
    filters = [
        mqtt5.TopicFilter(topic, max_qos=mqtt5.QoS(qos), no_local=flag, retain_handling=mqtt5.RetainHandling(handling))
        for topic, qos, flag, handling in rows
    ]
    found = parse(mqtt5.SubscribePacket(7, filters, subscription_id=9).write(), V5)
    assert isinstance(found, p.SubscribePacket) and found.packet_id == 7
    assert found.properties == {PropertyId.SUBSCRIPTION_ID: 9}
    assert [(each.filter.decode(), each.qos, each.no_local, each.retain_handling) for each in found.requests] == rows


def test_other_packets_of_another_implementation() -> None:
    assert parse(mqtt5.UnsubscribePacket(3, ["a", "b/#"]).write(), V5).filters == (b"a", b"b/#")
    for kind, made in (
        (PacketType.PUBACK, mqtt5.PubAckPacket(5)),
        (PacketType.PUBREC, mqtt5.PubRecPacket(5)),
        (PacketType.PUBREL, mqtt5.PubRelPacket(5)),
        (PacketType.PUBCOMP, mqtt5.PubCompPacket(5, reason_str="x")),
    ):
        assert parse(made.write(), V5)[:3] == (kind, 5, 0)
    code = mqtt5.DisconnectReasonCode.DISCONNECT_WITH_WILL_MESSAGE
    assert parse(mqtt5.DisconnectPacket(reason_code=code).write(), V5).reason == 4
    assert parse(mqtt5.PingReqPacket().write(), V5) == p.PingPacket()


# --- both versions ----------------------------------------------------------------------------------------------------


def test_a_connect_of_version_3_1_1() -> None:
    data = wire.connect(V4, "id", keep_alive_s=60, will=("w", b"gone", 1), user="u", password=b"\xff")
    will = p.WillMessage(b"w", b"gone", 1, False, {})
    assert parse(data) == p.ConnectPacket(4, True, 60, {}, b"id", will, b"u", b"\xff")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_with_and_without_payload(version: int, qos: int) -> None:
    for payload in (b"", b"x"):
        found = parse(wire.publish(version, "a/é", payload, qos, 9), version)
        assert found == p.PublishPacket("a/é".encode(), payload, qos, False, False, 9 if qos else 0, {})


@pytest.mark.parametrize("version", VERSIONS)
def test_acknowledgements(version: int) -> None:
    assert parse(wire.ack(wire.PUBREL, 258), version) == p.AckPacket(PacketType.PUBREL, 258, 0, {})


@pytest.mark.parametrize("first", [wire.PUBACK, wire.PUBREC, wire.PUBREL, wire.PUBCOMP])
def test_reasons_in_acknowledgements(first: int) -> None:
    """Those of the standard's tables."""
    released = first in (wire.PUBREL, wire.PUBCOMP)
    for reason in (0, 0x92) if released else (0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99):
        assert parse(wire.ack(first, 7, bytes((reason,))), V5).reason == reason


def connect_with_flags(flags: int, version: int = V5) -> bytes:
    return wire.connect(version, flags=flags)


BOTH = [
    # what, packet, reason
    ("[MQTT-3.1.2-3] reserved connect flag", connect_with_flags(3), 0, 0x81),
    ("[MQTT-3.1.2-3] in 3.1.1", connect_with_flags(3, V4), 0, 0x81),
    ("[MQTT-3.1.2-11] will QoS without a will", connect_with_flags(0x08), 0, 0x81),
    ("[MQTT-3.1.2-13] will retain without a will", connect_with_flags(0x20), 0, 0x81),
    ("[MQTT-3.1.2-12] will QoS 3", connect_with_flags(0x1C), 0, 0x81),
    ("[MQTT-3.1.2-22] of 3.1.1: password without user", wire.connect(V4, password=b"x"), 0, 0x81),
    ("[MQTT-3.1.3-4] client id not UTF-8", wire.connect(V5, b"\xff"), 0, 0x81),
    ("[MQTT-3.1.2-1] another protocol", wire.connect(V5, name=b"MQTTX"), 0, 0x82),
    ("bytes behind the payload", wire.packet(0x10, wire.connect(V5)[2:] + b"x"), 0, 0x81),
    ("authentication data without a method", wire.connect(V5, raw=b"\x16\0\1x"), 0, 0x82),
    ("[MQTT-3.1.0-1] the first packet", wire.PINGREQ, 0, 0x82),
    ("[MQTT-3.1.0-2] a second CONNECT", wire.connect(V5), V5, 0x82),
    ("[MQTT-2.1.3-1] flags of PINGREQ", wire.packet(0xC1), V5, 0x81),
    ("[MQTT-3.6.1-1] flags of PUBREL", wire.ack(0x60, 1), V5, 0x81),
    ("[MQTT-3.8.1-1] flags of SUBSCRIBE", wire.packet(0x80, b"\0\1\0\0\1a\0"), V5, 0x81),
    ("[MQTT-3.10.1-1] flags of UNSUBSCRIBE", wire.packet(0xA0, b"\0\1\0\0\1a"), V5, 0x81),
    ("packet type 0", wire.packet(0x00), V5, 0x81),
    ("a packet of a server", wire.packet(0xD0), V5, 0x82),
    ("[MQTT-3.3.1-4] QoS 3", wire.packet(0x36, b"\0\1a\0\1\0"), V5, 0x81),
    ("[MQTT-3.3.1-2] DUP with QoS 0", wire.packet(0x38, b"\0\1a\0"), V5, 0x81),
    ("[MQTT-2.2.1-3] packet identifier 0", wire.publish(V5, "a", b"", 1, 0), V5, 0x82),
    ("[MQTT-3.3.2-2] a wildcard in a topic", wire.publish(V5, "a/+"), V5, 0x90),
    ("[MQTT-3.3.2-2] # in a topic", wire.publish(V4, "a/#", b"x"), V4, 0x90),
    ("[MQTT-3.3.2-1] a topic that is not UTF-8", wire.publish(V4, b"\xff", b"x"), V4, 0x81),
    ("no topic, no alias", wire.publish(V5, ""), V5, 0x82),
    ("no topic", wire.publish(V4, ""), V4, 0x82),
    ("[MQTT-3.3.4-6] subscription identifier", wire.publish(V5, "a", raw=b"\x0b\1"), V5, 0x82),
    ("[MQTT-3.3.2-14] wildcard in the response topic", wire.publish(V5, "a", raw=b"\x08\0\1#"), V5, 0x82),
    ("[MQTT-4.7.3-1] empty response topic", wire.publish(V5, "a", raw=b"\x08\0\0"), V5, 0x82),
    ("wildcard in a will's response topic", wire.connect(V5, will=("w", b"", 0), will_raw=b"\x08\0\1#"), 0, 0x82),
    ("[MQTT-3.8.3-2] SUBSCRIBE without a filter", wire.subscribe(V5, 1), V5, 0x82),
    ("[MQTT-4.7.3-1] an empty filter", wire.subscribe(V5, 1, ("", 0)), V5, 0x81),
    ("[MQTT-3.8.3-5] reserved options", wire.subscribe(V5, 1, ("a", 0x40)), V5, 0x81),
    ("[MQTT-3-8.3-4] of 3.1.1: reserved bits", wire.subscribe(V4, 1, ("a", 4)), V4, 0x81),
    ("QoS 3 in SUBSCRIBE", wire.subscribe(V5, 1, ("a", 3)), V5, 0x82),
    ("retain handling 3", wire.subscribe(V5, 1, ("a", 0x30)), V5, 0x82),
    ("[MQTT-3.8.3-4] No Local of a shared one", wire.subscribe(V5, 1, ("$share/g/a", 4)), V5, 0x82),
    ("[MQTT-3.10.3-2] UNSUBSCRIBE without a filter", wire.unsubscribe(V5, 1), V5, 0x82),
    ("[MQTT-3.14.2-1] a reason of servers", wire.packet(0xE0, b"\x8b"), V5, 0x82),
    ("a server reference of a client", wire.packet(0xE0, b"\0\4\x1c\0\1x"), V5, 0x82),
    ("AUTH in 3.1.1", wire.packet(0xF0), V4, 0x81),
    ("DISCONNECT with a body in 3.1.1", wire.packet(0xE0, b"\0"), V4, 0x81),
    ("[MQTT-3.4.2-1] an undefined reason in PUBACK", wire.ack(wire.PUBACK, 1, b"\x01"), V5, 0x81),
    ("[MQTT-3.5.2-1] an undefined reason in PUBREC", wire.ack(wire.PUBREC, 1, b"\x92"), V5, 0x81),
    ("[MQTT-3.6.2-1] an undefined reason in PUBREL", wire.ack(wire.PUBREL, 1, b"\x80"), V5, 0x81),
    ("[MQTT-3.7.2-1] an undefined reason in PUBCOMP", wire.ack(wire.PUBCOMP, 1, b"\x10"), V5, 0x81),
    ("an acknowledgement that is too short", wire.packet(0x40, b"\0"), V5, 0x81),
    ("an acknowledgement that is too long", wire.packet(0x40, b"\0\1\0"), V4, 0x81),
]


@pytest.mark.parametrize(("what", "data", "version", "reason"), BOTH, ids=[row[0] for row in BOTH])
def test_faulty_packets(what: str, data: bytes, version: int, reason: int) -> None:
    assert reason_for(data, version) == reason, what


@pytest.mark.parametrize(
    ("name", "level", "shown"), [(b"MQTT", 3, 3), (b"MQTT", 6, 6), (b"MQIsdp", 3, 3), (b"MQTT", 0, 0)]
)
def test_versions_that_are_not_served(name: bytes, level: int, shown: int) -> None:
    with pytest.raises(p.VersionUnknown) as caught:
        parse(wire.connect(level, name=name))
    assert caught.value.level == shown and caught.value.reason is Reason.UNSUPPORTED_VERSION


@given(st.binary(max_size=60), st.integers(0, 255), st.sampled_from([0, V4, V5]))
def test_any_bytes_are_a_packet_or_an_error(body: bytes, first: int, version: int) -> None:
    try:
        p.parse_packet(first, body, version)
    except PacketError as error:
        assert error.text


@given(st.binary(max_size=40), st.sampled_from([0, 1, 2, 8, 10, 12]), st.sampled_from(VERSIONS))
def test_the_quick_way_for_publishes_gives_the_same(body: bytes, flags: int, version: int) -> None:
    quick = p.read_plain_publish(0x30 | flags, body, 0, len(body), version)
    if quick is not None:
        assert p.parse_packet(0x30 | flags, body, version) == quick
