"""The plan of a day: what each stream has of it, and the tasks that will read it; made on the driver.

The committed count of each stream is read here, once: later messages are not part of this run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

from tailrace.shard.epochs import last_epoch
from tailrace.shard.errors import StreamDamaged, StreamMissing
from tailrace.spark.rollup.frame_view import FrameViews
from tailrace.spark.rollup.kernel import DAY_US
from tailrace.spark.rollup.terms import UNLISTED, Histories
from tailrace.spark.rollup.units import TASK_ROWS, WHOLE_ROWS_MAX, CutAt, Task, Unit, cut_units, pack
from tailrace.spark.slices import NO_IDENTITY, BadStream, Slice, Stamp, show_stream_id
from tailrace.spark.source import CONNECTION_ERRORS, STREAM_ERRORS, Source, StreamRef, TimedView, prepared

EPOCH_DAY: Final = date(1970, 1, 1)


class DayPlan(NamedTuple):
    """`first_seqs` has every stream that could be opened, whether it has messages of the day or not, and the oldest
    message that it keeps; `stream_ids` likewise, None if a node does not send them. `node` is its id. `contradictory`
    are streams whose index contradicts itself. `histories` has the terms of the streams, but for UNLISTED ones.
    """

    tasks: list[Task]
    first_seqs: dict[str, int]
    bad: list[BadStream]
    stream_ids: dict[str, str | None]
    node: str
    contradictory: list[BadStream]
    histories: Histories

    @property
    def messages(self) -> int:
        """The units of a day. Those of a large stream are read by several units, of which one makes their minutes."""
        return sum(self.counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """Those of each stream that has any."""
        found = Counter[str]()
        for unit in (unit for task in self.tasks for unit in task if "minute" in unit.levels):
            found[unit.slice.stream] += unit.slice.messages
        return dict(found)

    @property
    def last_seqs(self) -> dict[str, int]:
        """The last message of the day of each stream that has any."""
        found: dict[str, int] = {}
        for unit in (unit for task in self.tasks for unit in task):
            found[unit.slice.stream] = max(unit.slice.end_seq - 1, found.get(unit.slice.stream, -1))
        return found


def day_start_us(day: date) -> int:
    """When a day begins, UTC."""
    return (day - EPOCH_DAY).days * DAY_US


def day_of(timestamp_us: int) -> date:
    return datetime.fromtimestamp(timestamp_us // 1_000_000, UTC).date()


def plan_day(
    source: Source,
    day: date,
    patterns: Sequence[str] = (),
    show: Callable[[int, int], None] = lambda _done, _total: None,
    task_rows: int = TASK_ROWS,
    whole_rows_max: int = WHOLE_ROWS_MAX,
    frame_views: FrameViews | None = None,
    verify: bool = False,
) -> DayPlan:
    """Views every stream. `show` is called with the progress. With `frame_views` a stream whose index contradicts
    itself is read by its frames, and with `verify` every stream is.

    Raises what `Source.streams` does, and CONNECTION_ERRORS.
    """
    start_us = day_start_us(day)
    units: list[Unit] = []
    plan = DayPlan([], {}, [], {}, source.node_id(), [], {})

    def look(view: TimedView, cut_at: CutAt | None) -> None:
        """cut_at: of a stream that is read by its frames."""
        if not view.exists:
            return
        history = view.history()
        found = _units(view, cut_at, start_us, whole_rows_max, last_epoch(history))
        units.extend(each._replace(by_frames=cut_at is not None) for each in found)
        plan.first_seqs[view.stream], plan.stream_ids[view.stream] = view.first_seq, show_stream_id(view.stream_id)
        if history != UNLISTED:
            plan.histories[view.stream] = history

    refs = source.streams(patterns)
    for done, ref in enumerate(prepared(source, refs)):
        try:
            _look_at(source, ref, frame_views, verify, look, plan.contradictory)
        except CONNECTION_ERRORS:
            raise
        except StreamMissing:  # a name of `patterns` that no stream has, or a stream whose files are being made
            pass
        except STREAM_ERRORS as error:
            plan.bad.append(BadStream(ref.stream, str(error)))
        show(done + 1, len(refs))
    return plan._replace(tasks=pack(units, task_rows))


def _look_at(
    source: Source,
    ref: StreamRef,
    frame_views: FrameViews | None,
    verify: bool,
    look: Callable[[TimedView, CutAt | None], None],
    contradictory: list[BadStream],
) -> None:
    """By the index, or by the frames. Raises STREAM_ERRORS."""
    if frame_views is not None and verify:
        with frame_views(ref) as view:
            look(view, view.cut_at)
        return
    try:
        with source.view(ref) as view:
            look(view, None)
    except StreamDamaged as error:
        if frame_views is None:
            raise
        with frame_views(ref) as view:
            look(view, view.cut_at)
        contradictory.append(BadStream(ref.stream, f"{error}; its frames were read instead"))


def _units(view: TimedView, cut_at: CutAt | None, start_us: int, whole_rows_max: int, newest_epoch: int) -> list[Unit]:
    """newest_epoch: that of the last message of the stream."""
    end_us = start_us + DAY_US
    first, end = view.seq_at(start_us), view.seq_at(end_us)
    if first >= end:
        return []
    slice_ = Slice(view.stream, view.shard, first, end, view.identity)
    if view.identity == NO_IDENTITY:
        latest = Stamp(view.timestamp_at(end - 1), newest_epoch)
        slice_ = slice_._replace(identity=(view.stream_id, 0), latest=latest)
    cut_at = cut_at or (lambda time_us, _end_seq: view.seq_at(time_us))
    return cut_units(slice_, start_us, end_us, cut_at, whole_rows_max)
