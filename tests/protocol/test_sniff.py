"""The first byte."""

from __future__ import annotations

import string

import pytest

from tailrace.protocol.sniff import (
    BINARY,
    MQTT_CONNECT,
    PEEKED_BYTES,
    TLS_HANDSHAKE,
    is_publish,
    protocol_of,
    refusal,
)
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import VERSIONS


@pytest.mark.parametrize("first", string.ascii_letters.encode() + b" \t\r\n|#$0\xff")
def test_lines(first: int) -> None:
    assert protocol_of(first) == "line"


def test_the_binary_protocol_begins_with_the_opcode_of_hello() -> None:
    assert protocol_of(BINARY) == "binary"


def test_mqtt_hears_a_connack_that_refuses() -> None:
    assert refusal(bytes((MQTT_CONNECT,))) == b"\x20\x02\x00\x01"
    assert refusal(b"\x10\x0d\0\4MQTT\5") == b"\x20\x03\x00\x84\x00"
    assert refusal(b"\x10\x0d\0\4MQTT\4") == refusal(b"\x10\x0d\0\4MQTT") == b"\x20\x02\x00\x01"


@pytest.mark.parametrize("topic", ["a", "sensors/7/temp", "x" * 250])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_publish_before_connect_is_no_line(version: int, topic: str) -> None:
    """[MQTT-3.1.0-1]. It is given no answer."""
    for qos in range(3):
        head = wire.publish(version, topic, b"x", qos)[:PEEKED_BYTES]
        assert is_publish(head) and refusal(head) == b""
    for line in (b"0", b"0\r\n", b"3 pub", b"pub a |x", b"?", b"\0"):
        assert not is_publish(line)


def test_tls_hears_a_fatal_alert() -> None:
    alert = refusal(bytes((TLS_HANDSHAKE,)))
    assert (alert[0], int.from_bytes(alert[3:5]), alert[5]) == (0x15, len(alert) - 5, 2)


@pytest.mark.parametrize("first", [0, 2, 0x1B, 0x7F, 0x80, 0xC3, 0xFE])
def test_anything_else_hears_an_error(first: int) -> None:
    assert protocol_of(first) is None
    text = refusal(bytes((first,)))
    assert text.startswith(b"err protocol ")
    assert text.endswith(b"\r\n")
    assert b"0x%02x" % first in text


def test_every_byte_is_decided() -> None:
    assert all(protocol_of(first) or refusal(bytes((first,))) for first in range(256))
