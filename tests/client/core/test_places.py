"""Places in a stream."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tailrace.core.places import NEW, NOW, START, EndPlace, Seq, StartPlace, Time, end_of, start_of, to_datetime, to_us
from tailrace.errors import InvalidArgument
from tailrace.protocol.places import From

NOON = datetime(2024, 5, 31, 12, tzinfo=UTC)
NOON_US = 1_717_156_800_000_000


@pytest.mark.parametrize(
    ("place", "start"),
    [
        (START, From("time", 0)),
        (0, From("time", 0)),
        (NEW, From("new", 0)),
        (Seq(5), From("seq", 5)),
        (Time(7), From("time", 7)),
        (NOON, From("time", NOON_US)),
        (datetime(1969, 1, 1, tzinfo=UTC), From("time", 0)),
    ],
)
def test_starts(place: StartPlace, start: From) -> None:
    assert start_of(place) == start


@pytest.mark.parametrize(
    ("place", "end"),
    [(None, None), (NOW, ("now", 0)), (Seq(5), ("seq", 5)), (Time(7), ("time", 7)), (NOON, ("time", NOON_US))],
)
def test_ends(place: EndPlace, end: tuple[str, int] | None) -> None:
    assert end_of(place) == end


@pytest.mark.parametrize("place", [5, "new", None, NOW, Seq(-1), Seq(1 << 63), Time(True), Seq(True)])
def test_what_is_no_start(place: StartPlace) -> None:
    with pytest.raises(InvalidArgument, match=r"is not a start of reading: it is START, NEW, Seq\(n\)"):
        start_of(place)


@pytest.mark.parametrize("place", [5, NEW, START, Seq(-1)])
def test_what_is_no_end(place: EndPlace) -> None:
    with pytest.raises(InvalidArgument, match="is not an end of reading: it is None, NOW"):
        end_of(place)


def test_times_are_exact_in_any_zone() -> None:
    time = NOON + timedelta(microseconds=1)
    assert to_us(time) == NOON_US + 1
    assert to_us(time.astimezone(timezone(timedelta(hours=9)))) == NOON_US + 1
    assert to_us(time.astimezone().replace(tzinfo=None)) == NOON_US + 1  # local
    assert to_datetime(NOON_US + 1) == time


def test_names_show_themselves() -> None:
    assert repr([START, NEW, NOW]) == "[START, NEW, NOW]"
