"""The properties of MQTT 5 as one table (table 2-4): identifier, type, and the packets that may have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Any, Final, NamedTuple

from tailrace.protocol.mqtt.fields import FieldReader, pack_field, pack_varint
from tailrace.protocol.mqtt.reasons import malformed, protocol_error


class PacketType(IntEnum):
    """Table 2-1. WILL is not a packet: it stands for the will in CONNECT, which has properties of its own."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class PropertyId(IntEnum):
    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_ID = 0x0B
    SESSION_EXPIRY = 0x11
    ASSIGNED_CLIENT_ID = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_AVAILABLE = 0x28
    SUBSCRIPTION_ID_AVAILABLE = 0x29
    SHARED_AVAILABLE = 0x2A


class ValueType(StrEnum):
    """The type of a property's value."""

    BYTE = "byte"
    TWO = "two byte integer"
    FOUR = "four byte integer"
    VARINT = "variable byte integer"
    TEXT = "string"
    BINARY = "binary data"
    PAIR = "string pair"


class PropertySpec(NamedTuple):
    """low, high: of the values of a number; outside of them it is a protocol error."""

    type: ValueType
    packets: frozenset[PacketType]
    low: int = 0
    high: int = 0xFFFFFFFF


Properties = Mapping[PropertyId, Any]
"""Values by identifier: integers, bytes; of USER_PROPERTY and SUBSCRIPTION_ID a list of all, in their order."""

NO_PROPERTIES: Final[Properties] = {}

_T = PacketType
_MESSAGE = frozenset({_T.PUBLISH, _T.WILL})
_CONNECTIONS = frozenset({_T.CONNECT, _T.CONNACK})
_AUTHENTICATED = _CONNECTIONS | {_T.AUTH}
_ACKS = frozenset({_T.PUBACK, _T.PUBREC, _T.PUBREL, _T.PUBCOMP, _T.SUBACK, _T.UNSUBACK})
_CONNACK = frozenset({_T.CONNACK})
_CONNECT = frozenset({_T.CONNECT})

SPECS: Final[Mapping[PropertyId, PropertySpec]] = {
    PropertyId.PAYLOAD_FORMAT: PropertySpec(ValueType.BYTE, _MESSAGE, 0, 1),
    PropertyId.MESSAGE_EXPIRY: PropertySpec(ValueType.FOUR, _MESSAGE),
    PropertyId.CONTENT_TYPE: PropertySpec(ValueType.TEXT, _MESSAGE),
    PropertyId.RESPONSE_TOPIC: PropertySpec(ValueType.TEXT, _MESSAGE),
    PropertyId.CORRELATION_DATA: PropertySpec(ValueType.BINARY, _MESSAGE),
    PropertyId.SUBSCRIPTION_ID: PropertySpec(ValueType.VARINT, frozenset({_T.PUBLISH, _T.SUBSCRIBE}), 1),
    PropertyId.SESSION_EXPIRY: PropertySpec(ValueType.FOUR, _CONNECTIONS | {_T.DISCONNECT}),
    PropertyId.ASSIGNED_CLIENT_ID: PropertySpec(ValueType.TEXT, _CONNACK),
    PropertyId.SERVER_KEEP_ALIVE: PropertySpec(ValueType.TWO, _CONNACK),
    PropertyId.AUTHENTICATION_METHOD: PropertySpec(ValueType.TEXT, _AUTHENTICATED),
    PropertyId.AUTHENTICATION_DATA: PropertySpec(ValueType.BINARY, _AUTHENTICATED),
    PropertyId.REQUEST_PROBLEM_INFORMATION: PropertySpec(ValueType.BYTE, _CONNECT, 0, 1),
    PropertyId.WILL_DELAY: PropertySpec(ValueType.FOUR, frozenset({_T.WILL})),
    PropertyId.REQUEST_RESPONSE_INFORMATION: PropertySpec(ValueType.BYTE, _CONNECT, 0, 1),
    PropertyId.RESPONSE_INFORMATION: PropertySpec(ValueType.TEXT, _CONNACK),
    PropertyId.SERVER_REFERENCE: PropertySpec(ValueType.TEXT, _CONNACK | {_T.DISCONNECT}),
    PropertyId.REASON_STRING: PropertySpec(ValueType.TEXT, _ACKS | {_T.CONNACK, _T.DISCONNECT, _T.AUTH}),
    PropertyId.RECEIVE_MAXIMUM: PropertySpec(ValueType.TWO, _CONNECTIONS, 1),
    PropertyId.TOPIC_ALIAS_MAXIMUM: PropertySpec(ValueType.TWO, _CONNECTIONS),
    PropertyId.TOPIC_ALIAS: PropertySpec(ValueType.TWO, frozenset({_T.PUBLISH})),
    PropertyId.MAXIMUM_QOS: PropertySpec(ValueType.BYTE, _CONNACK, 0, 1),
    PropertyId.RETAIN_AVAILABLE: PropertySpec(ValueType.BYTE, _CONNACK, 0, 1),
    PropertyId.USER_PROPERTY: PropertySpec(ValueType.PAIR, frozenset(_T) - {_T.PINGREQ, _T.PINGRESP}),
    PropertyId.MAXIMUM_PACKET_SIZE: PropertySpec(ValueType.FOUR, _CONNECTIONS, 1),
    PropertyId.WILDCARD_AVAILABLE: PropertySpec(ValueType.BYTE, _CONNACK, 0, 1),
    PropertyId.SUBSCRIPTION_ID_AVAILABLE: PropertySpec(ValueType.BYTE, _CONNACK, 0, 1),
    PropertyId.SHARED_AVAILABLE: PropertySpec(ValueType.BYTE, _CONNACK, 0, 1),
}

