from __future__ import annotations

import pytest

from tailrace.spark.places import Place, parse_place

NOON_US = 1_795_262_400_000_000


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("#0", Place("seq", 0)),
        (" #1000 ", Place("seq", 1000)),
        ("1795262400000000", Place("time", NOON_US)),
        ("2026-11-21T12:00:00", Place("time", NOON_US)),
        ("2026-11-21 12:00:00Z", Place("time", NOON_US)),
        ("2026-11-21T14:00:00.000001+02:00", Place("time", NOON_US + 1)),
        ("2026-11-21", Place("time", NOON_US - 43_200_000_000)),
        ("1969-12-31", Place("time", 0)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text) == place


@pytest.mark.parametrize("text", ["", "#", "#-1", "yesterday", "#99999999999999999999", "9999999999999999999", "1.5"])
def test_what_is_no_place_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"2026-11-21T12:00:00Z.*#1000"):
        parse_place(text)
