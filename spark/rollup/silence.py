"""Streams that went silent on a day: the gap that nobody sees in the tables, since no message has ended it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import acero

from tailrace.spark.rollup.store import Snapshot

DAY_BEFORE: Final = timedelta(days=1)
WEEK_BEFORE: Final = timedelta(days=7)
SILENT_MIN: Final = timedelta(hours=1)
"""A shorter silence is not reported, and neither is a stream that was active for a shorter time only."""
SILENT_FACTOR: Final = 2
"""A silence is this many times as long as the longest gap of the stream on the day and the day before."""

_US: Final = timedelta(microseconds=1)
_MINUTE: Final = timedelta(minutes=1)
_TIME: Final = pa.timestamp("us", tz="UTC")
_HAD: Final = [("messages", "sum"), ("gap_max_us", "max")]
_HAD_SCHEMA: Final = pa.schema([("stream", pa.string()), ("messages_sum", pa.int64()), ("gap_max_us_max", pa.int64())])


class Silence(NamedTuple):
    """`last` is the minute of its last message on the day, None if it had none. `gap_max_us`: the longest gap of the
    day and the day before. The counts are of the day, the day before, and the same weekday a week before.
    """

    stream: str
    last: datetime | None
    silent_us: int
    gap_max_us: int | None
    messages: int
    messages_before: int
    messages_week_before: int


def find_silent(snapshot: Snapshot, day: date, now: datetime | None, shown: int) -> tuple[list[Silence], int]:
    """The first streams that are silent at the end of the day, and how many there are. First come those with the most
    messages a week before, or else on the day before. Raises OSError.
    """
    start = datetime.combine(day, time(), UTC)
    end = min(start + DAY_BEFORE, now or start + DAY_BEFORE)
    table = _streams(snapshot, day)
    silent = _silence_us(table, start, end)
    had_before = pc.or_(pc.greater(table["before"], 0), pc.greater(table["week_before"], 0))
    longest = pc.fill_null(table["gap_max_us"], pa.scalar(0, pa.int64()))
    is_long = pc.greater(silent, pc.max_element_wise(pc.multiply(longest, SILENT_FACTOR), SILENT_MIN // _US))
    was_active = pc.or_(had_before, pc.greater(_active_us(table), SILENT_MIN // _US))
    has_stopped = pc.and_(pc.and_(is_long, was_active), pc.greater(longest, 0))
    is_absent = pc.and_(pc.equal(table["messages"], 0), had_before)
    found = table.append_column("silent_us", silent).filter(pc.or_(is_absent, has_stopped))
    order = [
        ("week_before", "descending"),
        ("before", "descending"),
        ("messages", "descending"),
        ("stream", "ascending"),
    ]
    return [_silence(row) for row in found.sort_by(order).slice(0, shown).to_pylist()], found.num_rows


def aggregate(
    folder: Path, key: str, wanted: Sequence[tuple[str, str]], condition: pc.Expression | None = None
) -> pa.Table | None:
    """A table of the columns `wanted` (column, function) by `key`, such as messages_sum; None if the folder is missing.

    Reads the files in batches: the minutes of many streams need not fit into memory. Raises OSError.
    """
    if not folder.is_dir():
        return None
    columns = sorted({key, *(name for name, _ in wanted)})
    scan = acero.ScanNodeOptions(ds.dataset(folder, format="parquet"), columns=columns, filter=condition)
    steps = [acero.Declaration("scan", scan)]
    if condition is not None:
        steps.append(acero.Declaration("filter", acero.FilterNodeOptions(condition)))
    sums = [([name], f"hash_{function}", None, f"{name}_{function}") for name, function in wanted]
    steps.append(acero.Declaration("aggregate", acero.AggregateNodeOptions(sums, keys=[key])))
    return acero.Declaration.from_sequence(steps).to_table()


def _streams(snapshot: Snapshot, day: date) -> pa.Table:
    """A row for each stream of the three days: its messages on each, its longest gap, its first and last minute."""
    today, before, week_before = (_had(snapshot, each) for each in (day, day - DAY_BEFORE, day - WEEK_BEFORE))
    minutes = aggregate(snapshot.partition("minutes", day), "stream", [("start", "min"), ("start", "max")])
    if minutes is None:
        minutes = pa.schema([("stream", pa.string()), ("start_min", _TIME), ("start_max", _TIME)]).empty_table()
    both = today.join(minutes, "stream", join_type="left outer")
    both = both.join(before, "stream", join_type="full outer", right_suffix="_before")
    both = both.join(week_before, "stream", join_type="full outer", right_suffix="_week_before")
    counts = {
        "messages": "messages_sum",
        "before": "messages_sum_before",
        "week_before": "messages_sum_week_before",
    }
    found = {name: pc.fill_null(both[column], 0) for name, column in counts.items()}
    longest = pc.max_element_wise(both["gap_max_us_max"], both["gap_max_us_max_before"])
    names = {"stream": both["stream"], "first": both["start_min"], "last": both["start_max"], "gap_max_us": longest}
    return pa.table({**names, **found})


def _had(snapshot: Snapshot, day: date) -> pa.Table:
    """The messages and the longest gap of each stream, of all nodes together."""
    found = aggregate(snapshot.partition("days", day), "stream", _HAD)
    return _HAD_SCHEMA.empty_table() if found is None else found.select(_HAD_SCHEMA.names).cast(_HAD_SCHEMA)


def _silence_us(table: pa.Table, start: datetime, end: datetime) -> pa.ChunkedArray:
    """From the end of the last minute with messages, or else the whole day, until the end."""
    last = pc.add(pc.cast(table["last"], pa.int64()), _MINUTE // _US)
    return pc.subtract(round(end.timestamp() * 1e6), pc.fill_null(last, round(start.timestamp() * 1e6)))


def _active_us(table: pa.Table) -> pa.ChunkedArray:
    """From the first minute with messages to the last."""
    return pc.fill_null(pc.subtract(pc.cast(table["last"], pa.int64()), pc.cast(table["first"], pa.int64())), 0)


def _silence(row: dict[str, Any]) -> Silence:
    names = ("stream", "last", "silent_us", "gap_max_us", "messages", "before", "week_before")
    return Silence(*(row[name] for name in names))
