"""The first byte."""

from __future__ import annotations

import string

import msgpack
import pytest

from broker.protocol.envelope import ERROR, EnvelopeReader
from broker.protocol.sniff import BINARY, MQTT_CONNECT, TLS_HANDSHAKE, sniff


@pytest.mark.parametrize("first", string.ascii_letters.encode() + b" \t\r\n|#$0\xff")
def test_lines(first: int) -> None:
    assert sniff(first) is None


def test_the_binary_protocol_hears_an_envelope() -> None:
    ((opcode, body),) = EnvelopeReader(1_000).feed(sniff(BINARY) or b"")
    assert opcode == ERROR
    assert msgpack.unpackb(body)["code"] == "unsupported"


def test_mqtt_hears_a_connack_that_refuses() -> None:
    assert sniff(MQTT_CONNECT) == b"\x20\x02\x00\x01"


def test_tls_hears_a_fatal_alert() -> None:
    alert = sniff(TLS_HANDSHAKE) or b""
    assert (alert[0], int.from_bytes(alert[3:5]), alert[5]) == (0x15, len(alert) - 5, 2)


@pytest.mark.parametrize("first", [0, 2, 0x1B, 0x7F, 0x80, 0xC3, 0xFE])
def test_anything_else_hears_an_error(first: int) -> None:
    text = sniff(first) or b""
    assert text.startswith(b"err protocol ")
    assert text.endswith(b"\r\n")
    assert b"0x%02x" % first in text


def test_every_byte_is_decided() -> None:
    assert all(sniff(first) is None or sniff(first) for first in range(256))
