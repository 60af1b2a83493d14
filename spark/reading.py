"""A task: read its slices, and give record batches. What goes wrong with a stream is raised, or told and left out."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa

from spark.columns import BatchMaker, coalesce
from spark.slices import Slice, Task
from spark.source import CONNECTION_ERRORS, STREAM_ERRORS, Source, StreamRef

LOG = logging.getLogger("tailrace.spark")


def read_task(source: Source, task: Task, maker: BatchMaker, skip_bad: bool) -> Iterator[pa.RecordBatch]:
    """The messages of all slices. Raises STREAM_ERRORS for a stream that cannot be read, unless `skip_bad`: then it is
    logged, and is a row with a text in the column `_fault` where the schema has it."""
    return coalesce(batch for slice_ in task for batch in guarded(source, slice_, maker, skip_bad))


def guarded(source: Source, slice_: Slice, maker: BatchMaker, skip_bad: bool) -> Iterator[pa.RecordBatch]:
    """The messages of one slice, as `read_task`."""
    try:
        yield from read_slice(source, slice_, maker)
    except CONNECTION_ERRORS:
        raise
    except STREAM_ERRORS as error:
        if not skip_bad:
            raise
        yield from told(maker, StreamRef(slice_.shard, slice_.stream), str(error))


def told(maker: BatchMaker, ref: StreamRef, cause: str) -> Iterator[pa.RecordBatch]:
    """A bad stream that is left out: into the log, and a row of its own where there is a place for it."""
    LOG.warning("left out: %s", cause)
    row = maker.fault(ref, cause)
    if row is not None:
        yield row


def read_slice(source: Source, slice_: Slice, maker: BatchMaker) -> Iterator[pa.RecordBatch]:
    ref = StreamRef(slice_.shard, slice_.stream)
    with source.open(slice_) as reader:
        for block in reader.blocks(frames=maker.needs_frames):
            yield maker.batch(ref, block)
