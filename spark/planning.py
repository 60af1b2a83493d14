"""Cuts slices and packs them into tasks. Pure.

A task costs Spark some 25 to 55 ms, so it should have a million messages or more; a single task should not delay the
others by its size; and opening a stream costs about as much as reading some thousand messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from tailrace.spark.slices import Slice, Task
from tailrace.spark.source import TimedView

ROWS_PER_TASK: Final = 2_000_000
"""At most; where there are fewer messages in all, each processor should have something to do."""
ROWS_PER_TASK_MIN: Final = 250_000
WEIGHT_PER_TASK: Final = 5 * ROWS_PER_TASK
"""At most, with what opening the streams costs: 2,000 streams with few messages."""
STREAM_ROWS: Final = 5_000
"""What opening a stream costs, in messages that could be read meanwhile (about 0.25 ms)."""


def rows_for(slices: Sequence[Slice], processors: int) -> int:
    """The size of a task in messages, including the cost of each stream."""
    weight = sum(slice_.messages + STREAM_ROWS for slice_ in slices)
    return min(max(-(-weight // processors), ROWS_PER_TASK_MIN), ROWS_PER_TASK)


def make_tasks(slices: Sequence[Slice], rows: int | None, processors: int) -> list[Task]:
    """Cuts and packs slices into tasks of at most `rows` messages, by default as many as suit the processors."""
    if rows is not None:
        return pack((part for each in slices for part in cut(each, rows)), rows)
    rows = rows_for(slices, processors)
    weight = sum(slice_.messages + STREAM_ROWS for slice_ in slices)
    parts = [part for each in slices for part in cut(each, rows)]
    return list(_packed(parts, rows, max(rows, min(-(-weight // processors), WEIGHT_PER_TASK))))


def cut(slice_: Slice, rows: int) -> list[Slice]:
    """Parts of nearly equal size, of at most `rows` messages each."""
    parts = -(-slice_.messages // rows)
    bounds = [slice_.first_seq + slice_.messages * i // parts for i in range(parts + 1)] if parts else []
    return [slice_._replace(first_seq=start, end_seq=end) for start, end in pairwise(bounds)]


def cut_aligned(view: TimedView, slice_: Slice, rows: int, unit_us: int) -> list[Slice]:
    """Parts of about `rows` messages, or more, that end at a unit of time (such as a minute).

    So the messages of one unit are all in one part.
    """
    parts: list[Slice] = []
    start = slice_.first_seq
    while slice_.end_seq - start > rows:
        unit_end_us = (view.timestamp_at(start + rows - 1) // unit_us + 1) * unit_us
        end = min(max(view.seq_at(unit_end_us), start + rows), slice_.end_seq)
        parts.append(slice_._replace(first_seq=start, end_seq=end))
        start = end
    if start < slice_.end_seq:
        parts.append(slice_._replace(first_seq=start))
    return parts


def pack(slices: Iterable[Slice], rows_per_task: int = ROWS_PER_TASK) -> list[Task]:
    """Slices one after the other into tasks, until each has its rows."""
    return list(_packed(slices, rows_per_task, rows_per_task))


def _packed(slices: Iterable[Slice], rows_max: int, weight_max: int) -> Iterator[Task]:
    task: list[Slice] = []
    rows = weight = 0
    for slice_ in slices:
        its_weight = slice_.messages + STREAM_ROWS
        if task and (rows + slice_.messages > rows_max or weight + its_weight > weight_max + STREAM_ROWS):
            yield tuple(task)
            task, rows, weight = [], 0, 0
        task.append(slice_)
        rows += slice_.messages
        weight += its_weight
    if task:
        yield tuple(task)
