"""Messages and receipts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tailrace.core.headers import pack_headers
from tailrace.core.message import Message, Receipt


def test_a_message() -> None:
    message = Message("s", 7, 1_717_156_800_000_001, b"payload", pack_headers({"k": "v"}))
    assert message.headers == {"k": "v"}
    assert message.time == datetime(2024, 5, 31, 12, 0, 0, 1, tzinfo=UTC)
    shown = "Message('s', seq=7, timestamp_us=1717156800000001, payload=b'payload', headers={'k': 'v'})"
    assert repr(message) == shown


def test_a_time_that_no_calendar_has_is_shown_as_a_number() -> None:
    message = Message("s", 7, (1 << 63) - 1, b"", b"")
    assert str((1 << 63) - 1) in repr(message)
    with pytest.raises(ValueError, match="year"):
        _ = message.time


def test_a_large_message_is_not_shown_whole() -> None:
    assert len(repr(Message("s", 7, 0, bytes(1 << 20)))) < 250
    assert Message("s", 7, 0, b"").headers == {}


def test_a_receipt() -> None:
    assert Receipt("s", 7, 3, 0).last_seq == 9
    assert Receipt("s", -1, 3, 0).last_seq == -1
    assert Receipt("s", 7, 3, 0).shown() == "s: messages 7 to 9"
    assert Receipt("s", 7, 1, 0).shown() == "s: message 7"
