"""Parses the position where reading begins, as a person writes it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from tailrace.core.places import NEW, PLACE_MAX, Last, Seq, StartPlace, Time, to_us

FORMS = (
    "0, new, #SEQ, -COUNT (the last ones), microseconds since 1970, "
    '"2024-05-31T12:00" (local unless it has a zone), "10m ago"'
)

_UNIT_S = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3_600,
    "hour": 3_600,
    "d": 86_400,
    "day": 86_400,
    "w": 604_800,
    "week": 604_800,
}
_AGO = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?([a-z]+?)s? ago")


class BadStart(ValueError):
    """Not a valid position; the text gives the reason."""


def parse_start(text: str, now: datetime | None = None) -> StartPlace:
    """The place. `now` (with a zone) is for tests. Raises BadStart."""
    lowered = text.strip().lower()
    if lowered == "new":
        return NEW
    if lowered.startswith("-") and lowered[1:].isdigit() and lowered.isascii():
        return Last(_checked(text, lowered[1:]))
    digits = lowered.removeprefix("#")
    if digits.isascii() and digits.isdigit():
        number = _checked(text, digits)
        return Seq(number) if lowered.startswith("#") else Time(number)
    ago = _AGO.fullmatch(lowered)
    if ago is not None:
        return Time(_ago_us(text, ago[1], ago[2], now or datetime.now(UTC)))
    return Time(_time_us(text))


def _checked(text: str, digits: str) -> int:
    if len(digits) > 19 or int(digits) > PLACE_MAX:
        raise BadStart(f"{text!r} is too large: at most {PLACE_MAX}")
    return int(digits)


def _ago_us(text: str, number: str, unit: str, now: datetime) -> int:
    unit_s = _UNIT_S.get(unit) or _UNIT_S.get(unit + "s")
    if unit_s is None:
        raise BadStart(f"{text!r}: unknown unit {unit!r}; units are s, m, h, d, w")
    return max(0, to_us(now) - int(float(number) * unit_s * 1_000_000))


def _time_us(text: str) -> int:
    try:
        return max(0, to_us(datetime.fromisoformat(text.strip()).astimezone()))
    except (ValueError, OverflowError, OSError):
        raise BadStart(f"{text!r} is not a position; write {FORMS}") from None


def to_iso(timestamp_us: int) -> str:
    """The time in UTC with all its microseconds; "" for one that no calendar has."""
    try:
        seconds = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{timestamp_us % 1_000_000:06}Z"
