"""Builds one row of more messages than memory holds: reads block by block, several times for the percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tailrace.spark.entries import Int64s
from tailrace.spark.rollup.kernel import WIDTHS_US, Messages, Rows, Segment, merge_rows, roll_up_plain, side_by_side
from tailrace.spark.rollup.quantile import NO_VALUE, quantiles_in_passes

Blocks = Callable[[], Iterator[Segment]]


def roll_up_in_blocks(blocks: Blocks, level: str) -> tuple[Rows | None, str]:
    """Builds the row of all blocks, of one stream and one minute, hour or day; None without messages.

    The second is a note, empty when all is well. When messages are trimmed meanwhile, the percentiles are NO_VALUE.
    """
    found = [roll_up_plain([segment], level) for segment in blocks()]
    if not found:
        return None, ""
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
    return rows._replace(**dict(zip(names, quantiles, strict=True))), note


def _messages(blocks: Blocks) -> Iterator[Messages]:
    return (side_by_side([segment]) for segment in blocks())


def _one(number: int) -> Int64s:
    return np.array([number], np.int64)
