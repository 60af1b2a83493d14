"""Reason codes and return codes."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest

from tailrace.protocol.errors import Code
from tailrace.protocol.mqtt.reasons import (
    CLIENT_DISCONNECTS,
    FAILURE,
    RECEIPT_REASONS,
    RELEASE_REASONS,
    RETURN_CODES,
    PacketError,
    Reason,
    malformed,
    protocol_error,
    reason_of,
)


def codes_of(kind: Any) -> set[int]:
    """The values of an enumeration of the other implementation, which cannot be iterated over."""
    return {int(getattr(kind, name)) for name in dir(kind) if name.isupper()}


def test_the_codes_are_those_of_another_implementation() -> None:
    kinds = [getattr(mqtt5, name) for name in dir(mqtt5) if name.endswith("ReasonCode")]
    theirs = set().union(*map(codes_of, kinds))
    assert theirs <= {int(code) for code in Reason}


def test_every_error_has_a_reason_that_means_failure() -> None:
    assert all(reason_of(code) >= FAILURE for code in Code)
    assert reason_of(Code.DENIED) is Reason.NOT_AUTHORIZED and reason_of(Code.FULL) is Reason.QUOTA_EXCEEDED


def test_return_codes_are_those_of_table_3_1() -> None:
    assert set(RETURN_CODES.values()) == set(range(6))


def test_acknowledgements_of_a_client() -> None:
    for kind in (mqtt5.PubAckReasonCode, mqtt5.PubRecReasonCode):
        assert {int(code) for code in RECEIPT_REASONS} == codes_of(kind)
    for other in (mqtt5.PubRelReasonCode, mqtt5.PubCompReasonCode):
        assert {int(code) for code in RELEASE_REASONS} == codes_of(other)


def test_disconnects_of_a_client() -> None:
    assert {int(code) for code in CLIENT_DISCONNECTS} <= codes_of(mqtt5.DisconnectReasonCode)
    assert Reason.SERVER_SHUTTING_DOWN not in CLIENT_DISCONNECTS


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (malformed("x"), Reason.MALFORMED_PACKET, Code.PROTOCOL),
        (protocol_error("x"), Reason.PROTOCOL_ERROR, Code.PROTOCOL),
        (PacketError(Reason.PACKET_TOO_LARGE, "x"), Reason.PACKET_TOO_LARGE, Code.SIZE),
    ],
)
def test_errors_end_the_connection(error: PacketError, reason: Reason, code: Code) -> None:
    assert (error.reason, error.code, error.fatal) == (reason, code, True)
