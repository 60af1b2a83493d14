"""Rows of the kernel as Arrow batches, and the schema they have from there on into Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from spark.entries import Int64s
from spark.rollup.kernel import Rows
from spark.rollup.quantile import NO_VALUE
from spark.slices import Slice

NOTE: Final = "note"
"""The level of a row that is no result but something to be told, so that the tables need no column for it: `stream` is
the stream's name, a line feed, which no name has, and the text."""

_LONG = pa.int64()
_NULLABLE: Final = ("stream_id", "gap_min_us", "gap_max_us", "gap_p50_us", "gap_p99_us", "size_p50", "size_p99")
_COUNTS: Final = Rows._fields[2:]

RAW_SCHEMA: Final = pa.schema(
    [
        pa.field("level", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("stream_id", pa.string()),
        pa.field("start", pa.timestamp("us", tz="UTC"), nullable=False),
        *(pa.field(name, _LONG, nullable=name in _NULLABLE) for name in _COUNTS),
    ]
)
"""What the source gives. The tables have the same columns but for `level`, and the node and the two averages."""

_SQL_TYPES: Final = {
    pa.string(): "string",
    pa.int32(): "int",
    _LONG: "bigint",
    pa.timestamp("us", tz="UTC"): "timestamp",
}
RAW_DDL: Final = ", ".join(
    f"{field.name} {_SQL_TYPES[field.type]}{'' if field.nullable else ' not null'}" for field in RAW_SCHEMA
)
"""The same for Spark."""


def to_batch(level: str, rows: Rows, slices: Sequence[Slice]) -> pa.RecordBatch:
    """`slices` are of the streams that rows.stream counts, from 0 on."""
    places = pa.array(rows.stream)
    count = len(rows.messages)
    columns = [
        _constant(level, count),
        pa.array([each.stream for each in slices], pa.string()).take(places),
        pa.array([each.shard for each in slices], pa.int32()).take(places),
        pa.array([each.stream_id for each in slices], pa.string()).take(places),
        pa.array(rows.start_us, RAW_SCHEMA.field("start").type),
        *(_column(name, getattr(rows, name)) for name in _COUNTS),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def note_batch(stream: str, shard: int, text: str, missing: int = 0, damaged: int = 0) -> pa.RecordBatch:
    """One note. It counts no messages of its own: `missing` and `damaged` say what the note is about."""
    row = dict.fromkeys(RAW_SCHEMA.names, 0) | dict.fromkeys(_NULLABLE)
    row |= {"level": NOTE, "stream": f"{stream}\n{text}", "shard": shard, "missing": missing, "damaged": damaged}
    return pa.RecordBatch.from_pylist([row], schema=RAW_SCHEMA)


def parse_note(stream: str) -> tuple[str, str]:
    """The stream and the text, of what stands in the column `stream` of a note."""
    name, _, text = stream.partition("\n")
    return name, text


def _column(name: str, values: Int64s) -> pa.Array:
    if name not in _NULLABLE:
        return pa.array(values)
    is_null = values == NO_VALUE
    return pa.array(values, mask=is_null) if is_null.any() else pa.array(values)


def _constant(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)
