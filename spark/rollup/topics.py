"""The table of topics: what the messages of each topic come to in an hour. Made only on request, since it reads frames.

Of a stream and an hour at most a given number of topics have rows, those that come first; one more row, whose topic is
null, is of all others. So memory and rows are bounded, and each number is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tailrace.shard.frame import HEADER_BYTES
from tailrace.spark.columns import Part, put_together
from tailrace.spark.entries import Int64s
from tailrace.spark.headers import topics_array
from tailrace.spark.rollup.kernel import HOUR_US
from tailrace.spark.rollup.units import Task
from tailrace.spark.slices import Slice
from tailrace.spark.source import CONNECTION_ERRORS, STREAM_ERRORS, Block, Source, StreamRef

BATCH_ROWS: Final = 1 << 16
"""Rows of a table that are merged at one time."""
HOUR: Final = "hour"
TOPIC: Final = "topic"

_LONG = pa.int64()
_NUMBERS: Final = ("messages", "bytes", "size_min", "size_max", "first_seq", "last_seq")
SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("stream", "stream_id")),
        ("shard", pa.int32()),
        ("start", pa.timestamp("us", tz="UTC")),
        (TOPIC, pa.string()),
        *((name, _LONG) for name in _NUMBERS),
    ]
)
"""Of the files; `start` is when the hour begins."""
_HOUR_KEYS: Final = ("stream", "stream_id", "start")
HourKey = tuple[str, str | None, Any]


class TopicNote(NamedTuple):
    """Why a stream's topics are not counted, or not all of them."""

    stream: str
    text: str


class _Hour:
    """The topics of an hour so far: by topic, the numbers."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: dict[str | None, list[int]] = {}

    def add(self, topic: str, numbers: list[int]) -> None:
        rows = self._rows
        key = topic if topic in rows or len(rows) - (None in rows) < self._most else None
        row = rows.get(key)
        if row is None:
            rows[key] = numbers
            return
        messages, nbytes, size_min, size_max, first_seq, last_seq = numbers
        row[0] += messages
        row[1] += nbytes
        row[2], row[3] = min(row[2], size_min), max(row[3], size_max)
        row[4], row[5] = min(row[4], first_seq), max(row[5], last_seq)

    def to_batch(self, slice_: Slice, start_us: int) -> pa.RecordBatch:
        count = len(self._rows)
        columns = [
            pa.repeat(pa.scalar(slice_.stream, pa.string()), count),
            pa.repeat(pa.scalar(slice_.stream_id, pa.string()), count),
            pa.repeat(pa.scalar(slice_.shard, pa.int32()), count),
            pa.array([start_us] * count, SCHEMA.field("start").type),
            pa.array(list(self._rows), pa.string()),
            *(pa.array(list(column), _LONG) for column in zip(*self._rows.values(), strict=True)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def roll_up_topics(
    source: Source, task: Task, most: int, fetch: Callable[[Slice], None]
) -> Iterator[pa.RecordBatch | TopicNote]:
    """The rows of a task's streams. `fetch` is called before the frames of a slice are read.

    Raises CONNECTION_ERRORS.
    """
    for unit in task:
        if HOUR not in unit.levels:
            continue
        try:
            fetch(unit.slice)
            yield from _hours(source, unit.slice, most)
        except CONNECTION_ERRORS:
            raise
        except STREAM_ERRORS as error:
            yield TopicNote(unit.slice.stream, f"its topics are not counted: {error}")


def _hours(source: Source, slice_: Slice, most: int) -> Iterator[pa.RecordBatch]:
    hour, start_us = _Hour(most), -1
    with source.open(slice_) as reader:
        for block in reader.blocks(frames=True):
            for each_us, topic, numbers in _groups(slice_, block):
                if each_us != start_us:
                    if start_us >= 0:
                        yield hour.to_batch(slice_, start_us)
                    hour, start_us = _Hour(most), each_us
                hour.add(topic, numbers)
    if start_us >= 0:
        yield hour.to_batch(slice_, start_us)


def _groups(slice_: Slice, block: Block) -> Iterator[tuple[int, str, list[int]]]:
    """The numbers of each hour and topic of a block, in the order in which they first come."""
    entries = block.entries
    messages = put_together([Part(StreamRef(slice_.shard, slice_.stream), block)])
    streams = pa.repeat(pa.scalar(slice_.stream, pa.string()), entries.messages)
    starts = messages.starts + HEADER_BYTES
    topics = pc.dictionary_encode(topics_array(messages.frames, starts, messages.metadata_bytes, streams))
    codes: Int64s = topics.indices.to_numpy().astype(np.int64)
    hours = entries.timestamp_us // HOUR_US
    edges = np.flatnonzero(np.diff(hours, prepend=hours[0] - 1, append=hours[-1] + 1)).tolist()
    names: list[str] = topics.dictionary.to_pylist()
    size, seq = entries.size, entries.seq
    for first, end in pairwise(edges):
        for code, numbers in _numbers(codes[first:end], size[first:end], seq[first:end]):
            yield int(hours[first]) * HOUR_US, names[code], numbers


def _numbers(codes: Int64s, size: Int64s, seq: Int64s) -> list[tuple[int, list[int]]]:
    """By code, in the order in which they first come."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.append(0, np.flatnonzero(np.diff(ordered)) + 1)
    ends = np.append(starts[1:], len(codes))
    sizes, firsts = size[order], order[starts]
    columns = (
        ends - starts,
        np.add.reduceat(sizes, starts),
        np.minimum.reduceat(sizes, starts),
        np.maximum.reduceat(sizes, starts),
        seq[firsts],
        seq[order[ends - 1]],
    )
    table = np.stack(columns, axis=1)[np.argsort(firsts)].tolist()
    return list(zip(ordered[starts][np.argsort(firsts)].tolist(), table, strict=True))


