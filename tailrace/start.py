"""Where reading begins, as a person writes it, turned into the protocol's FROM."""

from __future__ import annotations

import re
from datetime import UTC, datetime

FORMS = '0, new, #SEQ, microseconds since 1970, "2024-05-31T12:00" (local unless it has a zone), "10m ago"'

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
_NUMBER_MAX = (1 << 63) - 1


class BadStart(ValueError):
    """Not a place to begin; the text says what is."""


def parse_start(text: str, now: datetime | None = None) -> str:
    """FROM for the `sub` command. `now` (with a zone) is for tests. Raises BadStart."""
    lowered = text.strip().lower()
    if lowered == "new":
        return "new"
    digits = lowered.removeprefix("#")
    if digits.isascii() and digits.isdigit():
        if len(digits) > 19 or int(digits) > _NUMBER_MAX:
            raise BadStart(f"{text!r} is too large: at most {_NUMBER_MAX}")
        return lowered
    ago = _AGO.fullmatch(lowered)
    if ago is not None:
        return str(_ago_us(text, ago[1], ago[2], now or datetime.now(UTC)))
    return str(_time_us(text))


def _ago_us(text: str, number: str, unit: str, now: datetime) -> int:
    unit_s = _UNIT_S.get(unit) or _UNIT_S.get(unit + "s")
    if unit_s is None:
        raise BadStart(f"{text!r}: unknown unit {unit!r}; units are s, m, h, d, w")
    return max(0, to_us(now) - int(float(number) * unit_s * 1_000_000))


def _time_us(text: str) -> int:
    try:
        return max(0, to_us(datetime.fromisoformat(text.strip()).astimezone()))
    except (ValueError, OverflowError, OSError):
        raise BadStart(f"{text!r} is no place to begin; write {FORMS}") from None


def to_us(time: datetime) -> int:
    """Microseconds since the Unix epoch, exact."""
    since = time - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def to_iso(timestamp_us: int) -> str:
    """The time in UTC with all its microseconds; "" for one that no calendar has."""
    try:
        seconds = datetime.fromtimestamp(timestamp_us // 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f"{seconds:%Y-%m-%dT%H:%M:%S}.{timestamp_us % 1_000_000:06}Z"
