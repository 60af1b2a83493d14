"""Turns a query into a list of tasks: opens each stream once, and searches its index."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from tailrace.shard.errors import StreamMissing
from tailrace.spark.places import EVERYTHING, Place, Range
from tailrace.spark.planning import ROWS_PER_TASK, cut_aligned, make_tasks, pack, rows_for
from tailrace.spark.slices import NO_IDENTITY, BadStream, Slice, Task
from tailrace.spark.source import CONNECTION_ERRORS, STREAM_ERRORS, Source, StreamRef, StreamView, prepared


class Plan(NamedTuple):
    """`bad`: streams that were asked for and cannot be read; no task has them."""

    tasks: list[Task]
    bad: list[BadStream]

    @property
    def messages(self) -> int:
        """The number of messages to read."""
        return sum(slice_.messages for task in self.tasks for slice_ in task)


def make_plan(
    source: Source,
    patterns: Sequence[str],
    range_: Range = EVERYTHING,
    rows_per_task: int | None = None,
    align_us: int = 0,
    topics: bytes = b"",
) -> Plan:
    """Without `rows_per_task` it is chosen by how many messages there are and how many processors this machine has.
    With `align_us`, no unit of time of this length is in two slices. With `topics`, a filter, the source leaves out
    messages that are known to have other topics. Raises what `Source.streams` does.
    """
    slices: list[Slice] = []
    bad: list[BadStream] = []
    for ref in prepared(source, source.streams(patterns)):
        try:
            found = stream_slices(source, ref, range_, rows_per_task or ROWS_PER_TASK, align_us)
            slices += [part for slice_ in found for part in source.prune(slice_, topics)] if topics else found
        except CONNECTION_ERRORS:
            raise
        except STREAM_ERRORS as error:
            if not is_unborn(error, ref, patterns):
                bad.append(BadStream(ref.stream, str(error)))
    if align_us:
        return Plan(pack(slices, rows_per_task or rows_for(slices, os.cpu_count() or 1)), bad)
    return Plan(make_tasks(slices, rows_per_task, os.cpu_count() or 1), bad)


def is_unborn(error: Exception, ref: StreamRef, patterns: Sequence[str]) -> bool:
    """Whether the stream was just being created, or a crash left it so, and it was not named: then it is ignored."""
    return isinstance(error, StreamMissing) and ref.stream not in patterns


def stream_slices(source: Source, ref: StreamRef, range_: Range, rows: int, align_us: int) -> list[Slice]:
    """Slices of the range in one stream: whole, or aligned parts of about `rows`. Raises STREAM_ERRORS."""
    with source.view(ref) as view:
        slice_ = _bound(view, resolve(view, range_))
        if align_us:
            return cut_aligned(view, slice_, rows, align_us)
        return [slice_] if slice_.messages else []


def _bound(view: StreamView, slice_: Slice) -> Slice:
    """Over a connection the last message is what distinguishes the slice from another stream of this name."""
    if view.identity != NO_IDENTITY or not slice_.messages:
        return slice_
    return slice_._replace(latest=view.stamp_at(slice_.end_seq - 1))


def resolve(view: StreamView, range_: Range) -> Slice:
    """The part of the range in a stream; may be empty."""
    start = view.first_seq if range_.start is None else _seq_of(view, range_.start)
    end = view.next_seq if range_.end is None else _seq_of(view, range_.end)
    return Slice(view.stream, view.shard, start, max(start, end), view.identity)


def _seq_of(view: StreamView, place: Place) -> int:
    """The first seq at or behind the place, within what the stream keeps."""
    seq = view.seq_at(place.value) if place.kind == "time" else place.value
    return min(max(seq, view.first_seq), view.next_seq)
