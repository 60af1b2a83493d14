"""The plan of a day: what each stream has of it, and the tasks that will read it; made on the driver, kept in a file.

The committed count of each stream is looked at here, once: what is published afterwards is none of this run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

from spark.plan import is_unborn
from spark.rollup.kernel import DAY_US
from spark.rollup.units import TASK_ROWS, WHOLE_ROWS_MAX, Task, Unit, cut_units, pack
from spark.slices import BadStream, Slice
from spark.source import CONNECTION_ERRORS, STREAM_ERRORS, Source, StreamRef

EPOCH_DAY: Final = date(1970, 1, 1)


class DayPlan(NamedTuple):
    """`first_seqs` has every stream that could be opened, whether it has messages of the day or not, and the oldest
    message that it keeps."""

    tasks: list[Task]
    first_seqs: dict[str, int]
    bad: list[BadStream]

    @property
    def messages(self) -> int:
        """A message of a large stream counts once for each time it is read."""
        return sum(unit.slice.messages for task in self.tasks for unit in task)


def day_start_us(day: date) -> int:
    """When a day begins, UTC."""
    return (day - EPOCH_DAY).days * DAY_US


def day_of(timestamp_us: int) -> date:
    return datetime.fromtimestamp(timestamp_us // 1_000_000, UTC).date()


def plan_day(
    source: Source,
    day: date,
    patterns: Sequence[str] = (),
    show: Callable[[int, int], None] = lambda _done, _total: None,
    task_rows: int = TASK_ROWS,
    whole_rows_max: int = WHOLE_ROWS_MAX,
) -> DayPlan:
    """Look at every stream. `show` is told how many of how many are done. Raises what `Source.streams` does,
    and CONNECTION_ERRORS.
    """
    start_us = day_start_us(day)
    units: list[Unit] = []
    first_seqs: dict[str, int] = {}
    bad: list[BadStream] = []
    refs = source.streams(patterns)
    for done, ref in enumerate(refs):
        try:
            first_seqs[ref.stream], found = _units(source, ref, start_us, whole_rows_max)
            units += found
        except CONNECTION_ERRORS:
            raise
        except STREAM_ERRORS as error:
            if not is_unborn(error, ref, patterns):
                bad.append(BadStream(ref.stream, str(error)))
        show(done + 1, len(refs))
    return DayPlan(pack(units, task_rows), first_seqs, bad)


def _units(source: Source, ref: StreamRef, start_us: int, whole_rows_max: int) -> tuple[int, list[Unit]]:
    end_us = start_us + DAY_US
    with source.view(ref) as view:
        first, end = view.seq_at(start_us), view.seq_at(end_us)
        if first >= end:
            return view.first_seq, []
        slice_ = Slice(view.stream, view.shard, first, end, view.identity)
        return view.first_seq, cut_units(slice_, start_us, end_us, view, whole_rows_max)


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """For the source, which runs in a process of its own. Raises OSError."""
    path.write_text(json.dumps(tasks))


def read_tasks(path: Path) -> list[Task]:
    """Raises OSError, ValueError."""
    return [tuple(_unit(*unit) for unit in task) for task in json.loads(path.read_text())]


def _unit(slice_: tuple[str, int, int, int, list[int]], levels: list[str]) -> Unit:
    stream, shard, first_seq, end_seq, (stream_id, cuts) = slice_
    return Unit(Slice(stream, shard, first_seq, end_seq, (stream_id, cuts)), tuple(levels))
