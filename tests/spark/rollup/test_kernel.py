"""The kernel by itself: segments in, rows out. test_reading.py holds it against whole directories."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.spark.rollup import kernel
from tailrace.spark.rollup.kernel import (
    DAY_US,
    HOUR_US,
    LEVELS,
    MINUTE_US,
    NO_GAP,
    SEARCHED_ROWS_MIN,
    WIDTHS_US,
    Rows,
    Segment,
    roll_up,
)
from tailrace.spark.rollup.quantile import NO_VALUE
from tests.spark.rollup.reference import percentile
from tests.spark.rollup.reference import sketch as reference_sketch

NOON_US = 20_000 * DAY_US + 12 * HOUR_US


def segment(
    times_us: list[int],
    sizes: list[int],
    stream: int = 0,
    first_seq: int = 0,
    previous_us: int = NO_GAP,
    missing: int = 0,
    damaged: int = 0,
    damaged_behind: int = 0,
) -> Segment:
    times, size = np.array(times_us, np.int64), np.array(sizes, np.int64)
    return Segment(stream, first_seq, times, size, previous_us, missing, damaged, damaged_behind)


def as_dicts(rows: Rows) -> list[dict[str, int]]:
    return [dict(zip(Rows._fields, map(int, row), strict=True)) for row in zip(*rows, strict=True)]


def test_one_message() -> None:
    (row,) = as_dicts(roll_up([segment([NOON_US + 5], [7], first_seq=3)])[0]["minute"])
    none = dict.fromkeys(("gap_min_us", "gap_max_us", "gap_p50_us", "gap_p99_us"), NO_VALUE)
    sizes = dict.fromkeys(("size_min", "size_max", "size_p50", "size_p99", "bytes"), 7)
    seqs = {"first_seq": 3, "last_seq": 3, "missing": 0, "damaged": 0}
    assert row == {"stream": 0, "start_us": NOON_US, "messages": 1, "gaps": 0, "gap_sum_us": 0} | sizes | none | seqs


def test_a_gap_belongs_to_the_minute_of_the_later_message() -> None:
    rows = as_dicts(roll_up([segment([NOON_US, NOON_US + MINUTE_US], [1, 1], previous_us=NOON_US - 9)])[0]["minute"])
    assert [(row["gaps"], row["gap_sum_us"]) for row in rows] == [(1, 9), (1, MINUTE_US)]


def test_two_streams_in_one_minute_are_two_rows() -> None:
    rows = roll_up([segment([NOON_US], [1], 4), segment([NOON_US], [2], 9), segment([NOON_US], [4], 4)])[0]
    for level in LEVELS:
        assert [(row["stream"], row["bytes"]) for row in as_dicts(rows[level])] == [(4, 1), (9, 2), (4, 4)]


def test_what_is_missing_and_damaged_is_told_where_it_was() -> None:
    first = segment([NOON_US, NOON_US + 1], [1, 1])
    second = segment([NOON_US + 2, NOON_US + MINUTE_US], [1, 1], first_seq=9, missing=3, damaged=4, damaged_behind=5)
    minutes, hours, _ = (as_dicts(rows) for rows in roll_up([first, second])[0].values())
    assert [(row["messages"], row["missing"], row["damaged"]) for row in minutes] == [(3, 3, 4), (1, 0, 5)]
    assert [(row["first_seq"], row["last_seq"]) for row in minutes] == [(0, 9), (10, 10)]
    assert [(row["missing"], row["damaged"], row["gaps"]) for row in hours] == [(3, 9, 2)]


times = st.lists(st.integers(NOON_US - 3 * HOUR_US, NOON_US + 13 * HOUR_US), min_size=1, max_size=60).map(sorted)


@given(st.lists(times, min_size=1, max_size=3))
def test_minutes_are_the_same_whether_each_message_is_looked_at_or_not(streams: list[list[int]]) -> None:
    segments = [segment(times_us, [1] * len(times_us), number) for number, times_us in enumerate(streams)]
    looked_at, _ = roll_up(segments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "SEARCHED_ROWS_MIN", 0)
        searched, _ = roll_up(segments)
    for level in LEVELS:
        assert as_dicts(searched[level]) == as_dicts(looked_at[level])


def test_a_day_that_is_large_enough_for_every_shortcut() -> None:
    """Its minutes are searched, its groups are sorted one by one, and its sketches are made of sorted values."""
    random = np.random.default_rng(7)
    times_us = np.sort(random.integers(NOON_US, NOON_US + 3 * MINUTE_US, 3 * SEARCHED_ROWS_MIN))
    sizes = random.integers(0, 5_000, len(times_us))
    rows, sketches = roll_up([Segment(0, 0, times_us, sizes)])
    gaps = np.diff(times_us)
    for row, minute in zip(as_dicts(rows["minute"]), range(3), strict=True):
        own = times_us // MINUTE_US == NOON_US // MINUTE_US + minute
        assert row["messages"] == own.sum()
        for name, numbers in (("size", sizes[own]), ("gap", gaps[own[1:]])):
            suffix = "_us" * (name == "gap")
            for percent in (50, 99):
                assert row[f"{name}_p{percent}{suffix}"] == percentile(numbers.tolist(), percent)
            assert (row[f"{name}_min{suffix}"], row[f"{name}_max{suffix}"]) == (numbers.min(), numbers.max())
        assert (row["gaps"], row["gap_sum_us"]) == (len(gaps[own[1:]]), gaps[own[1:]].sum())
    assert sketches is not None
    for found, numbers in zip(sketches, (sizes, gaps), strict=True):
        pairs = zip(found.bins.tolist(), found.counts.tolist(), strict=True)
        assert [{"bin": place, "count": count} for place, count in pairs] == reference_sketch(numbers.tolist())


@given(times, st.data())
def test_however_a_stream_is_cut_into_segments(times_us: list[int], data: st.DataObject) -> None:
    sizes = [at % 997 for at in times_us]
    whole, _ = roll_up([segment(times_us, sizes, first_seq=100)])
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(times_us) - 1)), max_size=4)))
    bounds = list(pairwise([0, *(cut for cut in cuts if cut < len(times_us)), len(times_us)]))
    parts = [segment(times_us[a:b], sizes[a:b], 0, 100 + a, times_us[a - 1] if a else NO_GAP) for a, b in bounds]
    cut, _ = roll_up(parts)
    for level in LEVELS:
        assert as_dicts(cut[level]) == as_dicts(whole[level])


@given(times)
def test_hours_and_days_have_the_percentiles_of_their_own_messages(times_us: list[int]) -> None:
    sizes = [at % 997 for at in times_us]
    for level, rows in roll_up([segment(times_us, sizes)])[0].items():
        for row in as_dicts(rows):
            first = bisect_left(times_us, row["start_us"])
            own = sizes[first : bisect_left(times_us, row["start_us"] + WIDTHS_US[level])]
            assert (row["messages"], row["size_p50"], row["size_p99"]) == (
                len(own),
                percentile(own, 50),
                percentile(own, 99),
            )
