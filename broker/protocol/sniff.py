"""Which protocol a connection speaks, from its first byte; and how those that are not spoken here are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.protocol.answers import err
from broker.protocol.envelope import pack_error
from broker.protocol.errors import Code
from broker.protocol.telnet import IAC

BINARY: Final = 0x01
MQTT_CONNECT: Final = 0x10
TLS_HANDSHAKE: Final = 0x16

CONNACK_REFUSED: Final = bytes((0x20, 2, 0, 1))
"""MQTT 3.1.1: CONNACK, return code 1 (protocol level not supported)."""
TLS_ALERT: Final = bytes((0x15, 3, 3, 0, 2, 2, 40))
"""TLS: alert record, fatal, handshake_failure."""

LINE_FIRST_BYTES: Final = frozenset((*range(0x20, 0x7F), *b"\t\r\n", IAC))
"""A line begins with any printable ASCII character (a wrong one gets `err command`), is empty, or comes from telnet."""

_REFUSALS: Mapping[int, bytes] = {
    BINARY: pack_error(Code.UNSUPPORTED, "this broker does not speak the binary protocol; use the line protocol"),
    MQTT_CONNECT: CONNACK_REFUSED,
    TLS_HANDSHAKE: TLS_ALERT,
}


def sniff(first: int) -> bytes | None:
    """None for the line protocol; otherwise the refusal to send before the connection is closed."""
    if first in LINE_FIRST_BYTES:
        return None
    refusal = _REFUSALS.get(first)
    if refusal is not None:
        return refusal
    return err(Code.PROTOCOL, f"no protocol spoken here begins with byte 0x{first:02x}; send lines such as: help")