# --- rows of an earlier run -----------------------------------------------------------------------------------------


def merge_topics(
    fresh: Sequence[Path],
    old: Path | None,
    now_of: Callable[[str, str | None], str | None],
    is_dropped: Callable[[str, str | None], bool],
    add: Callable[[pa.RecordBatch], None],
) -> None:
    """Calls `add` with the rows of the table: of each hour of a stream those of the run that has counted more messages.

    `now_of`: the id of the stream as it was read now, for a stream and id of the table; the latter itself for another
    stream. `is_dropped`: whether a stream's former rows go. Raises OSError.
    """
    before = _totals(_open([old] if old is not None and old.is_dir() else []), now_of)
    after = _totals(_open(fresh), lambda _stream, stream_id: stream_id)
    kept = {key for key, total in before.items() if total > after.get(key, 0) and not is_dropped(*key[:2])}
    for batch in _batches([old] if kept and old is not None else []):
        _add_chosen(batch, now_of, lambda key: key in kept, add)
    for batch in _batches(fresh):
        _add_chosen(batch, lambda _stream, stream_id: stream_id, lambda key: key not in kept, add)


def _open(paths: Iterable[Path]) -> Any:
    files = [str(file) for path in paths for file in (sorted(path.glob("*.parquet")) if path.is_dir() else [path])]
    return ds.dataset(files, schema=SCHEMA, format="parquet") if files else None


def _batches(paths: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    found = _open(paths)
    if found is not None:
        yield from found.to_batches(batch_size=BATCH_ROWS)


def _totals(rows: Any, now_of: Callable[[str, str | None], str | None]) -> dict[HourKey, int]:
    """The messages of each hour of a stream: as many numbers as rows of the table of hours."""
    totals: dict[HourKey, int] = {}
    for batch in () if rows is None else rows.to_batches(columns=[*_HOUR_KEYS, "messages"], batch_size=BATCH_ROWS):
        summed = pa.Table.from_batches([batch]).group_by(list(_HOUR_KEYS)).aggregate([("messages", "sum")])
        for stream, stream_id, start, messages in zip(
            *(summed[name].to_pylist() for name in (*_HOUR_KEYS, "messages_sum")), strict=True
        ):
            key = stream, now_of(stream, stream_id), start
            totals[key] = totals.get(key, 0) + messages
    return totals


def _add_chosen(
    batch: pa.RecordBatch,
    now_of: Callable[[str, str | None], str | None],
    is_chosen: Callable[[HourKey], bool],
    add: Callable[[pa.RecordBatch], None],
) -> None:
    keys = zip(*(batch[name].to_pylist() for name in _HOUR_KEYS), strict=True)
    ids = [(stream, now_of(stream, stream_id), start) for stream, stream_id, start in keys]
    chosen = batch.filter(pa.array([is_chosen(key) for key in ids], pa.bool_()))
    if chosen.num_rows:
        add(chosen)
