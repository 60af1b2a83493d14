"""Cutting a day into units, and units into tasks."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from tailrace.spark.rollup.kernel import DAY_US, HOUR_US, LEVELS, MINUTE_US, WIDTHS_US
from tailrace.spark.rollup.units import STREAM_ROWS, Unit, cut_units, is_too_large, pack
from tailrace.spark.slices import Slice


class Stream:
    """Messages at these times; the first has seq 1000."""

    def __init__(self, times_us: list[int]) -> None:
        self.times_us = times_us
        self.day = Slice("s", 3, 1_000, 1_000 + len(times_us), (7, 0))

    def cut_at(self, timestamp_us: int, _end_seq: int) -> int:
        return 1_000 + bisect_left(self.times_us, timestamp_us)

    def times_of(self, unit: Unit) -> list[int]:
        return self.times_us[unit.slice.first_seq - 1_000 : unit.slice.end_seq - 1_000]


times = st.lists(
    st.one_of(st.integers(0, DAY_US - 1), st.integers(0, 5 * MINUTE_US), st.just(HOUR_US)), min_size=1, max_size=80
).map(sorted)


@given(times, st.integers(1, 40))
def test_every_row_is_made_by_one_unit_from_all_its_messages(times_us: list[int], whole: int) -> None:
    stream = Stream(times_us)
    units = cut_units(stream.day, 0, DAY_US, stream.cut_at, whole)
    for level in LEVELS:
        own = [unit for unit in units if level in unit.levels]
        assert sorted(at for unit in own for at in stream.times_of(unit)) == times_us
        rows = [{at // WIDTHS_US[level] for at in stream.times_of(unit)} for unit in own]
        assert sum(map(len, rows)) == len(set[int]().union(*rows)), "a row is in two units"
    for unit in units:
        if is_too_large(unit, whole):
            (level,) = unit.levels
            assert len({at // WIDTHS_US[level] for at in stream.times_of(unit)}) == 1, "large units are one row"


def test_a_stream_that_fits_is_one_unit() -> None:
    stream = Stream([0, 5, DAY_US - 1])
    assert cut_units(stream.day, 0, DAY_US, stream.cut_at) == [Unit(stream.day, LEVELS)]


def unit(messages: int) -> Unit:
    return Unit(Slice("s", 0, 0, messages), LEVELS)


@given(st.lists(st.integers(1, 20_000), max_size=40))
def test_tasks_have_all_units_and_a_bound(sizes: list[int]) -> None:
    tasks = pack(map(unit, sizes), 10_000)
    assert sorted(each.slice.messages for task in tasks for each in task) == sorted(sizes)
    for task in tasks:
        assert task
        assert len(task) == 1 or sum(each.cost_rows for each in task) <= 10_000
    costs = [sum(each.cost_rows for each in task) for task in tasks]
    assert costs == sorted(costs, reverse=True)


def test_very_many_small_streams_are_a_few_tasks() -> None:
    tasks = pack([unit(10)] * 10_000, 1_000_000)
    assert len(tasks) <= 10_000 * (STREAM_ROWS + 10) // 1_000_000 + 2
