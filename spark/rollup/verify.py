"""Reads segments from the frames themselves, each checked: for verifying, and if an index contradicts itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StreamCut, StreamDamaged
from tailrace.shard.export import Bad, Bounds, read_section, stream_section
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.walk import FrameRun
from tailrace.spark.frames import index_of
from tailrace.spark.rollup.frame_view import whole_frame_time
from tailrace.spark.rollup.kernel import NO_GAP, Segment
from tailrace.spark.slices import Slice


def frame_reader(data: DataDirectory) -> Callable[[Slice], Iterator[Segment]]:
    """Reads slices of a data directory from the contents. Raises StorageError, OSError."""

    def read(slice_: Slice) -> Iterator[Segment]:
        directory = data.shard_path(slice_.shard)
        with StreamReader.open(directory, slice_.stream) as reader:
            if reader.identity != slice_.identity:
                raise StreamCut(slice_.stream, 0)
            # A trim may have come since the slice was planned: trimmed messages are not damage.
            bounds = Bounds(first_seq=max(slice_.first_seq, reader.first_seq()), end_seq=slice_.end_seq)
            section = stream_section(reader, Path(stream_paths(directory, slice_.stream).content_file), bounds)
            before = _time_before(reader, section.seq)
            gone = min(section.seq, slice_.end_seq) - slice_.first_seq
            yield from _segments(read_section(section, bounds), slice_, before, gone)

    return read


def _segments(found: Iterator[FrameRun | Bad], slice_: Slice, previous_us: int, gone: int) -> Iterator[Segment]:
    """The runs, each with the count of damaged messages before it; the last one also with those after it.

    Raises StreamDamaged if all of the messages are damaged.
    """
    held: Segment | None = None
    bad: Bad | None = None
    seq = slice_.first_seq + gone
    for run in found:
        if isinstance(run, Bad):
            bad = bad or run
            continue
        if held is not None:
            yield held
        entries = index_of(run.frames, run.seq)
        damaged = run.seq - seq
        times = entries.timestamp_us
        held = Segment(0, run.seq, times, entries.size, NO_GAP if damaged else previous_us, gone, damaged)
        seq, previous_us, gone = entries.end_seq, int(times[-1]), 0
    if held is not None:
        yield held._replace(damaged_behind=slice_.end_seq - seq)
    elif bad is not None:
        raise StreamDamaged(
            slice_.stream, bad.file, bad.offset, f"all of {slice_.end_seq - seq:,} messages: {bad.cause}"
        )


def _time_before(reader: StreamReader, seq: int) -> int:
    """The time of the message before `seq`; NO_GAP if it is damaged or no longer exists."""
    timestamp_us = whole_frame_time(reader, seq - 1) if seq > reader.first_seq() else None
    return NO_GAP if timestamp_us is None else timestamp_us
