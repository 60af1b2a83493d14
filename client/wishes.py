"""A program's settings for a subscription, checked."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tailrace.errors import InvalidArgument
from tailrace.framing import checked_stream
from tailrace.places import EndPlace, StartPlace, end_of, start_of
from tailrace.reading import Wish

OnTrimmed: TypeAlias = Literal["raise", "skip"]


def wish_of(
    stream: str,
    start: StartPlace,
    end: EndPlace,
    skip: int,
    credit_bytes: int,
    check_crc: bool,
    on_trimmed: OnTrimmed,
    timeout_s: float,
) -> Wish:
    """Raises InvalidArgument, InvalidStreamName."""
    if on_trimmed not in ("raise", "skip"):
        raise InvalidArgument(f'on_trimmed is {on_trimmed!r}; it is "raise" or "skip"')
    place = start_of(start)
    if skip and place.kind != "time":
        raise InvalidArgument("skip goes with a start that is a time")
    raise_trimmed = on_trimmed == "raise"
    return Wish(checked_stream(stream), place, skip, end_of(end), credit_bytes, check_crc, raise_trimmed, timeout_s)
