"""Subscriptions that begin in the past: by their filter, or by a user property of SUBSCRIBE.

`$replay/FROM/FILTER` works in both versions. In MQTT 5 the user property `from` is for all filters of a SUBSCRIBE.
EMQX's `$s/FROM/FILTER` and `$stream/NAME/FILTER`, with the user property `stream-offset`, mean the same here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from tailrace.protocol.places import FROM_NEW, NUMBER_MAX, From
from tailrace.protocol.topics import ANY_LEVELS, SEPARATOR, SHARE_PREFIX, split_shared

TIMED_PREFIXES: Final = (b"$replay/", b"$s/")
STREAM_PREFIX: Final = b"$stream/"
PLACE_BYTES_MAX: Final = 64
WITH_SEQ: Final = 4
WITH_TIME: Final = 8
"""Marks of a form: its packets have the seq, or the time in microseconds, as a user property."""
_MARKS: Final = {b"seq": WITH_SEQ, b"time": WITH_TIME}
_EARLIEST: Final = frozenset({b"0", b"earliest"})
_LATEST: Final = frozenset({b"new", b"latest"})
_AGO: Final = re.compile(rb"-([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])")
_UNITS_S: Final = {b"s": 1, b"m": 60, b"h": 3_600, b"d": 86_400, b"w": 604_800}
_MICROSECONDS: Final = 1_000_000


class SplitFilter(NamedTuple):
    """A filter of SUBSCRIBE in its parts. `group`: of a shared subscription. `place`: its beginning, b"" without one.
    `stream`: the only one that it is for, b"" if its topics decide. `topics`: the filter of the topics.
    """

    group: bytes
    place: bytes
    stream: bytes
    topics: bytes


class Wishes(NamedTuple):
    """User properties of a SUBSCRIBE: the place at which its subscriptions begin, b"" for new messages; marks."""

    place: bytes = b""
    marks: int = 0


def split_filter(topic_filter: bytes) -> SplitFilter:
    """The parts of any filter; none of them is checked."""
    if topic_filter.startswith(SHARE_PREFIX):
        group, topics = split_shared(topic_filter)
        return SplitFilter(group, b"", b"", topics)
    for prefix in TIMED_PREFIXES:
        if topic_filter.startswith(prefix):
            place, _, topics = topic_filter[len(prefix) :].partition(SEPARATOR)
            return SplitFilter(b"", place or b"?", b"", topics)
    if topic_filter.startswith(STREAM_PREFIX):
        stream, _, topics = topic_filter[len(STREAM_PREFIX) :].partition(SEPARATOR)
        return SplitFilter(b"", b"", stream or b"$", topics or ANY_LEVELS)
    return SplitFilter(b"", b"", b"", topic_filter)


def wishes_of(pairs: Iterable[tuple[bytes, bytes]]) -> Wishes:
    """Those of the user properties of a SUBSCRIBE. Unknown ones count for nothing."""
    place, marks = b"", 0
    for name, value in pairs:
        if name in (b"from", b"stream-offset"):
            place = value
        elif name == b"with":
            for each in value.split(b","):
                marks |= _MARKS.get(each.strip(), 0)
    return Wishes(place, marks)


def read_place(text: bytes, now_us: int) -> From:
    """Where to begin: 0, microseconds, an ISO time (UTC unless it has a zone), -1h, #SEQ or @SEQ, new. Raises
    ValueError.
    """
    if len(text) > PLACE_BYTES_MAX:
        raise ValueError(f"a place has at most {PLACE_BYTES_MAX} bytes")
    if text in _EARLIEST:
        return From("time", 0)
    if text in _LATEST:
        return FROM_NEW
    if text[:1] in (b"#", b"@"):
        return From("seq", _number(text[1:]))
    if ago := _AGO.fullmatch(text):
        back_us = int(float(ago[1]) * _UNITS_S[ago[2]] * _MICROSECONDS)
        return From("time", max(now_us - back_us, 0))
    if text.isdigit():
        return From("time", _number(text))
    time = datetime.fromisoformat(text.decode())
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return From("time", max(int(time.timestamp() * _MICROSECONDS), 0))


def _number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > len(str(NUMBER_MAX)) or int(digits) > NUMBER_MAX:
        raise ValueError(f"{digits!r} is no number from 0 to {NUMBER_MAX}")
    return int(digits)
