"""Exact quantiles of many groups at once, and of a group that is too large to hold.

The definition is the nearest rank: the p-th percentile of n values is the smallest of them that at least p % of the n
are not above, so one of the values and never a mean of two (SQL's percentile_disc). Everything here is pure NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tailrace.spark.entries import Int64s

PERCENTS: Final = (50, 99)
NO_VALUE: Final = (1 << 63) - 1
"""Stands where a message has no value. It sorts behind every other, so ranks below the valid count never meet it."""

SMALL_GROUP_ROWS_MAX: Final = 512
"""Groups up to this size are sorted many at a time; a larger one is worth a call of its own."""
DIGIT_BITS: Final = 16


def rank(count: Int64s | int, percent: int) -> Any:
    """The position of the percentile of `count` values in sorted order, from 0 on; the type of `count`."""
    return (count * percent + 99) // 100 - 1


def group_quantiles(values: Int64s, starts: Int64s, counts: Int64s) -> list[Int64s]:
    """The percentiles PERCENTS of each group, an array each; NO_VALUE for a group without any value.

    Group i is values[starts[i]:starts[i + 1]], of which counts[i] are values and the others NO_VALUE.
    """
    rows = np.diff(starts, append=len(values))
    found = [np.full(len(starts), NO_VALUE, np.int64) for _ in PERCENTS]
    narrow = _narrowed(values)
    for group in np.flatnonzero((rows > SMALL_GROUP_ROWS_MAX) & (counts > 0)).tolist():
        _select(narrow[starts[group] : starts[group] + rows[group]], int(counts[group]), group, found)
    width = 1
    while width <= SMALL_GROUP_ROWS_MAX:
        groups = np.flatnonzero((rows <= width) & (rows > width // 2) & (counts > 0))
        if len(groups):
            _sort_alike(narrow, starts[groups], rows[groups], width, counts[groups], groups, found)
        width *= 2
    return found


def _narrowed(values: Int64s) -> NDArray[Any]:
    """The values as 32 bits if they fit, which sort twice as fast. One more follows, the greatest possible, which
    replaces NO_VALUE too."""
    highest = np.iinfo(np.uint32).max
    largest = values.max(initial=0)
    if largest == NO_VALUE:
        largest = values.max(initial=0, where=values != NO_VALUE)
    if largest >= highest:
        return np.append(values, NO_VALUE)
    narrow = np.empty(len(values) + 1, np.uint32)
    np.minimum(values, highest, out=narrow[:-1], casting="unsafe")
    narrow[-1] = highest
    return narrow


def _select(group: NDArray[Any], count: int, place: int, found: list[Int64s]) -> None:
    ranks = [rank(count, percent) for percent in PERCENTS]
    parted = np.partition(group, sorted(set(ranks)))
    for quantile, at in zip(found, ranks, strict=True):
        quantile[place] = parted[at]


def _sort_alike(
    narrow: NDArray[Any],
    starts: Int64s,
    rows: Int64s,
    width: int,
    counts: Int64s,
    places: Int64s,
    found: list[Int64s],
) -> None:
    """Groups of at most `width` rows, as the lines of a table that is filled up with the greatest value."""
    column = np.arange(width)
    pad = len(narrow) - 1
    table = narrow[np.where(column < rows[:, None], starts[:, None] + column, pad)]
    table.sort(axis=1)
    line = np.arange(len(places))
    for quantile, percent in zip(found, PERCENTS, strict=True):
        quantile[places] = table[line, rank(counts, percent)]


def quantiles_in_passes(blocks: Callable[[], Iterable[Int64s]], count: int) -> list[int]:
    """The percentiles PERCENTS of values that are read several times, block by block, and never held.

    Each pass counts one digit of DIGIT_BITS bits, the highest first, of the values whose higher digits are known.
    `blocks` returns the same values at every call, `count` of them, none negative; NO_VALUE is skipped. Raises
    ValueError if they differ: the data has changed.
    """
    if not count:
        return [NO_VALUE for _ in PERCENTS]
    bits = max((int(block.max(initial=0, where=block != NO_VALUE)) for block in blocks()), default=0).bit_length()
    return [_select_in_passes(blocks, rank(count, percent), bits) for percent in PERCENTS]


def _select_in_passes(blocks: Callable[[], Iterable[Int64s]], at: int, bits: int) -> int:
    prefix, known = 0, -(-max(bits, 1) // DIGIT_BITS) * DIGIT_BITS
    while known:
        known -= DIGIT_BITS
        histogram = np.zeros(1 << DIGIT_BITS, np.int64)
        for block in blocks():
            within = block[(block >> (known + DIGIT_BITS)) == prefix]
            digits = (within[within != NO_VALUE] >> known) & ((1 << DIGIT_BITS) - 1)
            histogram += np.bincount(digits, minlength=1 << DIGIT_BITS)
        below = np.cumsum(histogram)
        digit = int(np.searchsorted(below, at, side="right"))
        if digit >= len(histogram):
            raise ValueError("the values have changed while they were counted")
        at -= int(below[digit] - histogram[digit])
        prefix = prefix << DIGIT_BITS | digit
    return prefix
