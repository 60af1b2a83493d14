"""Weeks and months out of the table of days, by adding up its rows and merging its sketches.

Everything is exact but the percentiles, which are off by at most `sketch.ACCURACY` of the exact ones. They are null if
a day of the stream has no sketch: it was rolled up by an earlier version, or has rows of messages trimmed since.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.shard.files import sync_directory
from tailrace.spark.rollup.sketch import Sketches, add_up, quantiles
from tailrace.spark.rollup.store import Store
from tailrace.spark.rollup.table import SKETCH_TYPE, TABLE_SCHEMA, open_tables, to_sketch_array

Period = Literal["week", "month"]
PERIODS: Final[tuple[Period, ...]] = ("week", "month")
PART_ROWS: Final = 4_000
"""Days of streams that are merged at one time: a few KB each, and seldom more than 30."""
_KEYS: Final = ["node", "stream", "stream_id", "shard"]
_SUMS: Final = ("messages", "bytes", "gaps", "gap_sum_us", "missing", "damaged")
_LEAST: Final = ("size_min", "gap_min_us", "first_seq")
_MOST: Final = ("size_max", "gap_max_us", "last_seq")
_PERCENTILES: Final = {
    "size_p50": ("size_sketch", 50),
    "size_p99": ("size_sketch", 99),
    "gap_p50_us": ("gap_sketch", 50),
    "gap_p99_us": ("gap_sketch", 99),
}
SCHEMA: Final = pa.schema(
    [
        *(pa.field(field.name, pa.float64()) if field.name in _PERCENTILES else field for field in TABLE_SCHEMA),
        ("days", pa.int64()),
    ]
)
"""As the table of days, with the percentiles as numbers with a fraction, and how many days a row has."""


def find_period(day: date, period: Period) -> tuple[date, date]:
    """The first day of the week (a Monday) or month that has this day, and of the next one."""
    if period == "week":
        first = day - timedelta(days=day.weekday())
        return first, first + timedelta(days=7)
    first = day.replace(day=1)
    return first, (first + timedelta(days=32)).replace(day=1)


def merge_days(out: Path, day: date, period: Period) -> Iterator[pa.Table]:
    """Yields the rows of the week or month of a day, with SCHEMA, in the order of streams.

    Raises OSError; FileNotFoundError if the tables have none of its days.
    """
    first, end = find_period(day, period)
    snapshot = Store(out).snapshot()
    days = [each for each in snapshot.days() if first <= each < end]
    folders = [folder for each in days for folder in snapshot.by_node("days", each).values()]
    rows = open_tables(folders, snapshot.path)
    if rows is None:
        raise FileNotFoundError(errno.ENOENT, f"there is no day of the {period} of {first}", str(out))
    start = pa.scalar(first, pa.date32()).cast(pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))
    for names in _name_parts(rows):
        yield _merge(rows.to_table(filter=pc.field("stream").isin(names)), start)


def write_period(out: Path, day: date, period: Period) -> tuple[Path, int]:
    """Writes OUT/weeks/week=FIRST/part-00000.parquet, or months/month=FIRST, in place of an earlier one; returns it and
    the number of rows. Raises OSError; FileNotFoundError if the tables have none of its days.
    """
    first, _ = find_period(day, period)
    tables = merge_days(out, day, period)
    found = next(tables)
    folder = out / f"{period}s" / f"{period}={first}"
    folder.mkdir(parents=True, exist_ok=True)
    path, new = folder / "part-00000.parquet", folder / "_part.new"
    count = 0
    with pq.ParquetWriter(new, SCHEMA, compression="zstd", use_dictionary=["node", "stream", "stream_id"]) as writer:
        for table in chain([found], tables):
            writer.write_table(table)
            count += table.num_rows
    with new.open("rb") as file:
        os.fsync(file.fileno())
    os.rename(new, path)
    sync_directory(folder)
    return path, count


def _name_parts(rows: Any) -> Iterator[list[str]]:
    """The streams, a part of them at a time."""
    found = pc.value_counts(rows.to_table(columns=["stream"])["stream"])
    counts = sorted((each["values"], each["counts"]) for each in found.to_pylist())
    part: list[str] = []
    size = 0
    for name, count in counts:
        part.append(name)
        size += count
        if size >= PART_ROWS:
            yield part
            part, size = [], 0
    if part:
        yield part


def _merge(rows: pa.Table, start: pa.Scalar) -> pa.Table:
    rows = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    wanted = [
        *((name, "sum") for name in _SUMS),
        *((name, "min") for name in _LEAST),
        *((name, "max") for name in _MOST),
    ]
    merged = rows.group_by(_KEYS).aggregate([*wanted, ("row", "list")])
    merged = merged.sort_by([(name, "ascending") for name in ("stream", "node", "stream_id", "shard")])
    columns = {name: merged[name] for name in _KEYS} | {name: merged[f"{name}_{kind}"] for name, kind in wanted}
    members = merged["row_list"].combine_chunks()
    columns["days"] = members.value_lengths().cast(pa.int64())
    groups = np.empty(rows.num_rows, np.int64)
    groups[members.flatten().to_numpy()] = np.repeat(np.arange(len(members)), columns["days"].to_numpy())
    columns["start"] = pa.repeat(start, len(members))
    columns["size_avg"] = _average(columns["bytes"], columns["messages"])
    columns["gap_avg_us"] = _average(columns["gap_sum_us"], columns["gaps"])
    for sketch, counted in (("size_sketch", "messages"), ("gap_sketch", "gaps")):
        merged_sketch = merge_column(rows[sketch].combine_chunks(), groups, len(members))
        is_whole = _totals(merged_sketch) == columns[counted].to_numpy()
        array = to_sketch_array(merged_sketch)
        columns[sketch] = pc.if_else(pa.array(is_whole), array, pa.scalar(None, SKETCH_TYPE))
        for name in (name for name, (of, _) in _PERCENTILES.items() if of == sketch):
            found = quantiles(merged_sketch, _PERCENTILES[name][1])
            columns[name] = pa.array(found, mask=~is_whole | np.isnan(found))
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def merge_column(column: pa.Array, groups: Any, count: int) -> Sketches:
    """Adds up the sketches of each group, which is a number below `count` for each row of the column."""
    pairs = column.flatten()
    lengths = pc.fill_null(column.value_lengths(), 0).to_numpy()
    bins, counts = pairs.field("bin").to_numpy(), pairs.field("count").to_numpy()
    return add_up(np.repeat(groups, lengths), bins.astype(np.int64), counts, count)


def _totals(sketches: Sketches) -> Any:
    running = np.append(0, np.cumsum(sketches.counts))
    ends = np.append(sketches.starts[1:], len(sketches.counts))
    return running[ends] - running[sketches.starts]


def _average(total: pa.ChunkedArray, count: pa.ChunkedArray) -> pa.Array:
    found = total.to_numpy() / np.maximum(count.to_numpy(), 1)
    return pa.array(found, mask=count.to_numpy() == 0)
