"""Finds a connection's protocol by its first byte, and refuses unknown ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from tailrace.protocol.answers import err
from tailrace.protocol.errors import Code
from tailrace.protocol.telnet import IAC

BINARY: Final = 0x01
"""The opcode of HELLO, with which the binary protocol begins."""
MQTT_CONNECT: Final = 0x10
"""The first byte of CONNECT, with which MQTT begins."""
MQTT_PUBLISH: Final = 3
"""The type of PUBLISH, in the upper half of its first byte. Such a byte looks like a digit of a line."""
PUBLISH_TOPIC_AT: Final = 4
"""Where the length of its topic is at the latest, if it has less than 2 MiB; its upper byte is 0 for most topics."""
MQTT_5: Final = 5
"""The protocol level of MQTT 5 in CONNECT."""
TLS_HANDSHAKE: Final = 0x16
HTTP_START: Final = b"GET /"
"""With which a request for WebSocket begins. No line that is the first one of a connection does (`foreign`)."""

CONNACK_REFUSED: Final = bytes((0x20, 2, 0, 1))
"""MQTT 3.1.1: CONNACK, return code 1 (protocol level not supported)."""
CONNACK_5_REFUSED: Final = bytes((0x20, 3, 0, 0x84, 0))
"""MQTT 5: CONNACK, reason 0x84 (unsupported protocol version)."""
PEEKED_BYTES: Final = 16
"""Of a new connection, before they are read: up to the protocol level in a CONNECT."""
TLS_ALERT: Final = bytes((0x15, 3, 3, 0, 2, 2, 40))
"""TLS: alert record, fatal, handshake_failure."""

LINE_FIRST_BYTES: Final = frozenset((*range(0x20, 0x7F), *b"\t\r\n", IAC))
"""A line begins with any printable ASCII character (a wrong one gets `err command`), is empty, or comes from telnet."""

_REFUSALS: Mapping[int, bytes] = {MQTT_CONNECT: CONNACK_REFUSED, TLS_HANDSHAKE: TLS_ALERT}


def protocol_of(first: int) -> Literal["line", "binary", "mqtt"] | None:
    """Returns the protocol of a connection that begins with this byte; None if unknown."""
    if first in LINE_FIRST_BYTES:
        return "line"
    if first == MQTT_CONNECT:
        return "mqtt"
    return "binary" if first == BINARY else None


def is_publish(head: bytes) -> bool:
    """Whether a connection begins with a PUBLISH of MQTT, which must have a CONNECT before it: a line has no U+0000."""
    return head[0] >> 4 == MQTT_PUBLISH and b"\0" in head[: PUBLISH_TOPIC_AT + 1]


def may_be_http(head: bytes) -> bool:
    """Whether a connection that begins with these bytes may be one that asks for WebSocket."""
    return HTTP_START.startswith(head[: len(HTTP_START)])


def mqtt_level(head: bytes) -> int:
    """The protocol level in the beginning of a CONNECT; 0 if it is not there."""
    _name, found, rest = head.partition(b"\0\4MQTT")
    return rest[0] if found and rest else 0


def refusal(head: bytes) -> bytes:
    """Returns the refusal for a connection that begins with these bytes of another protocol, in that protocol, before
    it is closed."""
    first = head[0]
    if first == MQTT_CONNECT and mqtt_level(head) == MQTT_5:
        return CONNACK_5_REFUSED
    refused = b"" if is_publish(head) else _REFUSALS.get(first)
    if refused is not None:
        return refused
    return err(Code.PROTOCOL, f"unknown protocol: first byte 0x{first:02x}; send lines such as: help")
