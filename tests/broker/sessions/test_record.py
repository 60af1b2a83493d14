"""Records of sessions, and when they end."""

from __future__ import annotations

import pytest

from tailrace.broker.sessions.record import (
    FOR_EVER_S,
    Exactness,
    HolderProcess,
    SessionRecord,
    Will,
    log_of,
    pack_record,
    unpack_record,
)
from tailrace.shard.names import SESSION_LOGS

HERE = HolderProcess(7, 11)
LEFT = SessionRecord(3, "ann", 60, HERE, 1_000_000, Exactness.HERE, Will(10, b"s", b"frame"), b"state")


@pytest.mark.parametrize("record", [LEFT, LEFT._replace(will=None, left_us=0, user=""), None])
def test_a_record_is_given_back(record: SessionRecord | None) -> None:
    assert unpack_record(pack_record(b"\xc3\xa9/#", record)) == (b"\xc3\xa9/#", record)


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x01", b"\x92\xa1a\x01"])
def test_another_payload_is_an_error(payload: bytes) -> None:
    with pytest.raises(ValueError, match="record of a session"):
        unpack_record(payload)


def test_it_ends_after_its_expiry_without_a_connection() -> None:
    assert LEFT.ends_us() == 61_000_000
    assert not LEFT.has_expired(60_999_999) and LEFT.has_expired(61_000_000)
    assert not LEFT._replace(expiry_s=FOR_EVER_S).has_expired(1 << 62)
    assert not LEFT._replace(left_us=0).has_expired(1 << 62), "[MQTT-4.1.0-1]"


def test_its_will_is_due_at_the_end_of_the_session_at_the_latest() -> None:
    """[MQTT-3.1.2-8]."""
    assert LEFT.will_due_us() == 11_000_000
    assert LEFT._replace(expiry_s=4).will_due_us() == 5_000_000
    assert LEFT._replace(left_us=0).will_due_us() is None and LEFT._replace(will=None).will_due_us() is None


def test_clients_are_spread_over_the_logs() -> None:
    assert {log_of(b"%d" % number) for number in range(1_000)} == set(SESSION_LOGS)
