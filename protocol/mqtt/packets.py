"""The packets that a client sends, parsed: chapter 3 of both versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.protocol.mqtt.fields import FieldReader
from tailrace.protocol.mqtt.properties import NO_PROPERTIES, PacketType, Properties, PropertyId, read_properties
from tailrace.protocol.mqtt.reasons import (
    CLIENT_DISCONNECTS,
    RECEIPT_REASONS,
    RELEASE_REASONS,
    PacketError,
    Reason,
    malformed,
    protocol_error,
)

MQTT_3_1, MQTT_3_1_1, MQTT_5 = 3, 4, 5
"""Protocol levels, as CONNECT has them."""
BRIDGE_LEVELS: Final = 0x80
"""From here on: MQTT 3.1.1 with a flag, by which a bridge of mosquitto asks whether it speaks to another mosquitto."""

_NAMES: Final[Mapping[bytes, frozenset[int]]] = {b"MQIsdp": frozenset({MQTT_3_1})}
_CLEAN, _WILL, _WILL_RETAIN, _PASSWORD, _USER = 0x02, 0x04, 0x20, 0x40, 0x80
_RETAIN, _DUP = 0x01, 0x08
_QOS_MAX = 2


class WillMessage(NamedTuple):
    """Published for a client whose connection ends without DISCONNECT."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: Properties


class ConnectPacket(NamedTuple):
    """`user`, `password`: None without one. `will`: None without one."""

    version: int
    clean: bool
    keep_alive_s: int
    properties: Properties
    client_id: bytes
    will: WillMessage | None
    user: bytes | None
    password: bytes | None


