"""Packets of the server, read by another implementation."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest

from tailrace.protocol.mqtt.properties import PacketType, PropertyId
from tailrace.protocol.mqtt.reasons import Reason
from tailrace.protocol.mqtt.responses import (
    PINGRESP,
    REASON_STRING_BYTES_MAX,
    fitting,
    pack_ack,
    pack_connack,
    pack_disconnect,
    pack_suback,
    pack_unsuback,
    reason_string,
)
from tests.protocol.mqtt.wire import V4, V5


def read(data: bytes) -> Any:
    return mqtt5.read(memoryview(data))[0]


def test_connack() -> None:
    made: list[tuple[PropertyId, Any]] = [
        (PropertyId.RECEIVE_MAXIMUM, 100),
        (PropertyId.RETAIN_AVAILABLE, 0),
        (PropertyId.ASSIGNED_CLIENT_ID, b"me"),
        (PropertyId.USER_PROPERTY, (b"a", b"b")),
    ]
    found = read(pack_connack(V5, Reason.SUCCESS, made, session_present=True))
    assert (found.session_present, found.reason_code, found.receive_max) == (True, 0, 100)
    assert (found.retain_available, found.assigned_client_id, found.user_properties) == (False, "me", [("a", "b")])
    assert pack_connack(V4, Reason.SUCCESS, made) == b"\x20\2\0\0"
    assert pack_connack(V4, Reason.BAD_USER_OR_PASSWORD) == b"\x20\2\0\4"


def test_version_3_1_1_has_no_return_code_for_every_reason() -> None:
    assert pack_connack(V4, Reason.MALFORMED_PACKET) == b"" == pack_disconnect(V4, Reason.PROTOCOL_ERROR)


def test_acknowledgements() -> None:
    assert pack_ack(PacketType.PUBACK, V4, 258, 0x87) == b"\x40\2\1\2" == pack_ack(PacketType.PUBACK, V5, 258)
    found = read(pack_ack(PacketType.PUBREC, V5, 258, Reason.QUOTA_EXCEEDED))
    assert (type(found), found.packet_id, found.reason_code) == (mqtt5.PubRecPacket, 258, 0x97)
    assert pack_ack(PacketType.PUBREL, V4, 1)[0] == 0x62, "[MQTT-3.6.1-1]"


def test_suback_and_unsuback() -> None:
    found = read(pack_suback(V5, 3, [0, 1, 2, Reason.NOT_AUTHORIZED]))
    assert (found.packet_id, [int(code) for code in found.reason_codes]) == (3, [0, 1, 2, 0x87])
    assert pack_suback(V4, 3, [1, Reason.NOT_AUTHORIZED]) == b"\x90\4\0\3\1\x80"
    found = read(pack_unsuback(V5, 4, [0, 0x11]))
    assert [int(code) for code in found.reason_codes] == [0, 0x11]
    assert pack_unsuback(V4, 4, [0, 0x11]) == b"\xb0\2\0\4"


@pytest.mark.parametrize("text", ["", "why", "é" * REASON_STRING_BYTES_MAX, "a\0b"])
def test_disconnect(text: str) -> None:
    found = read(pack_disconnect(V5, Reason.SESSION_TAKEN_OVER, text))
    assert found.reason_code == 0x8E
    assert (found.reason_str or "") == text.replace("\0", "")[: REASON_STRING_BYTES_MAX // 2 if "é" in text else None]


def test_pingresp() -> None:
    assert isinstance(read(PINGRESP), mqtt5.PingRespPacket) and reason_string("") == []


def test_a_packet_that_fits() -> None:
    """[MQTT-3.1.2-24]."""

    def pack(text: str) -> bytes:
        return pack_disconnect(V5, Reason.PROTOCOL_ERROR, text)

    assert fitting(pack, "why", len(pack("why"))) == pack("why")
    assert fitting(pack, "why", len(pack("why")) - 1) == pack("")
    assert fitting(pack, "why", len(pack("")) - 1) == b""
