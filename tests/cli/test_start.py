"""Places to begin, as a person writes them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cli.start import BadStart, parse_start, to_iso
from tailrace.core.places import NEW, Last, Seq, StartPlace, Time, to_us

NOW = datetime(2024, 5, 31, 12, 0, 0, 250_001, UTC)
NOW_US = 1_717_156_800_250_001


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("0", Time(0)),
        ("new", NEW),
        (" NEW ", NEW),
        ("#17", Seq(17)),
        ("-10", Last(10)),
        ("1717156800250001", Time(NOW_US)),
        ("10m ago", Time(NOW_US - 600_000_000)),
        ("10 minutes ago", Time(NOW_US - 600_000_000)),
        ("90s ago", Time(NOW_US - 90_000_000)),
        ("1.5 h ago", Time(NOW_US - 5_400_000_000)),
        ("2 days ago", Time(NOW_US - 172_800_000_000)),
        ("1w ago", Time(NOW_US - 604_800_000_000)),
        ("9999999 weeks ago", Time(0)),
        ("2024-05-31T12:00:00.250001Z", Time(NOW_US)),
        ("2024-05-31T14:00:00.250001+02:00", Time(NOW_US)),
        ("2024-05-31 12:00Z", Time(NOW_US - 250_001)),
        ("1960-01-01T00:00Z", Time(0)),
    ],
)
def test_places(text: str, start: StartPlace) -> None:
    assert parse_start(text, NOW) == start


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_start("2024-05-31T21:00:00.250001") == Time(NOW_US)
        assert parse_start("2024-05-31") == Time(to_us(datetime(2024, 5, 31, tzinfo=timezone(timedelta(hours=9)))))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "#", "#x", "-", "-x", "10m", "yesterday", "2024-13-01", "٣", "#٣", "10 m  ago"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(BadStart, match="is not a position; write 0, new, #SEQ"):
        parse_start(text, NOW)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5 parsecs ago", "unknown unit 'parsec'"),
        ("#99999999999999999999", "too large"),
        ("9223372036854775808", "too large"),
    ],
)
def test_what_is_nearly_a_place(text: str, message: str) -> None:
    with pytest.raises(BadStart, match=message):
        parse_start(text, NOW)


def test_microseconds_survive() -> None:
    assert to_us(NOW) == NOW_US
    assert to_iso(NOW_US) == "2024-05-31T12:00:00.250001Z"
    assert to_iso(10**19) == ""


@given(st.integers(0, 253_402_300_799_999_999))
def test_a_printed_time_is_a_place(timestamp_us: int) -> None:
    assert parse_start(to_iso(timestamp_us)) == Time(timestamp_us)
