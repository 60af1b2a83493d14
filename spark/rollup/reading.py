"""A task of the rollup: its units read, put through the kernel, and given out as Arrow batches. No JVM is needed.

Small streams go through the kernel many at a time. A stream that cannot be read becomes a note, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from tailrace.shard.errors import StreamDamaged
from tailrace.spark.rollup.kernel import DAY, NO_GAP, Segment, roll_up
from tailrace.spark.rollup.large import roll_up_in_blocks
from tailrace.spark.rollup.table import note_batch, to_batch
from tailrace.spark.rollup.units import WHOLE_ROWS_MAX, Task, Unit, is_too_large
from tailrace.spark.slices import Slice
from tailrace.spark.source import CONNECTION_ERRORS, STREAM_ERRORS, SliceReader, Source

PACK_ROWS: Final = 256 * 1024
"""Messages of small streams that go through the kernel together: few enough to stay in the processor's cache."""
Read = Callable[[Slice], Iterator[Segment]]
"""Reads a slice; the segments' `stream` is 0."""


class Part(NamedTuple):
    """A unit that was read."""

    unit: Unit
    segments: list[Segment]


class Packs:
    """Parts on their way to the kernel, gathered by the levels they are wanted at."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, ...], list[Part]] = {}
        self._rows: dict[tuple[str, ...], int] = {}

    def add(self, part: Part) -> Iterator[pa.RecordBatch]:
        levels = part.unit.levels
        self._parts.setdefault(levels, []).append(part)
        self._rows[levels] = self._rows.get(levels, 0) + part.unit.slice.messages
        if self._rows[levels] >= PACK_ROWS:
            yield from self._roll_up(levels)

    def finish(self) -> Iterator[pa.RecordBatch]:
        for levels in list(self._parts):
            yield from self._roll_up(levels)

    def _roll_up(self, levels: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        parts = self._parts.pop(levels)
        self._rows[levels] = 0
        segments = [each._replace(stream=place) for place, part in enumerate(parts) for each in part.segments]
        found, sketches = roll_up(segments, levels)
        for level, rows in found.items():
            yield to_batch(level, rows, [part.unit.slice for part in parts], sketches if level == DAY else None)


def run_task(
    task: Task, read_index: Read, read_frames: Read | None, whole_rows_max: int = WHOLE_ROWS_MAX
) -> Iterator[pa.RecordBatch]:
    """Everything the task's units come to. Where the index of a stream contradicts itself, its frames are read.

    Raises CONNECTION_ERRORS.
    """
    packs = Packs()
    for unit in task:
        stream, shard = unit.slice.stream, unit.slice.shard
        run = _run_large if is_too_large(unit, whole_rows_max) else _run_whole
        try:
            try:
                done = run(unit, read_frames if unit.by_frames and read_frames is not None else read_index)
            except StreamDamaged as error:
                if read_frames is None or unit.by_frames:
                    raise
                done = run(unit, read_frames)
                yield note_batch(stream, shard, f"{error}; its frames were read instead")
        except CONNECTION_ERRORS:
            raise
        except STREAM_ERRORS as error:
            yield note_batch(stream, shard, str(error))
            continue
        if done.note:
            yield note_batch(stream, shard, done.note, done.missing, done.damaged)
        if isinstance(done.result, Part):
            yield from packs.add(done.result)
        elif done.result is not None:
            yield done.result
    yield from packs.finish()


class Done(NamedTuple):
    """The result of a unit. `result` is None if none of its messages exist any more. `missing` counts the messages
    that were trimmed since the unit was planned."""

    result: Part | pa.RecordBatch | None
    note: str
    missing: int = 0
    damaged: int = 0


def _run_whole(unit: Unit, read: Read) -> Done:
    segments = list(read(unit.slice))
    damaged = sum(each.damaged + each.damaged_behind for each in segments)
    missing = unit.slice.messages - damaged - sum(len(each.size) for each in segments)
    notes = [f"{damaged:,} messages are damaged"] if damaged else []
    notes += [f"{missing:,} messages were trimmed meanwhile"] if missing else []
    return Done(Part(unit, segments) if segments else None, "; ".join(notes), missing, damaged)


def _run_large(unit: Unit, read: Read) -> Done:
    """A unit that is one row."""
    (level,) = unit.levels
    rows, sketches, note = roll_up_in_blocks(lambda: read(unit.slice), level)
    return Done(None if rows is None else to_batch(level, rows, [unit.slice], sketches), note)


def index_reader(source: Source) -> Read:
    """Reads slices from the index, which costs 24 bytes a message."""

    def read(slice_: Slice) -> Iterator[Segment]:
        with source.open(slice_) as reader:
            yield from _index_segments(reader, slice_)

    return read


def _index_segments(reader: SliceReader, slice_: Slice) -> Iterator[Segment]:
    """Block by block. If a trim overtakes the reading, messages are missing before a segment."""
    previous_us, seq = _time_before(reader, slice_.first_seq), slice_.first_seq
    for block in reader.blocks(frames=False):
        entries = block.entries
        gone, times = entries.first_seq - seq, entries.timestamp_us
        yield Segment(0, entries.first_seq, times, entries.size, NO_GAP if gone else previous_us, gone)
        previous_us, seq = int(times[-1]), entries.end_seq


def _time_before(reader: SliceReader, seq: int) -> int:
    """The time of the message before `seq`; NO_GAP if it no longer exists."""
    before = reader.entries(seq - 1, 1) if seq else None
    return int(before.timestamp_us[0]) if before and before.messages else NO_GAP
