"""Runs a task: reads its slices and yields record batches. Errors of a stream are raised, or reported and skipped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from tailrace.spark.columns import BatchMaker, Part, gather
from tailrace.spark.slices import BadStream, Slice
from tailrace.spark.source import CONNECTION_ERRORS, STREAM_ERRORS, Source, StreamRef, fetched
from tailrace.spark.topics import TopicPicker

LOG = logging.getLogger("tailrace.spark")


def read_task(
    source: Source, task: Sequence[Slice], maker: BatchMaker, skip_bad: bool, topics: bytes = b""
) -> Iterator[pa.RecordBatch]:
    """The messages of all slices, or those whose topic a filter matches. Raises STREAM_ERRORS for a stream that cannot
    be read; with `skip_bad` errors are reported after the readable messages of that stream, and all others."""
    bad: list[BadStream] = []
    on_bad, frames = bad.append if skip_bad else None, needs_frames(maker, topics)
    parts = (part for slice_ in fetched(source, task) for part in read_slice(source, slice_, frames, on_bad))
    yield from batches(parts, maker, topics)
    yield from told(bad, maker)


def needs_frames(maker: BatchMaker, topics: bytes) -> bool:
    return maker.needs_frames or bool(topics)


def batches(parts: Iterable[Part], maker: BatchMaker, topics: bytes) -> Iterator[pa.RecordBatch]:
    """Makes batches of parts, or of those of their messages whose topic a filter matches."""
    return map(maker.batch, gather(TopicPicker(topics).pick(parts) if topics else parts))


def read_slice(
    source: Source, slice_: Slice, frames: bool, on_bad: Callable[[BadStream], None] | None = None
) -> Iterator[Part]:
    """Raises STREAM_ERRORS, or passes them to `on_bad`, except CONNECTION_ERRORS."""
    ref = StreamRef(slice_.shard, slice_.stream)
    try:
        with source.open(slice_) as reader:
            for block in reader.blocks(frames=frames):
                yield Part(ref, block)
    except CONNECTION_ERRORS:
        raise
    except STREAM_ERRORS as error:
        if on_bad is None:
            raise
        on_bad(BadStream(slice_.stream, str(error)))


def told(bad: Iterable[BadStream], maker: BatchMaker) -> Iterator[pa.RecordBatch]:
    """Streams that are left out: into the log, and a row each where the schema has the column `_fault`."""
    for stream, cause in bad:
        LOG.warning("left out: %s", cause)
        row = maker.fault(stream, cause)
        if row is not None:
            yield row
