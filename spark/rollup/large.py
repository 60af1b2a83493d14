"""Builds one row of more messages than memory holds: reads block by block, several times for the percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tailrace.spark.entries import Int64s
from tailrace.spark.rollup.kernel import (
    DAY,
    WIDTHS_US,
    DaySketches,
    Messages,
    Rows,
    Segment,
    merge_rows,
    roll_up_plain,
    side_by_side,
)
from tailrace.spark.rollup.quantile import NO_VALUE, quantiles_in_passes
from tailrace.spark.rollup.sketch import add_sketch, from_histogram

Blocks = Callable[[], Iterator[Segment]]


def roll_up_in_blocks(blocks: Blocks, level: str) -> tuple[Rows | None, DaySketches | None, str]:
    """Builds the row of all blocks, of one stream and one minute, hour or day, and the sketches of a day; None without
    messages.

    The last is a note, empty when all is well. When messages are trimmed meanwhile, the percentiles are NO_VALUE.
    """
    found: list[Rows] = []
    sizes = gaps = None
    for segment in blocks():
        found.append(roll_up_plain([segment], level))
        if level == DAY:
            messages = side_by_side([segment])
            sizes, gaps = add_sketch(sizes, messages.size), add_sketch(gaps, messages.gap_us)
    if not found:
        return None, None, ""
    sketches = None if sizes is None or gaps is None else DaySketches(from_histogram(sizes), from_histogram(gaps))
    together = Rows._make(np.concatenate(columns) for columns in zip(*found, strict=True))
    rows, _ = merge_rows(together, WIDTHS_US[level])
    try:
        size = quantiles_in_passes(lambda: (each.size for each in _messages(blocks)), int(rows.messages[0]))
        gap_us = quantiles_in_passes(lambda: (each.gap_us for each in _messages(blocks)), int(rows.gaps[0]))
    except ValueError:
        size = gap_us = [NO_VALUE, NO_VALUE]
    note = "messages were trimmed while their percentiles were taken" if size[0] == NO_VALUE else ""
    quantiles = [_one(number) for number in (*size, *gap_us)]
    names = ("size_p50", "size_p99", "gap_p50_us", "gap_p99_us")
    return rows._replace(**dict(zip(names, quantiles, strict=True))), sketches, note


def _messages(blocks: Blocks) -> Iterator[Messages]:
    return (side_by_side([segment]) for segment in blocks())


def _one(number: int) -> Int64s:
    return np.array([number], np.int64)