class PublishPacket(NamedTuple):
    """`packet_id`: 0 with QoS 0. `topic`: empty if an alias stands for it."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties


class AckPacket(NamedTuple):
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    type: PacketType
    packet_id: int
    reason: int
    properties: Properties


class TopicRequest(NamedTuple):
    """One filter of a SUBSCRIBE, with its options."""

    filter: bytes
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int


class SubscribePacket(NamedTuple):
    packet_id: int
    requests: tuple[TopicRequest, ...]
    properties: Properties


class UnsubscribePacket(NamedTuple):
    packet_id: int
    filters: tuple[bytes, ...]
    properties: Properties


class PingPacket(NamedTuple):
    """PINGREQ."""


class DisconnectPacket(NamedTuple):
    reason: int
    properties: Properties


class AuthPacket(NamedTuple):
    reason: int
    properties: Properties


Packet = (
    ConnectPacket
    | PublishPacket
    | AckPacket
    | SubscribePacket
    | UnsubscribePacket
    | PingPacket
    | DisconnectPacket
    | AuthPacket
)


class VersionUnknown(PacketError):
    """CONNECT of a version that is not served. `level`: the one that it names."""

    def __init__(self, level: int) -> None:
        super().__init__(Reason.UNSUPPORTED_VERSION, f"MQTT of protocol level {level} is not served; use 4 or 5")
        self.level = level


def parse_packet(first: int, body: bytes, version: int) -> Packet:
    """The packet with this first byte and this body. `version`: of the connection, 0 before CONNECT.

    Raises PacketError.
    """
    kind, flags = first >> 4, first & 0x0F
    fields = FieldReader(body)
    if not version and kind != PacketType.CONNECT:
        raise protocol_error("the first packet must be CONNECT")
    if kind == PacketType.PUBLISH:
        return read_publish(fields, flags, version)
    parser = _PARSERS.get(kind)
    if parser is None:
        raise protocol_error(f"no client sends {_name_of(kind)}") if kind else malformed("packet type 0 is reserved")
    wanted, parse = parser
    if flags != wanted:
        raise malformed(f"{_name_of(kind)} has the flags {flags:04b}, not {wanted:04b}")
    if kind == PacketType.CONNECT and version:
        raise protocol_error("CONNECT came twice")
    packet = parse(fields, version)
    fields.finish(_name_of(kind))
    return packet


def _name_of(kind: int) -> str:
    return PacketType(kind).name


# --- CONNECT ----------------------------------------------------------------------------------------------------------


def _read_connect(fields: FieldReader, _version: int) -> ConnectPacket:
    name = fields.text()
    level = fields.number(1)
    if name == b"MQTT" and level not in (MQTT_3_1_1, MQTT_5):
        raise VersionUnknown(level)
    if level in _NAMES.get(name, ()):
        raise VersionUnknown(level)
    if name != b"MQTT":
        raise protocol_error("the protocol's name in CONNECT must be MQTT")
    try:
        packet = _read_connect_of(fields, level)
        fields.finish("CONNECT")
    except PacketError as error:
        error.version = level
        raise
    return packet


def _read_connect_of(fields: FieldReader, level: int) -> ConnectPacket:
    """All behind the protocol level."""
    flags = fields.number(1)
    keep_alive_s = fields.number(2)
    _check_connect_flags(flags, level)
    properties = _properties(fields, level, PacketType.CONNECT)
    if PropertyId.AUTHENTICATION_DATA in properties and PropertyId.AUTHENTICATION_METHOD not in properties:
        raise protocol_error("CONNECT has authentication data without a method")
    client_id = fields.text()
    will = _read_will(fields, flags, level) if flags & _WILL else None
    user = fields.text() if flags & _USER else None
    password = fields.binary() if flags & _PASSWORD else None
    return ConnectPacket(level, bool(flags & _CLEAN), keep_alive_s, properties, client_id, will, user, password)


def _check_connect_flags(flags: int, level: int) -> None:
    if flags & 0x01:
        raise malformed("the reserved flag of CONNECT is set")
    if not flags & _WILL and flags & (_WILL_RETAIN | 0x18):
        raise malformed("CONNECT has flags of a will, and no will")
    if flags >> 3 & 3 > _QOS_MAX:
        raise malformed("the QoS of the will is 3")
    if level == MQTT_3_1_1 and flags & _PASSWORD and not flags & _USER:
        raise malformed("CONNECT has a password and no user name")


def _read_will(fields: FieldReader, flags: int, level: int) -> WillMessage:
    properties = _properties(fields, level, PacketType.WILL)
    _check_response_topic(properties)
    topic = fields.text()
    return WillMessage(topic, fields.binary(), flags >> 3 & 3, bool(flags & _WILL_RETAIN), properties)


# --- messages ---------------------------------------------------------------------------------------------------------


def read_publish(fields: FieldReader, flags: int, version: int) -> PublishPacket:
    """A PUBLISH with these flags; its payload is all that is left. Raises PacketError."""
    qos = flags >> 1 & 3
    if qos > _QOS_MAX:
        raise malformed("the QoS of PUBLISH is 3")
    if flags & _DUP and not qos:
        raise malformed("PUBLISH has the DUP flag and QoS 0")
    topic = fields.text()
    packet_id = _packet_id(fields) if qos else 0
    properties = _properties(fields, version, PacketType.PUBLISH) if version == MQTT_5 else NO_PROPERTIES
    if PropertyId.SUBSCRIPTION_ID in properties:
        raise protocol_error("a client's PUBLISH has no subscription identifier")
    if not topic and PropertyId.TOPIC_ALIAS not in properties:
        raise protocol_error("PUBLISH has no topic")
    if b"+" in topic or b"#" in topic:
        raise PacketError(Reason.TOPIC_NAME_INVALID, "the topic of PUBLISH has a wildcard")
    _check_response_topic(properties)
    return PublishPacket(topic, fields.rest(), qos, bool(flags & _RETAIN), bool(flags & _DUP), packet_id, properties)


def _check_response_topic(properties: Properties) -> None:
    response_topic = properties.get(PropertyId.RESPONSE_TOPIC)
    if response_topic is not None and (not response_topic or b"+" in response_topic or b"#" in response_topic):
        raise protocol_error("the response topic of a message is empty or has a wildcard")


def read_plain_publish(first: int, data: bytes, at: int, end: int, version: int) -> PublishPacket | None:
    """The PUBLISH with this first byte and its body at data[at:end], if it is a valid one without properties, as nearly
    all are; None if `parse_packet` must look at it.
    """
    qos = first >> 1 & 3
    topic_end = at + 2 + int.from_bytes(data[at : at + 2], "big")
    payload_at = topic_end + (2 if qos else 0)
    packet_id = 0
    if payload_at >= end or qos > _QOS_MAX or (first & _DUP and not qos):
        return None
    if qos:
        packet_id = int.from_bytes(data[topic_end:payload_at], "big")
        if not packet_id:
            return None
    if version == MQTT_5:
        if data[payload_at]:
            return None
        payload_at += 1
    topic = data[at + 2 : topic_end]
    if not _is_topic(topic):
        return None
    return PublishPacket(
        topic, data[payload_at:end], qos, bool(first & _RETAIN), bool(first & _DUP), packet_id, NO_PROPERTIES
    )


@lru_cache(4_096)
def _is_topic(topic: bytes) -> bool:
    try:
        topic.decode()
    except UnicodeDecodeError:
        return False
    return not any(byte in topic for byte in b"\0+#") and bool(topic)


def _read_ack(kind: PacketType) -> Callable[[FieldReader, int], AckPacket]:
    known = RELEASE_REASONS if kind in (PacketType.PUBREL, PacketType.PUBCOMP) else RECEIPT_REASONS

    def read(fields: FieldReader, version: int) -> AckPacket:
        packet_id, reason, properties = _packet_id(fields), 0, NO_PROPERTIES
        if version == MQTT_5 and fields.left:
            reason = fields.number(1)
            if reason not in known:
                raise malformed(f"{kind.name} has no reason 0x{reason:02X}")
            if fields.left:
                properties = read_properties(fields, kind)
        return AckPacket(kind, packet_id, reason, properties)

    return read


# --- subscriptions ----------------------------------------------------------------------------------------------------


def _read_subscribe(fields: FieldReader, version: int) -> SubscribePacket:
    packet_id = _packet_id(fields)
    properties = _properties(fields, version, PacketType.SUBSCRIBE)
    requests = []
    while fields.left:
        requests.append(_read_request(fields, version))
    if not requests:
        raise protocol_error("SUBSCRIBE has no filter")
    return SubscribePacket(packet_id, tuple(requests), properties)


def _read_request(fields: FieldReader, version: int) -> TopicRequest:
    topic_filter = _read_filter(fields)
    options = fields.number(1)
    if options & (0xC0 if version == MQTT_5 else 0xFC):
        raise malformed("SUBSCRIBE has reserved options")
    qos, handling, no_local = options & 3, options >> 4 & 3, bool(options & 0x04)
    if qos > _QOS_MAX:
        raise protocol_error("the QoS in SUBSCRIBE is 3")
    if handling > 2:
        raise protocol_error("the retain handling in SUBSCRIBE is 3")
    if no_local and topic_filter.startswith(b"$share/"):
        raise protocol_error("a shared subscription cannot have No Local")
    return TopicRequest(topic_filter, qos, no_local, bool(options & 0x08), handling)


def _read_filter(fields: FieldReader) -> bytes:
    topic_filter = fields.text()
    if not topic_filter:
        raise malformed("a topic filter has at least one character")
    return topic_filter


def _read_unsubscribe(fields: FieldReader, version: int) -> UnsubscribePacket:
    packet_id = _packet_id(fields)
    properties = _properties(fields, version, PacketType.UNSUBSCRIBE)
    filters = []
    while fields.left:
        filters.append(_read_filter(fields))
    if not filters:
        raise protocol_error("UNSUBSCRIBE has no filter")
    return UnsubscribePacket(packet_id, tuple(filters), properties)


# --- the rest ---------------------------------------------------------------------------------------------------------


def _read_ping(_fields: FieldReader, _version: int) -> PingPacket:
    return PingPacket()


def _read_disconnect(fields: FieldReader, version: int) -> DisconnectPacket:
    reason, properties = 0, NO_PROPERTIES
    if version == MQTT_5 and fields.left:
        reason = fields.number(1)
        if reason not in CLIENT_DISCONNECTS:
            raise protocol_error(f"a client does not disconnect with the reason 0x{reason:02X}")
        if fields.left:
            properties = read_properties(fields, PacketType.DISCONNECT)
    if PropertyId.SERVER_REFERENCE in properties:
        raise protocol_error("a client's DISCONNECT has no server reference")
    return DisconnectPacket(reason, properties)


def _read_auth(fields: FieldReader, version: int) -> AuthPacket:
    if version != MQTT_5:
        raise malformed("packet type 15 is reserved")
    reason, properties = 0, NO_PROPERTIES
    if fields.left:
        reason = fields.number(1)
        properties = read_properties(fields, PacketType.AUTH)
    return AuthPacket(reason, properties)


def _packet_id(fields: FieldReader) -> int:
    packet_id = fields.number(2)
    if not packet_id:
        raise protocol_error("a packet identifier is 0")
    return packet_id


def _properties(fields: FieldReader, version: int, packet: PacketType) -> Properties:
    return read_properties(fields, packet) if version == MQTT_5 else NO_PROPERTIES


_PARSERS: Final[Mapping[int, tuple[int, Callable[[FieldReader, int], Packet]]]] = {
    PacketType.CONNECT: (0, _read_connect),
    PacketType.PUBACK: (0, _read_ack(PacketType.PUBACK)),
    PacketType.PUBREC: (0, _read_ack(PacketType.PUBREC)),
    PacketType.PUBREL: (2, _read_ack(PacketType.PUBREL)),
    PacketType.PUBCOMP: (0, _read_ack(PacketType.PUBCOMP)),
    PacketType.SUBSCRIBE: (2, _read_subscribe),
    PacketType.UNSUBSCRIBE: (2, _read_unsubscribe),
    PacketType.PINGREQ: (0, _read_ping),
    PacketType.DISCONNECT: (0, _read_disconnect),
    PacketType.AUTH: (0, _read_auth),
}
