"""Places in a stream, as a program names them, and as the protocol does."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias

from tailrace.errors import InvalidArgument
from tailrace.protocol.messages import WirePlace
from tailrace.protocol.places import FROM_NEW, From

PLACE_MAX: Final = (1 << 63) - 1
"""The largest seq or time."""


class NamedPlace(Enum):
    """Places that have a name."""

    START = "start"
    NEW = "new"
    NOW = "now"

    def __repr__(self) -> str:
        return self.name


START: Final = NamedPlace.START
"""Begin with the oldest message that is kept."""
NEW: Final = NamedPlace.NEW
"""Begin with what is published from now on."""
NOW: Final = NamedPlace.NOW
"""End where the stream ends at this moment."""


class Seq(NamedTuple):
    """As a start: the message with this seq is the first. As an end: it is the first that is left out."""

    seq: int


class Last(NamedTuple):
    """As a start: begin this number of messages before the end, or with the oldest if there are fewer."""

    messages: int


class Time(NamedTuple):
    """Microseconds since 1970. As a start: the first message is the first at or after it. As an end: the last is the
    last before it. A `datetime` may stand for it; one without a zone is local time.
    """

    timestamp_us: int


StartPlace: TypeAlias = Literal[NamedPlace.START, NamedPlace.NEW, 0] | Seq | Last | Time | datetime
EndPlace: TypeAlias = Literal[NamedPlace.NOW] | Seq | Time | datetime | None


def start_of(place: StartPlace) -> From:
    """Raises InvalidArgument."""
    if place is START or place == 0:
        return From("time", 0)
    if place is NEW:
        return FROM_NEW
    if isinstance(place, Last):
        if type(place.messages) is not int or not 0 <= place.messages <= PLACE_MAX:
            raise InvalidArgument(f"{place!r} is not a start of reading: it is a number of messages")
        return From("last", place.messages) if place.messages else FROM_NEW
    kind, value = _seq_or_time(place, "a start", "START, NEW, Seq(n), Last(n), Time(us) or a datetime")
    return From("seq" if kind == "seq" else "time", value)


def end_of(place: EndPlace) -> WirePlace | None:
    """Raises InvalidArgument."""
    if place is None:
        return None
    if place is NOW:
        return ("now", 0)
    return _seq_or_time(place, "an end", "None, NOW, Seq(n), Time(us) or a datetime")


def _seq_or_time(place: object, what: str, forms: str) -> WirePlace:
    kind, value = "", -1
    if isinstance(place, Seq):
        kind, value = "seq", place.seq
    elif isinstance(place, Time):
        kind, value = "time", place.timestamp_us
    elif isinstance(place, datetime):
        kind, value = "time", max(0, to_us(place))
    if not kind or type(value) is not int or not 0 <= value <= PLACE_MAX:
        raise InvalidArgument(f"{place!r} is not {what} of reading: it is {forms}")
    return (kind, value)


def to_us(time: datetime) -> int:
    """Microseconds since the Unix epoch, exact. Without a zone it is local time."""
    since = time.astimezone(UTC) - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def to_datetime(timestamp_us: int) -> datetime:
    """In UTC, exact. ValueError or OverflowError for one that no calendar has."""
    seconds, microseconds = divmod(timestamp_us, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microseconds)
