"""What Spark does with the rows of a rollup: averages, and what becomes of rows whose messages have been trimmed since.

A row that the tables have of another node, or of an earlier stream of the same name, stays beside the new ones.
Any other stays when its stream was trimmed since up to the row's first message or further, and it counts more than can
be read now. Hours and days of such streams are made of their minutes; the percentiles are those of a row, old or new,
of just the same messages, and null where there is none: percentiles cannot be added up.
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
    "node string, stream string, stream_id string, shard int, start timestamp, messages bigint, bytes bigint, "
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
    **{name: f"max({name})" for name in ("size_max", "gap_max_us", "last_seq", "shard", "node", "stream_id")},
}
KEPT_FROM_MAX: Final = (1 << 63) - 1
"""The oldest message that is kept, of a stream of which nothing can be read any more."""


class Identity(NamedTuple):
    """Which stream the rows of the tables are of. `node` is None in tables of before there was this column, `stream_id`
    also where the stream was read over a connection.
    """

    stream: str
    node: str | None
    stream_id: str | None


class Kept(NamedTuple):
    """Rows that cannot be made again. Their stream keeps messages from `kept_from` on. `now` is the same stream as it
    was read this time, whose rows are merged with them; None where they stay as they are.
    """

    was: Identity
    kept_from: int = KEPT_FROM_MAX
    now: Identity | None = None


def write_raw(raw: Frame, path: Path, node: str) -> None:
    """All rows of a rollup, a folder a level, in one pass over the source."""
    columns = [*NAMES, "level"]
    raw.withColumn("node", _literal(node)).selectExpr(*(_expression(name) for name in columns)).write.partitionBy(
        "level"
    ).parquet(str(path))


def write_merged(
    session: Any, raw: Path, old: Mapping[str, Path], wanted: Sequence[Kept], run: Path, files: int
) -> None:
    """Stage the three tables made of the raw rows and of those that the day had before."""
    whole = _identities(session, [(*each.was, each.kept_from, *each.was) for each in wanted if each.now is None])
    merging = _identities(session, [(*each.was, each.kept_from, *each.now) for each in wanted if each.now is not None])
    streams = merging.selectExpr("now_stream as stream").distinct()
    minutes: Frame = None
    for level in LEVELS:
        fresh, before = _read(session, raw / f"level={level}"), _read(session, old[TABLES[level]])
        kept = _of(before, merging)
        fresh_of_them = fresh.join(streams, "stream", "left_semi")
        if level == "minute":
            merged = minutes = _fill_missing(_fuller(fresh_of_them, kept)).persist()
        else:
            merged = _from_minutes(minutes, level, fresh_of_them.unionByName(kept))
        others = fresh.join(streams, "stream", "left_anti").unionByName(_of(before, whole))
        table = others.unionByName(merged).select(*NAMES).repartition(files, "stream")
        table.write.parquet(str(staged_table(run, TABLES[level])))
    minutes.unpersist()


def _identities(session: Any, rows: Sequence[tuple[Any, ...]]) -> Frame:
    schema = "was_stream string, was_node string, was_id string, kept_from bigint, now_stream string, "
    return session.createDataFrame(rows, schema + "now_node string, now_id string")


def _of(rows: Frame, identities: Frame) -> Frame:
    """The rows of these streams, as those that they are now."""
    same = "stream = was_stream and node <=> was_node and stream_id <=> was_id and first_seq <= kept_from"
    now = {"node": "now_node as node", "stream_id": "now_id as stream_id"}
    return rows.join(identities, _expr(same)).selectExpr(*(now.get(name, name) for name in NAMES))


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


def _literal(value: str) -> Any:
    from pyspark.sql import functions

    return functions.lit(value)


def _expr(sql: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(sql)