_SPECS_BY_NUMBER: Final = {int(number): (number, spec) for number, spec in SPECS.items()}
_NUMBER_BYTES: Final = {ValueType.BYTE: 1, ValueType.TWO: 2, ValueType.FOUR: 4}
_SEVERAL: Final = frozenset({(_T.PUBLISH, PropertyId.SUBSCRIPTION_ID)})
"""Besides user properties: those of which a packet may have several."""


def read_properties(fields: FieldReader, packet: PacketType) -> Properties:
    """The properties that stand next. Raises PacketError."""
    size = fields.varint()
    if not size:
        return NO_PROPERTIES
    outer_end = fields.end
    fields.end = fields.at + size
    if fields.end > outer_end:
        raise malformed(f"the properties of {packet.name} are longer than the packet")
    found: dict[PropertyId, Any] = {}
    while fields.at < fields.end:
        _read_property(fields, packet, found)
    fields.end = outer_end
    return found


def _read_property(fields: FieldReader, packet: PacketType, found: dict[PropertyId, Any]) -> None:
    known = _SPECS_BY_NUMBER.get(fields.varint())
    if known is None or packet not in known[1].packets:
        raise malformed(f"{packet.name} has a property that it cannot have")
    number, spec = known
    value = _read_value(fields, spec)
    if number is PropertyId.USER_PROPERTY or (packet, number) in _SEVERAL:
        found.setdefault(number, []).append(value)
    elif number in found:
        raise protocol_error(f"{packet.name} has {number.name} twice")
    else:
        found[number] = value


def _read_value(fields: FieldReader, spec: PropertySpec) -> Any:
    kind = spec.type
    if kind is ValueType.PAIR:
        return fields.text(), fields.text()
    if kind is ValueType.TEXT:
        return fields.text()
    if kind is ValueType.BINARY:
        return fields.binary()
    value = fields.varint() if kind is ValueType.VARINT else fields.number(_NUMBER_BYTES[kind])
    if not spec.low <= value <= spec.high:
        raise protocol_error(f"{value} is not a value of this property")
    return value


def pack_properties(properties: Iterable[tuple[PropertyId, Any]]) -> bytes:
    """The properties with their length. The values must be valid; a property may come several times."""
    body = b"".join(_pack_property(number, value) for number, value in properties)
    return pack_varint(len(body)) + body


def _pack_property(number: PropertyId, value: Any) -> bytes:
    kind, head = SPECS[number].type, bytes((number,))
    if kind is ValueType.PAIR:
        return head + pack_field(value[0]) + pack_field(value[1])
    if kind in (ValueType.TEXT, ValueType.BINARY):
        return head + pack_field(value)
    if kind is ValueType.VARINT:
        return head + pack_varint(value)
    return head + int(value).to_bytes(_NUMBER_BYTES[kind], "big")
