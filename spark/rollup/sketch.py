"""Mergeable sketches of many groups of numbers: how many of them are in each of bins of equal relative width.

These are the bins of DDSketch, with a relative accuracy of 1 %: bin k > 0 has the whole numbers above G**(k-1) up to
G**k, where G is 101/99; bin 0 has 1, and bin -1 has 0. Counts of the same bin add up, so sketches of days make a sketch
of a week, in any order and always the same. The bounds are computed in whole numbers, so every machine counts alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.spark.entries import Int64s
from tailrace.spark.rollup.quantile import NO_VALUE, rank

ACCURACY: Final = 0.01
"""A percentile from a sketch is off by at most this part of the exact one."""
_ABOVE, _BELOW = 101, 99  # G
_FIRST_BIN: Final = -1
_LOOP_ROWS: Final = 1_000
"""Groups of more rows on average are counted one by one."""
_DIRECT_MAX: Final = 8_192
_BLOCK_VALUES: Final = 1 << 16
"""Values whose bins are looked up at one time, in the processor's cache."""
_MANTISSA_BITS: Final = 10
_SHIFT: Final = 52 - _MANTISSA_BITS
_LOWEST: Final = 1023 << _MANTISSA_BITS  # of the number 1, in the upper bits of a float


def _make_bounds() -> Int64s:
    """The greatest number of each bin, from bin 0 on; that of the last is NO_VALUE."""
    bounds, above, below = [], 1, 1
    while above // below < NO_VALUE:
        bounds.append(above // below)
        above, below = above * _ABOVE, below * _BELOW
    return np.array([*bounds, NO_VALUE], np.int64)


BOUNDS: Final = _make_bounds()
_BINS: Final = len(BOUNDS) + 1  # with that of 0
_STARTS: Final = np.arange(_LOWEST, _LOWEST + (64 << _MANTISSA_BITS), dtype=np.int64) << _SHIFT
_GUESSES: Final = np.searchsorted(BOUNDS, np.minimum(_STARTS.view(np.float64), 2.0**63 - 1024).astype(np.int64)).astype(
    np.int16
)
"""The bin of the least number with these upper bits as a float. No two bounds have the same upper bits."""


NONE_KNOWN: Final[Mapping[int, Int64s]] = MappingProxyType({})


class Sketches(NamedTuple):
    """Sketches of several groups: the bins of group i are bins[starts[i]:starts[i + 1]], with as many counts."""

    starts: Int64s
    bins: NDArray[Any]
    counts: Int64s


def places_of(values: Int64s) -> NDArray[Any]:
    """The bin of each number from 0 on, plus one: 0 is the bin of 0. NO_VALUE is in the last."""
    if not len(values) or values.max() <= _SMALL_MAX:
        return _SMALL[values]
    places = _SMALL[np.minimum(values, _SMALL_MAX)]
    large = np.flatnonzero(values > _SMALL_MAX)
    places[large] = _search_places(values[large])
    return places


def _search_places(values: Int64s) -> NDArray[Any]:
    """The same for numbers from 1 on, by the upper bits that they have as floats."""
    upper = (values.astype(np.float64).view(np.int64) >> _SHIFT) - _LOWEST
    guesses = _GUESSES[np.minimum(upper, len(_GUESSES) - 1)]
    found: NDArray[Any] = guesses + (values > BOUNDS[guesses]) + 1
    return found


_SMALL: Final = np.concatenate(([0], np.searchsorted(BOUNDS, np.arange(1, 1 << 19)) + 1)).astype(np.int16)
_SMALL_MAX: Final = len(_SMALL) - 1
"""Most sizes and gaps are below this, so that one look at a table of a megabyte finds their bin."""


def sketch_groups(values: Int64s, starts: Int64s, known: Mapping[int, Int64s] = NONE_KNOWN) -> Sketches:
    """Group i is values[starts[i]:starts[i + 1]]; NO_VALUE is not counted. `known`: histograms of some groups."""
    if len(values) >= _LOOP_ROWS * len(starts):
        groups = enumerate(np.split(values, starts[1:]))
        return _from_histograms(known[place] if place in known else _histogram(each) for place, each in groups)
    is_short = len(starts) * _BINS < 1 << 32
    key: Any = np.uint32 if is_short else np.int64
    firsts: NDArray[Any] = np.arange(0, len(starts) * _BINS, _BINS, dtype=key)
    keys = np.repeat(firsts, np.diff(starts, append=len(values)))
    keys += places_of(values).astype(key)
    keys.sort()
    begins = np.flatnonzero(np.diff(keys, prepend=keys[0] + 1))
    return _from_sorted(keys[begins].astype(np.int64), np.diff(begins, append=len(keys)), len(starts))


def add_sketch(histogram: Int64s | None, values: Int64s) -> Int64s:
    """A histogram of all bins with these numbers, too; None to begin with."""
    found = _histogram(values)
    return found if histogram is None else histogram + found


def _histogram(values: Int64s) -> Int64s:
    """Counts the values of each bin."""
    found = np.zeros(_BINS, np.int64)
    for start in range(0, len(values), _BLOCK_VALUES):
        block = values[start : start + _BLOCK_VALUES]
        if block.max() < _DIRECT_MAX:  # as sizes mostly are: counted first, and then put into bins
            counts = np.bincount(block)
            found += np.bincount(_SMALL[: len(counts)], weights=counts, minlength=_BINS).astype(np.int64)
        else:
            found += np.bincount(places_of(block), minlength=_BINS)
    return found


def count_ordered(values: NDArray[Any]) -> Int64s:
    """The histogram of numbers in order, without NO_VALUE; at least one."""
    bins = int(np.searchsorted(BOUNDS, int(values[-1]))) + 1
    bounds = np.append(0, np.minimum(BOUNDS[:bins], values[-1])).astype(values.dtype)
    found = np.zeros(_BINS, np.int64)
    found[: bins + 1] = np.diff(np.searchsorted(values, bounds, side="right"), prepend=0)
    return found


def from_histogram(histogram: Int64s) -> Sketches:
    """The sketch of one group."""
    return _from_histograms([histogram])


def _from_histograms(histograms: Iterable[Int64s]) -> Sketches:
    ends, bins, counts = [0], [], []
    for histogram in histograms:
        found = np.flatnonzero(histogram[: _BINS - 1])  # the last is that of NO_VALUE
        bins.append(found)
        counts.append(histogram[found])
        ends.append(ends[-1] + len(found))
    return Sketches(np.array(ends[:-1], np.int64), np.concatenate(bins) + _FIRST_BIN, np.concatenate(counts))


def _from_keys(keys: Int64s, counts: Int64s, groups: int) -> Sketches:
    """`keys`: group times _BINS plus place."""
    order = np.argsort(keys, kind="stable")
    keys, counts = keys[order], counts[order]
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    return _from_sorted(keys[begins], np.add.reduceat(counts, begins) if len(begins) else counts, groups)


def _from_sorted(keys: Int64s, counts: Int64s, groups: int) -> Sketches:
    """Each key once, in order."""
    group, place = np.divmod(keys, _BINS)
    is_value = place < _BINS - 1
    group, place, counts = group[is_value], place[is_value], counts[is_value]
    return Sketches(np.searchsorted(group, np.arange(groups)), place + _FIRST_BIN, counts)


def add_up(groups: Int64s, bins: NDArray[Any], counts: Int64s, number: int) -> Sketches:
    """The sketches of `number` groups, from bins of any order, each with its group and count."""
    return _from_keys(groups * _BINS + (bins - _FIRST_BIN), counts, number)


def quantiles(sketches: Sketches, percent: int) -> NDArray[np.float64]:
    """The percentile of each group, off by at most ACCURACY; NaN without any number."""
    totals = np.add.reduceat(np.append(sketches.counts, 0), sketches.starts)
    is_empty = np.append(sketches.starts[1:], len(sketches.bins)) == sketches.starts
    totals[is_empty] = 0
    running = np.cumsum(sketches.counts)
    before = np.append(0, running)[sketches.starts]
    wanted = before + rank(totals, percent) + 1
    at = np.minimum(np.searchsorted(running, wanted), max(len(running) - 1, 0))
    found = np.full(len(totals), np.nan)
    found[~is_empty] = value_of(sketches.bins[at[~is_empty]])
    return found


def value_of(bins: Int64s) -> NDArray[np.float64]:
    """The number that stands for those in a bin; if only one can be in it, that one."""
    upper = BOUNDS[np.maximum(bins, 0)]
    lower = np.where(bins > 0, BOUNDS[np.maximum(bins - 1, 0)], 0) + 1
    middle = 2 * (_ABOVE / _BELOW) ** bins.astype(np.float64) / (1 + _ABOVE / _BELOW)
    return np.where(bins == _FIRST_BIN, 0.0, np.where(lower >= upper, upper.astype(np.float64), middle))
