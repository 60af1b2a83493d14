"""Parses where reading begins and ends, from options."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from tailrace.core.places import PLACE_MAX, to_us

TIME_MIN_US: Final = 10**14
TIME_MAX_US: Final = 10**17
"""From 1973 to 5138. A number below is seconds or milliseconds, one above nanoseconds; only 0 is a time, too."""
FORMS: Final = "a time (2026-11-21T12:00:00Z, UTC without a zone, or microseconds since 1970) or a seq (#1000)"

_NUMBER = re.compile(r"(#?)([0-9]{1,19})", re.ASCII)


class Place(NamedTuple):
    """`value` in microseconds since the epoch, or a seq."""

    kind: Literal["time", "seq"]
    value: int


class Range(NamedTuple):
    """From `start` (None: the oldest that is kept) up to before `end` (None: the end at the time of planning)."""

    start: Place | None = None
    end: Place | None = None


EVERYTHING: Final = Range()


def parse_place(text: str) -> Place:
    """Raises ValueError, which lists the valid forms."""
    number = _NUMBER.fullmatch(text.strip())
    if number and int(number[2]) <= PLACE_MAX:
        value = int(number[2])
        if not number[1] and value and not TIME_MIN_US <= value <= TIME_MAX_US:
            raise ValueError(
                f"{text!r} is not a plausible time: numbers are microseconds since 1970, such as 1784000000000000"
            )
        return Place("seq" if number[1] else "time", value)
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not {FORMS}") from None
    return Place("time", max(0, to_us(time if time.tzinfo else time.replace(tzinfo=UTC))))
