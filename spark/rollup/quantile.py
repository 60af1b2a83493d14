"""Exact quantiles of many groups at once, and of a group that is too large to hold.

The definition is the nearest rank: the p-th percentile of n values is the smallest of them that at least p % of the n
are not above, so one of the values and never a mean of two (SQL's percentile_disc). Everything here is pure NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tailrace.spark.entries import Int64s

PERCENTS: Final = (50, 99)
NO_VALUE: Final = (1 << 63) - 1
"""Stands where a message has no value. It sorts behind every other, so ranks below the valid count never meet it."""

SMALL_GROUP_ROWS_MAX: Final = 512
"""Groups up to this size are sorted together; a larger one is worth calls of its own."""
KEY_BITS: Final = 64
DIGIT_BITS: Final = 16

Look: TypeAlias = Callable[[int, NDArray[Any]], None]
"""Is called with the place of a group, and its values in order."""


def rank(count: Int64s | int, percent: int) -> Any:
    """The position of the percentile of `count` values in sorted order, from 0 on; the type of `count`."""
    return (count * percent + 99) // 100 - 1


def narrowed(values: Int64s, largest: int) -> NDArray[Any]:
    """The values as 32 bits if they fit, which sort twice as fast. NO_VALUE becomes the greatest number of the type.
    None of the others is above `largest`.
    """
    return values.astype(np.uint32) if largest < np.iinfo(np.uint32).max else values  # of NO_VALUE all bits are set


def group_quantiles(values: NDArray[Any], starts: Int64s, counts: Int64s, look: Look | None = None) -> list[Int64s]:
    """The percentiles PERCENTS of each group, an array each; NO_VALUE for a group without any value.

    Group i is values[starts[i]:starts[i + 1]], of which counts[i] are values and the others the greatest number of the
    type, as `narrowed` makes them. Groups above SMALL_GROUP_ROWS_MAX are shown to `look`.
    """
    rows = np.diff(starts, append=len(values))
    found = [np.full(len(starts), NO_VALUE, np.int64) for _ in PERCENTS]
    is_large = rows > SMALL_GROUP_ROWS_MAX
    for group in np.flatnonzero(is_large & (counts > 0)).tolist():
        ordered = np.sort(values[starts[group] : starts[group] + rows[group]])[: counts[group]]
        # A partition takes more time for two ranks, and ten times as much if there are few different values.
        for quantile, percent in zip(found, PERCENTS, strict=True):
            quantile[group] = ordered[rank(len(ordered), percent)]
        if look is not None:
            look(group, ordered)
    if not is_large.all():
        small = values[~np.repeat(is_large, rows)] if is_large.any() else values
        _sort_together(small, rows[~is_large], counts[~is_large], np.flatnonzero(~is_large), found)
    return found


def _sort_together(values: NDArray[Any], rows: Int64s, counts: Int64s, places: Int64s, found: list[Int64s]) -> None:
    """All groups in one sort, by numbers that have the group above the value. Group i has rows[i] of the values."""
    highest = np.iinfo(values.dtype).max
    largest = int(values.max())
    if largest == highest:
        largest = int(values.max(initial=0, where=values != highest)) + 1  # what stands for NO_VALUE is above all
    bits = largest.bit_length()
    wide = bits + len(rows).bit_length()
    if wide > KEY_BITS:
        ordered = values[np.lexsort((values, np.repeat(np.arange(len(rows)), rows)))]
    else:
        key: Any = np.uint32 if wide <= KEY_BITS // 2 else np.uint64
        groups: NDArray[Any] = np.arange(len(rows), dtype=key)
        keys = np.repeat(groups << key(bits), rows)
        keys |= np.minimum(values, largest).astype(key)
        keys.sort()
        ordered = keys & key((1 << bits) - 1)
    has_any = counts > 0
    starts = (np.cumsum(rows) - rows)[has_any]
    for quantile, percent in zip(found, PERCENTS, strict=True):
        quantile[places[has_any]] = ordered[starts + rank(counts[has_any], percent)]


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
