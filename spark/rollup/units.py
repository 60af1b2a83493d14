"""Plans the tasks of a rollup: cuts a day of many streams into units, and packs units into tasks. Pure.

A row of a stream and level is made whole by one task, from all of its messages, so its percentiles are exact. A day of
a stream that fits into memory is one unit, which gives its minutes, hours and day at once. A larger one is cut where
hours end, and an hour that is still too large where minutes do; its day (and such an hour) is then a unit of its own,
which reads the same messages once more, in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from tailrace.spark.rollup.kernel import HOUR_US, LEVELS, MINUTE_US, WIDTHS_US
from tailrace.spark.slices import Slice

WHOLE_ROWS_MAX: Final = 6_000_000
"""Messages that a task holds at one time: about 40 bytes each."""
TASK_ROWS: Final = 3_000_000
"""Messages of small units that make a task. A task costs about 40 ms, whatever it does."""
STREAM_ROWS: Final = 2_000
"""What opening a stream costs, in messages."""


class Unit(NamedTuple):
    """Messages to roll up, and to which levels. `by_frames`: the times in the index are known to be wrong."""

    slice: Slice
    levels: tuple[str, ...]
    by_frames: bool = False

    @property
    def cost_rows(self) -> int:
        return self.slice.messages + STREAM_ROWS


Task = tuple[Unit, ...]


CutAt = Callable[[int, int], int]
"""From a time and the end of a slice, the seq that begins the messages of that time and later."""


def cut_units(
    day: Slice, start_us: int, end_us: int, cut_at: CutAt, whole_rows_max: int = WHOLE_ROWS_MAX
) -> list[Unit]:
    """The units of the messages of a day, which are from start_us to end_us."""
    if day.messages <= whole_rows_max:
        return [Unit(day, LEVELS)]
    units = [Unit(day, ("day",))]
    for hour, hour_us in _cut(day, start_us, end_us, HOUR_US, cut_at):
        if hour.messages <= whole_rows_max:
            units.append(Unit(hour, ("minute", "hour")))
            continue
        units.append(Unit(hour, ("hour",)))
        minutes = _cut(hour, hour_us, hour_us + HOUR_US, MINUTE_US, cut_at)
        units += [Unit(minute, ("minute",)) for minute in _joined([each for each, _ in minutes], whole_rows_max)]
    return units


def _cut(slice_: Slice, start_us: int, end_us: int, width_us: int, cut_at: CutAt) -> Iterator[tuple[Slice, int]]:
    """The parts that have messages, with the time each begins."""
    times = range(start_us, end_us, width_us)
    seqs = [min(max(cut_at(each, slice_.end_seq), slice_.first_seq), slice_.end_seq) for each in times[1:]]
    for time_us, (first, end) in zip(times, pairwise([slice_.first_seq, *seqs, slice_.end_seq]), strict=True):
        if first < end:
            yield slice_._replace(first_seq=first, end_seq=end), time_us


def _joined(parts: list[Slice], rows_max: int) -> Iterator[Slice]:
    """Neighbours as one, while they have no more than `rows_max` messages."""
    held = parts[0]
    for part in parts[1:]:
        if part.end_seq - held.first_seq <= rows_max:
            held = held._replace(end_seq=part.end_seq)
        else:
            yield held
            held = part
    yield held


def pack(units: Iterable[Unit], task_rows: int = TASK_ROWS) -> list[Task]:
    """Small units together, large ones alone, those that take longest first."""
    tasks: list[Task] = []
    held: list[Unit] = []
    rows = 0
    for unit in units:
        if unit.cost_rows >= task_rows:
            tasks.append((unit,))
            continue
        if rows + unit.cost_rows > task_rows:
            tasks.append(tuple(held))
            held, rows = [], 0
        held.append(unit)
        rows += unit.cost_rows
    if held:
        tasks.append(tuple(held))
    return sorted(tasks, key=_cost, reverse=True)


def _cost(task: Task) -> int:
    return sum(unit.cost_rows for unit in task)


def is_too_large(unit: Unit, whole_rows_max: int = WHOLE_ROWS_MAX) -> bool:
    """Whether the unit is one row that has to be made block by block."""
    return unit.slice.messages > whole_rows_max


assert list(WIDTHS_US) == list(LEVELS)
