"""What Spark does with the rows of a rollup: averages, and what becomes of rows whose messages have been trimmed since.

A row that the tables have stays when its stream was trimmed since up to the row's first message or further, and it
counts more than can be read now. Hours and days of such streams are made of their minutes; the percentiles are those of
a row, old or new, of just the same messages, and null where there is none: percentiles cannot be added up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from spark.rollup.kernel import LEVELS
from spark.rollup.store import TABLES, staged_table

Frame = Any
"""A pyspark DataFrame; its methods are too loosely typed to be of help."""

TABLE_COLUMNS: Final = (
    "stream string, shard int, start timestamp, messages bigint, bytes bigint, "
    "size_min bigint, size_avg double, size_max bigint, size_p50 bigint, size_p99 bigint, "
    "gaps bigint, gap_sum_us bigint, "
    "gap_min_us bigint, gap_avg_us double, gap_max_us bigint, gap_p50_us bigint, gap_p99_us bigint, "
    "first_seq bigint, last_seq bigint, missing bigint, damaged bigint"
)
"""Of the three tables, in Spark's words; `start` is when the minute, hour or day begins."""
NAMES: Final = tuple(column.split()[0] for column in TABLE_COLUMNS.split(", "))

_PERCENTILES: Final = ("size_p50", "size_p99", "gap_p50_us", "gap_p99_us")
_SAME_ROW: Final = ["stream", "start", "messages", "gaps", "first_seq", "last_seq"]
_AVERAGES: Final = {"size_avg": "bytes / nullif(messages, 0)", "gap_avg_us": "gap_sum_us / nullif(gaps, 0)"}
_MERGED: Final = {
    **{name: f"sum({name})" for name in ("messages", "bytes", "gaps", "gap_sum_us", "missing", "damaged")},
    **{name: f"min({name})" for name in ("size_min", "gap_min_us", "first_seq")},
    **{name: f"max({name})" for name in ("size_max", "gap_max_us", "last_seq", "shard")},
}
KEPT_FROM_MAX: Final = (1 << 63) - 1
"""The oldest message that is kept, of a stream of which nothing can be read any more."""


class Trimmed(NamedTuple):
    """A stream of which the tables have rows that cannot be made again. It keeps messages from `kept_from` on."""

    stream: str
    kept_from: int


def write_raw(raw: Frame, path: Path) -> None:
    """All rows of a rollup, a folder a level, in one pass over the source."""
    columns = [*NAMES, "level"]
    raw.selectExpr(*(_expression(name) for name in columns)).write.partitionBy("level").parquet(str(path))


def write_merged(
    session: Any, raw: Path, old: Mapping[str, Path], trimmed: Sequence[Trimmed], run: Path, files: int
) -> None:
    """Stage the three tables made of the raw rows and of those that the day had before."""
    streams = session.createDataFrame(list(trimmed), "stream string, kept_from bigint")
    minutes: Frame = None
    for level in LEVELS:
        fresh = _read(session, raw / f"level={level}")
        kept = _read(session, old[TABLES[level]]).join(streams, "stream").filter("first_seq <= kept_from")
        kept = kept.drop("kept_from")
        fresh_of_them = fresh.join(streams.select("stream"), "stream", "left_semi")
        if level == "minute":
            merged = minutes = _fill_missing(_fuller(fresh_of_them, kept)).persist()
        else:
            merged = _from_minutes(minutes, level, fresh_of_them.unionByName(kept))
        others = fresh.join(streams.select("stream"), "stream", "left_anti")
        table = others.unionByName(merged).select(*NAMES).repartition(files, "stream")
        table.write.parquet(str(staged_table(run, TABLES[level])))
    minutes.unpersist()


def _read(session: Any, path: Path) -> Frame:
    if path.is_dir():
        return session.read.schema(TABLE_COLUMNS).parquet(str(path))
    return session.createDataFrame([], TABLE_COLUMNS)


def _expression(name: str) -> str:
    return f"{_AVERAGES[name]} as {name}" if name in _AVERAGES else name


def _fuller(fresh: Frame, kept: Frame) -> Frame:
    """Of two rows of a stream and minute the one with more messages, or else more gaps, or else the fresh one."""
    both = fresh.selectExpr("*", "true as is_fresh").unionByName(kept.selectExpr("*", "false as is_fresh"))
    row = f"struct(messages as rank, gaps as then, is_fresh, {', '.join(NAMES)})"
    return both.groupBy("stream", "start").agg(_expr(f"max({row})").alias("best")).select("best.*").select(*NAMES)


def _fill_missing(minutes: Frame) -> Frame:
    """Messages between a row and the one before it that neither counts."""
    before = "lag(last_seq) over (partition by stream order by start)"
    missing = f"greatest(missing, coalesce(first_seq - 1 - damaged - {before}, 0)) as missing"
    return minutes.selectExpr(*(missing if name == "missing" else name for name in NAMES))


def _from_minutes(minutes: Frame, level: str, known: Frame) -> Frame:
    """Hours or days from their minutes; the percentiles are those of a known row of the same messages."""
    starts = minutes.withColumn("start", _expr(f"date_trunc('{level}', start)"))
    sums = starts.groupBy("stream", "start").agg(*(_expr(f"{sql} as {name}") for name, sql in _MERGED.items()))
    same = known.groupBy(*_SAME_ROW).agg(*(_expr(f"max({name}) as {name}") for name in _PERCENTILES))
    return sums.join(same, _SAME_ROW, "left").selectExpr(*(_expression(name) for name in NAMES))


def _expr(sql: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(sql)
