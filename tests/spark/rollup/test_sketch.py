"""Sketches against their definition in whole numbers, and percentiles against exact ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.spark.rollup import sketch as module
from tailrace.spark.rollup.quantile import NO_VALUE
from tailrace.spark.rollup.sketch import (
    ACCURACY,
    BOUNDS,
    Sketches,
    add_sketch,
    add_up,
    count_ordered,
    from_histogram,
    quantiles,
    sketch_groups,
)
from tests.spark.rollup import reference

EDGES = [int(bound) + more for bound in BOUNDS[:-2] for more in (-1, 0, 1)]
numbers = st.one_of(st.integers(0, 400), st.integers(0, 2**62), st.sampled_from(EDGES), st.just(NO_VALUE))
groups = st.lists(st.lists(numbers, min_size=1, max_size=30), min_size=1, max_size=8)


def as_lists(sketches: Sketches) -> list[list[dict[str, int]] | None]:
    ends = [*sketches.starts[1:], len(sketches.bins)]
    parts = [slice(*each) for each in zip(sketches.starts, ends, strict=True)]
    pairs = [zip(sketches.bins[part].tolist(), sketches.counts[part].tolist(), strict=True) for part in parts]
    return [[{"bin": place, "count": count} for place, count in each] or None for each in pairs]


@given(groups, st.sampled_from([1, 1_000]))
def test_as_defined(made: list[list[int]], loop_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LOOP_ROWS", loop_rows)
        starts = np.cumsum([0, *map(len, made)])[:-1]
        found = sketch_groups(np.array([each for group in made for each in group], np.int64), starts)
    values = [[value for value in group if value != NO_VALUE] for group in made]
    assert as_lists(found) == [reference.sketch(group) for group in values]
    for percent in (50, 99):
        for group, near in zip(values, quantiles(found, percent).tolist(), strict=True):
            exact = reference.percentile(group, percent) if group else np.nan
            assert near == pytest.approx(exact, rel=ACCURACY * 1.000001, abs=0, nan_ok=True)


@given(st.lists(numbers.filter(lambda number: number != NO_VALUE), min_size=1, max_size=30).map(sorted))
def test_numbers_in_order(made: list[int]) -> None:
    types = [np.int64, np.uint32] if made[-1] < 2**32 - 1 else [np.int64]
    for each in types:
        assert as_lists(from_histogram(count_ordered(np.array(made, each)))) == [reference.sketch(made)]


def test_every_bound_is_where_it_should_be() -> None:
    found = sketch_groups(np.array(EDGES, np.int64), np.arange(len(EDGES)))
    assert as_lists(found) == [reference.sketch([value]) for value in EDGES]


@given(groups)
def test_parts_add_up_in_any_order(made: list[list[int]]) -> None:
    together: list[int] = [each for group in made for each in group]
    whole = sketch_groups(np.array(together, np.int64), np.array([0]))
    parts = sketch_groups(np.array(together, np.int64), np.cumsum([0, *map(len, made)])[:-1])
    turned = slice(None, None, -1)
    added = add_up(np.zeros(len(parts.bins), np.int64), parts.bins[turned], parts.counts[turned], 1)
    assert as_lists(added) == as_lists(whole)
    histogram = None
    for group in made:
        histogram = add_sketch(histogram, np.array(group, np.int64))
    assert histogram is not None
    assert as_lists(from_histogram(histogram)) == as_lists(whole)
