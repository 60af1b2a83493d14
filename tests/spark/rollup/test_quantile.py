"""Exact quantiles, against sorting each group in plain Python."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.spark.rollup import quantile
from tailrace.spark.rollup.quantile import NO_VALUE, PERCENTS, group_quantiles, narrowed, quantiles_in_passes, rank
from tests.spark.rollup.reference import percentile

values = st.one_of(
    st.integers(0, 300),
    st.sampled_from([0, 2**32 - 2, 2**32 - 1, 2**32, 2**40, 2**62]),
    st.just(NO_VALUE),
)
groups = st.lists(st.lists(values, min_size=1, max_size=40), min_size=1, max_size=12)


def expected(group: list[int], percent: int) -> int:
    valid = [value for value in group if value != NO_VALUE]
    return percentile(valid, percent) if valid else NO_VALUE


small_values = st.one_of(st.integers(0, 300), st.sampled_from([2**20, 2**32 - 2, NO_VALUE]))
narrow_groups = st.lists(st.lists(small_values, min_size=1, max_size=40), min_size=1, max_size=12)


@given(st.one_of(groups, narrow_groups), st.sampled_from([1, 8, 512]))
def test_groups_of_all_sizes_at_once(made: list[list[int]], small_max: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantile, "SMALL_GROUP_ROWS_MAX", small_max)
        starts = np.array([0, *accumulate(map(len, made))][:-1], np.int64)
        counts = np.array([sum(value != NO_VALUE for value in group) for group in made], np.int64)
        numbers = np.array([each for group in made for each in group], np.int64)
        largest = max((each for group in made for each in group if each != NO_VALUE), default=0)
        found = group_quantiles(narrowed(numbers, largest), starts, counts)
    for percent, quantiles in zip(PERCENTS, found, strict=True):
        assert quantiles.tolist() == [expected(group, percent) for group in made]


def test_a_large_group_is_selected_from() -> None:
    numbers = np.random.default_rng(5).integers(0, 1 << 35, 5_000)
    found = group_quantiles(numbers, np.array([0]), np.array([5_000]))
    assert [int(each[0]) for each in found] == [percentile(numbers.tolist(), percent) for percent in PERCENTS]


@given(st.lists(st.lists(values, max_size=10), max_size=5))
def test_in_passes_as_at_once(blocks: list[list[int]]) -> None:
    together = [value for block in blocks for value in block if value != NO_VALUE]
    found = quantiles_in_passes(lambda: (np.array(block, np.int64) for block in blocks), len(together))
    assert found == [expected(together, percent) for percent in PERCENTS]


def test_values_that_vanish_between_passes_are_noticed() -> None:
    left = iter([[1, 2, 3], [1], [1], [1], [1]])
    with pytest.raises(ValueError, match="changed"):
        quantiles_in_passes(lambda: [np.array(next(left), np.int64)], 3)


@pytest.mark.parametrize(("count", "median", "high"), [(1, 0, 0), (2, 0, 1), (3, 1, 2), (100, 49, 98), (101, 50, 99)])
def test_ranks(count: int, median: int, high: int) -> None:
    assert (rank(count, 50), rank(count, 99)) == (median, high)
