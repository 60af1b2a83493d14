"""The reason codes of MQTT 5, the return codes of MQTT 3.1.1, and the error that a faulty packet raises."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from tailrace.protocol.errors import Code, PeerError


class Reason(IntEnum):
    """Table 2-6 of MQTT 5. Those below 0x80 mean success."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USER_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1
    WILDCARDS_NOT_SUPPORTED = 0xA2


FAILURE: Final = 0x80
"""Codes from here on mean failure; in a SUBACK of MQTT 3.1.1 it is the only one that does."""

CLIENT_DISCONNECTS: Final = frozenset(
    {
        Reason.SUCCESS,
        Reason.DISCONNECT_WITH_WILL,
        Reason.UNSPECIFIED,
        Reason.MALFORMED_PACKET,
        Reason.PROTOCOL_ERROR,
        Reason.IMPLEMENTATION_SPECIFIC,
        Reason.TOPIC_NAME_INVALID,
        Reason.RECEIVE_MAXIMUM_EXCEEDED,
        Reason.TOPIC_ALIAS_INVALID,
        Reason.PACKET_TOO_LARGE,
        Reason.MESSAGE_RATE_TOO_HIGH,
        Reason.QUOTA_EXCEEDED,
        Reason.ADMINISTRATIVE_ACTION,
        Reason.PAYLOAD_FORMAT_INVALID,
    }
)
"""Those that a client may send in DISCONNECT: table 3-10."""

RECEIPT_REASONS: Final = frozenset(
    {
        Reason.SUCCESS,
        Reason.NO_MATCHING_SUBSCRIBERS,
        Reason.UNSPECIFIED,
        Reason.IMPLEMENTATION_SPECIFIC,
        Reason.NOT_AUTHORIZED,
        Reason.TOPIC_NAME_INVALID,
        Reason.PACKET_ID_IN_USE,
        Reason.QUOTA_EXCEEDED,
        Reason.PAYLOAD_FORMAT_INVALID,
    }
)
"""Those of PUBACK and PUBREC: tables 3-4 and 3-5."""
RELEASE_REASONS: Final = frozenset({Reason.SUCCESS, Reason.PACKET_ID_NOT_FOUND})
"""Those of PUBREL and PUBCOMP: tables 3-6 and 3-7."""

RETURN_CODES: Final[Mapping[Reason, int]] = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_VERSION: 1,
    Reason.CLIENT_ID_NOT_VALID: 2,
    Reason.SERVER_UNAVAILABLE: 3,
    Reason.SERVER_BUSY: 3,
    Reason.QUOTA_EXCEEDED: 3,
    Reason.CONNECTION_RATE_EXCEEDED: 3,
    Reason.USE_ANOTHER_SERVER: 3,
    Reason.BAD_USER_OR_PASSWORD: 4,
    Reason.NOT_AUTHORIZED: 5,
}
"""By reason, the return code in a CONNACK of MQTT 3.1.1. For any other reason it has none, and the server just closes
the connection."""

_REASONS: Final[Mapping[Code, Reason]] = {
    Code.SIZE: Reason.PACKET_TOO_LARGE,
    Code.INCOMPLETE: Reason.MALFORMED_PACKET,
    Code.NAME: Reason.TOPIC_NAME_INVALID,
    Code.TOPIC: Reason.TOPIC_NAME_INVALID,
    Code.RESERVED: Reason.NOT_AUTHORIZED,
    Code.DENIED: Reason.NOT_AUTHORIZED,
    Code.FULL: Reason.QUOTA_EXCEEDED,
    Code.STREAMS: Reason.QUOTA_EXCEEDED,
    Code.NODESTREAMS: Reason.QUOTA_EXCEEDED,
    Code.SUBSCRIPTIONS: Reason.QUOTA_EXCEEDED,
    Code.CONNECTIONS: Reason.QUOTA_EXCEEDED,
    Code.OVERLOADED: Reason.QUOTA_EXCEEDED,
    Code.CLOSING: Reason.SERVER_SHUTTING_DOWN,
    Code.SLOW: Reason.QUOTA_EXCEEDED,
    Code.TIMEOUT: Reason.MAXIMUM_CONNECT_TIME,
    Code.PROTOCOL: Reason.PROTOCOL_ERROR,
    Code.UNAVAILABLE: Reason.IMPLEMENTATION_SPECIFIC,
    Code.DAMAGED: Reason.IMPLEMENTATION_SPECIFIC,
    Code.DISABLED: Reason.IMPLEMENTATION_SPECIFIC,
}


def reason_of(code: Code) -> Reason:
    """The reason code for an error of the other protocols."""
    return _REASONS.get(code, Reason.UNSPECIFIED)


class PacketError(PeerError):
    """A packet that ends its connection. `reason`: for the DISCONNECT or CONNACK of MQTT 5. `version`: that of a faulty
    CONNECT, if it could be read; else 0.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        code = Code.SIZE if reason is Reason.PACKET_TOO_LARGE else Code.PROTOCOL
        super().__init__(code, text, fatal=True)
        self.reason = reason
        self.version = 0


def malformed(text: str) -> PacketError:
    """The error for a packet that cannot be parsed."""
    return PacketError(Reason.MALFORMED_PACKET, text)


def protocol_error(text: str) -> PacketError:
    """The error for a packet that can be parsed and is not allowed there, or not with these values."""
    return PacketError(Reason.PROTOCOL_ERROR, text)
