"""The packets that a server sends, but PUBLISH: as bytes, in the form of the connection's version."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tailrace.protocol.mqtt.fields import FIELD_BYTES_MAX, pack_varint
from tailrace.protocol.mqtt.packets import MQTT_5
from tailrace.protocol.mqtt.properties import PacketType, PropertyId, pack_properties
from tailrace.protocol.mqtt.reasons import FAILURE, RETURN_CODES, Reason

PINGRESP: Final = bytes((PacketType.PINGRESP << 4, 0))
REASON_STRING_BYTES_MAX: Final = 1_024

_FLAGS: Final = {PacketType.PUBREL: 2}


def pack_packet(kind: PacketType, body: bytes) -> bytes:
    """A packet whose flags are those that its type must have."""
    return bytes((kind << 4 | _FLAGS.get(kind, 0),)) + pack_varint(len(body)) + body


def pack_connack(
    version: int, reason: Reason, properties: Iterable[tuple[PropertyId, Any]] = (), *, session_present: bool = False
) -> bytes:
    """CONNACK; empty if MQTT 3.1.1 has no return code for this reason, and just closes."""
    if version == MQTT_5:
        body = bytes((session_present, reason)) + pack_properties(properties)
    elif reason in RETURN_CODES:
        body = bytes((session_present, RETURN_CODES[reason]))
    else:
        return b""
    return pack_packet(PacketType.CONNACK, body)


def pack_ack(kind: PacketType, version: int, packet_id: int, reason: int = 0) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
    body = packet_id.to_bytes(2, "big")
    return pack_packet(kind, body + bytes((reason,)) if version == MQTT_5 and reason else body)


def pack_suback(version: int, packet_id: int, reasons: Sequence[int]) -> bytes:
    """SUBACK: of each filter the QoS granted, or the reason for none."""
    body = packet_id.to_bytes(2, "big")
    if version == MQTT_5:
        return pack_packet(PacketType.SUBACK, body + b"\0" + bytes(reasons))
    return pack_packet(PacketType.SUBACK, body + bytes(min(reason, FAILURE) for reason in reasons))


def pack_unsuback(version: int, packet_id: int, reasons: Sequence[int]) -> bytes:
    """UNSUBACK; only MQTT 5 has reasons in it."""
    body = packet_id.to_bytes(2, "big")
    return pack_packet(PacketType.UNSUBACK, body + b"\0" + bytes(reasons) if version == MQTT_5 else body)


def pack_disconnect(version: int, reason: Reason, text: str = "") -> bytes:
    """DISCONNECT of MQTT 5; nothing for MQTT 3.1.1, whose servers just close. `text`: its reason string, if any."""
    if version != MQTT_5:
        return b""
    return pack_packet(PacketType.DISCONNECT, bytes((reason,)) + pack_properties(reason_string(text)))


def pack_auth(reason: Reason, method: bytes, data: bytes) -> bytes:
    """AUTH of MQTT 5: a step of a login."""
    properties = [(PropertyId.AUTHENTICATION_METHOD, method), (PropertyId.AUTHENTICATION_DATA, data)]
    return pack_packet(PacketType.AUTH, bytes((reason,)) + pack_properties(properties))


def pack_refusal(version: int, reason: Reason, text: str = "") -> bytes:
    """CONNACK of a connection that is refused."""
    return pack_connack(version, reason, reason_string(text))


def fitting(pack: Callable[[str], bytes], text: str, bytes_max: int) -> bytes:
    """The packet with this text, without it if a client does not take one so large, or nothing (MQTT-3.1.2-24)."""
    for given in (text, ""):
        packet = pack(given)
        if len(packet) <= bytes_max:
            return packet
    return b""


def reason_string(text: str) -> list[tuple[PropertyId, Any]]:
    """The property with this text; none without text."""
    data = text.replace("\0", "").encode("utf-8", "replace")[:REASON_STRING_BYTES_MAX]
    return [(PropertyId.REASON_STRING, data.decode("utf-8", "ignore").encode())] if data else []


assert REASON_STRING_BYTES_MAX <= FIELD_BYTES_MAX
