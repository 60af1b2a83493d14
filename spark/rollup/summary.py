"""The data of a report, read from the tables with Arrow alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tailrace.spark.rollup.nodes import NodeRow, read_nodes
from tailrace.spark.rollup.silence import DAY_BEFORE, WEEK_BEFORE, Silence, aggregate, find_silent
from tailrace.spark.rollup.store import NODES, Snapshot, Store

GROWTH_DAYS: Final = 30
STREAMS_SHOWN: Final = 15


class Minute(NamedTuple):
    """All streams together. `gap_max_us` is the longest wait that ended in this minute, None without any."""

    start: datetime
    messages: int
    bytes: int
    streams: int
    gap_max_us: int | None


class StreamDay(NamedTuple):
    """A row of the table of days."""

    stream: str
    messages: int
    bytes: int
    size_avg: float
    size_p99: int | None
    gap_p50_us: int | None
    gap_p99_us: int | None
    gap_max_us: int | None
    missing: int
    damaged: int


class DayTotal(NamedTuple):
    """All streams of a day together. `gap_max_us` is None if no message had a gap."""

    day: date
    messages: int
    bytes: int
    streams: int
    gap_max_us: int | None = None


class Summary(NamedTuple):
    """`total` is the day's own, `growth` the totals of the days up to it that there are; `earlier` those of the day
    before and of the same weekday a week before, None for days that are not in the tables. `messages_before`: of the
    streams in `by_bytes`, on the day before. `silent` has the first STREAMS_SHOWN of `silent_count` streams.
    """

    day: date
    total: DayTotal
    missing: int
    damaged: int
    minutes: list[Minute]
    by_bytes: list[StreamDay]
    by_gap: list[StreamDay]
    growth: list[DayTotal]
    earlier: tuple[DayTotal | None, DayTotal | None]
    messages_before: dict[str, int]
    silent: list[Silence]
    silent_count: int
    nodes: list[NodeRow]


def summarize(store: Store, day: date, now: datetime | None = None) -> Summary:
    """Summarize a day, which may have no messages. `now`: a day that is not over ends then. Raises OSError."""
    snapshot = store.snapshot()
    table = _read(snapshot, "days", day, StreamDay._fields)
    first = day - timedelta(days=GROWTH_DAYS - 1)
    growth = [_total(snapshot, each) for each in snapshot.days() if first <= each < day]
    totals = {each.day: each for each in growth}
    total = _total(snapshot, day)
    by_bytes = _top(table, "bytes")
    silent, silent_count = find_silent(snapshot, day, now, STREAMS_SHOWN)
    return Summary(
        day,
        total,
        _sum(table, "missing"),
        _sum(table, "damaged"),
        _minutes(snapshot, day),
        by_bytes,
        _top(table.filter(pc.is_valid(table["gap_max_us"])), "gap_max_us"),
        [*growth, total],
        (totals.get(day - DAY_BEFORE), totals.get(day - WEEK_BEFORE)),
        _messages_of(snapshot, day - DAY_BEFORE, [each.stream for each in by_bytes]),
        silent,
        silent_count,
        read_nodes(snapshot.partition(NODES, day)),
    )


def _read(snapshot: Snapshot, table: str, day: date, columns: Sequence[str]) -> pa.Table:
    folder = snapshot.partition(table, day)
    if not folder.is_dir():
        return pa.table({name: pa.array([], pa.int64()) for name in columns})
    return ds.dataset(folder, format="parquet").to_table(columns=list(columns))


def _minutes(snapshot: Snapshot, day: date) -> list[Minute]:
    wanted = [("messages", "sum"), ("bytes", "sum"), ("messages", "count"), ("gap_max_us", "max")]
    found = aggregate(snapshot.partition("minutes", day), "start", wanted)
    if found is None:
        return []
    names = ["start", *("_".join(each) for each in wanted)]
    return [Minute(*row) for row in zip(*(found.sort_by("start")[name].to_pylist() for name in names), strict=True)]


def _total(snapshot: Snapshot, day: date) -> DayTotal:
    table = _read(snapshot, "days", day, ("messages", "bytes", "gap_max_us"))
    longest: Any = pc.max(table["gap_max_us"]).as_py()
    return DayTotal(day, _sum(table, "messages"), _sum(table, "bytes"), table.num_rows, longest)


def _messages_of(snapshot: Snapshot, day: date, streams: Sequence[str]) -> dict[str, int]:
    """On another day; of all nodes together."""
    wanted = pc.field("stream").isin(pa.array(streams, pa.string()))  # with a type, as there may be none
    found = aggregate(snapshot.partition("days", day), "stream", [("messages", "sum")], wanted)
    return (
        {} if found is None else dict(zip(found["stream"].to_pylist(), found["messages_sum"].to_pylist(), strict=True))
    )


def _sum(table: pa.Table, name: str) -> int:
    found: Any = pc.sum(table[name]).as_py()
    return int(found or 0)


def _top(table: pa.Table, name: str) -> list[StreamDay]:
    """The rows with the greatest values, the first first."""
    order = table.sort_by([(name, "descending"), ("stream", "ascending")]).slice(0, STREAMS_SHOWN)
    return [StreamDay(*(row[field] for field in StreamDay._fields)) for row in order.to_pylist()]


def read_day_bytes(store: Store, day: date) -> list[tuple[str, int, int]]:
    """(stream, messages, bytes) of each stream."""
    table = _read(store.snapshot(), "days", day, ("stream", "messages", "bytes"))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
