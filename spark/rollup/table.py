"""Rows of the kernel as Arrow batches, and the schema they have from there on into Parquet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tailrace.spark.entries import Int64s
from tailrace.spark.rollup.kernel import DaySketches, Rows
from tailrace.spark.rollup.quantile import NO_VALUE
from tailrace.spark.rollup.sketch import Sketches

NOTE: Final = "note"
"""The level of a row that is no result but something to be told, so that the tables need no column for it: `stream` is
the stream's name, a line feed, which no name has, and the text."""

SKETCH_TYPE: Final = pa.list_(pa.struct([("bin", pa.int32()), ("count", pa.int64())]))
"""A sketch: its bins in order, without empty ones."""
SKETCHES: Final = ("size_sketch", "gap_sketch")
"""Only days have them."""

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
        *((name, SKETCH_TYPE) for name in SKETCHES),
    ]
)
"""What a task makes. The tables have the same columns but for `level`, and the node and the two averages."""
NODE: Final = pa.field("node", pa.string())
"""The column that is the name of a folder, not in the files."""

FILE_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("stream", "stream_id")),
        ("shard", pa.int32()),
        ("start", pa.timestamp("us", tz="UTC")),
        *((name, _LONG) for name in ("messages", "bytes", "size_min")),
        ("size_avg", pa.float64()),
        *((name, _LONG) for name in ("size_max", "size_p50", "size_p99", "gaps", "gap_sum_us", "gap_min_us")),
        ("gap_avg_us", pa.float64()),
        *((name, _LONG) for name in ("gap_max_us", "gap_p50_us", "gap_p99_us", "first_seq", "last_seq")),
        *((name, _LONG) for name in ("missing", "damaged")),
        *((name, SKETCH_TYPE) for name in SKETCHES),
    ]
)
"""Of the files of the three tables; `start` is when the minute, hour or day begins."""
TABLE_SCHEMA: Final = pa.schema([NODE, *FILE_SCHEMA])
_BY_NODE: Final = ds.partitioning(pa.schema([NODE]), flavor="hive")


class Series(Protocol):
    """A stream that rows are about; a slice is one."""

    @property
    def stream(self) -> str: ...
    @property
    def shard(self) -> int: ...
    @property
    def stream_id(self) -> str | None: ...


def to_batch(
    level: str, rows: Rows, slices: Sequence[Series], sketches: DaySketches | Sequence[pa.Array] | None = None
) -> pa.RecordBatch:
    """`slices` are of the streams that rows.stream counts, from 0 on. `sketches`: of the sizes and gaps of each row."""
    places = pa.array(rows.stream)
    count = len(rows.messages)
    if sketches is None:
        sketches = [pa.nulls(count, SKETCH_TYPE)] * len(SKETCHES)
    elif isinstance(sketches, DaySketches):
        sketches = list(map(to_sketch_array, sketches))
    columns = [
        _constant(level, count),
        pa.array([each.stream for each in slices], pa.string()).take(places),
        pa.array([each.shard for each in slices], pa.int32()).take(places),
        pa.array([each.stream_id for each in slices], pa.string()).take(places),
        pa.array(rows.start_us, RAW_SCHEMA.field("start").type),
        *(_column(name, getattr(rows, name)) for name in _COUNTS),
        *sketches,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)


def to_sketch_array(sketches: Sketches) -> pa.Array:
    """As a column of the tables; null for a group without any number."""
    ends = np.append(sketches.starts[1:], len(sketches.bins))
    arrays = [pa.array(sketches.bins.astype(np.int32)), pa.array(sketches.counts)]
    pairs = pa.StructArray.from_arrays(arrays, fields=list(SKETCH_TYPE.value_type))
    offsets = pa.array(np.append(sketches.starts, len(sketches.bins)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pairs, type=SKETCH_TYPE, mask=pa.array(ends == sketches.starts))


def open_tables(folders: Iterable[Path], base: Path, schema: pa.Schema = TABLE_SCHEMA) -> Any:
    """A dataset of the rows of nodes (`Snapshot.by_node`), in folders below `base`; None without any file."""
    files = [str(path) for folder in folders for path in sorted(folder.glob("*.parquet"))]
    if not files:
        return None
    return ds.dataset(files, schema=schema, format="parquet", partitioning=_BY_NODE, partition_base_dir=str(base))


def to_file_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as the files have them, with their averages."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["size_avg"] = _average(columns["bytes"], columns["messages"])
    columns["gap_avg_us"] = _average(columns["gap_sum_us"], columns["gaps"])
    return pa.RecordBatch.from_arrays([columns[name] for name in FILE_SCHEMA.names], schema=FILE_SCHEMA)


def _average(total: pa.Array, count: pa.Array) -> pa.Array:
    """Null without messages."""
    known = pc.if_else(pc.equal(count, 0), pa.scalar(None, _LONG), count)
    return pc.divide(pc.cast(total, pa.float64(), safe=False), pc.cast(known, pa.float64(), safe=False))


def note_batch(stream: str, shard: int, text: str, missing: int = 0, damaged: int = 0) -> pa.RecordBatch:
    """One note. It counts no messages of its own: `missing` and `damaged` are those of the note's cause."""
    row = dict.fromkeys(RAW_SCHEMA.names, 0) | dict.fromkeys((*_NULLABLE, *SKETCHES))
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
