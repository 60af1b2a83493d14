"""The kernel: messages in, rows of minutes, hours and days out. NumPy and nothing else, so it runs without a JVM.

A message has a time, a size in bytes (its frame without the 32 bytes of header) and a gap: the microseconds since the
message before it in its stream, whichever minute that is in. The first message there is of a stream has none.

Messages come as segments, each a run of messages of one stream without a hole in its seqs. A call takes as many streams
as wanted, one after another, each stream's segments in order and side by side; its cost per stream is an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.spark.entries import Int64s
from tailrace.spark.rollup.quantile import NO_VALUE, group_quantiles, narrowed
from tailrace.spark.rollup.sketch import Sketches, count_ordered, sketch_groups

MINUTE_US: Final = 60_000_000
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US

LEVELS: Final = ("minute", "hour", "day")
MINUTE: Final = "minute"
DAY: Final = "day"
WIDTHS_US: Final = {"minute": MINUTE_US, "hour": HOUR_US, "day": DAY_US}
NO_GAP: Final = -1
SEARCHED_ROWS_MIN: Final = 8_192
"""Minutes are searched by bisection if streams have at least this many messages on average."""


class Segment(NamedTuple):
    """Messages first_seq, first_seq + 1 … of one stream; times never decrease. Not empty.

    `stream` is any number that distinguishes the streams of a call. `previous_us` is the time of the message before the
    first one, NO_GAP without one. `missing` and `damaged` messages were expected just before the first one,
    `damaged_behind` just behind the last one.
    """

    stream: int
    first_seq: int
    timestamp_us: Int64s
    size: Int64s
    previous_us: int = NO_GAP
    missing: int = 0
    damaged: int = 0
    damaged_behind: int = 0


class Rows(NamedTuple):
    """A row is what the messages of one stream in one minute, hour or day come to. Arrays of one length.

    `gaps` counts the messages that have a gap, `gap_sum_us` adds them up; without any, the other gap columns are
    NO_VALUE.
    """

    stream: Int64s
    start_us: Int64s
    messages: Int64s
    bytes: Int64s
    size_min: Int64s
    size_max: Int64s
    size_p50: Int64s
    size_p99: Int64s
    gaps: Int64s
    gap_sum_us: Int64s
    gap_min_us: Int64s
    gap_max_us: Int64s
    gap_p50_us: Int64s
    gap_p99_us: Int64s
    first_seq: Int64s
    last_seq: Int64s
    missing: Int64s
    damaged: Int64s


class Messages(NamedTuple):
    """Segments side by side. `gap_us` is NO_VALUE at the places `without_gap`; each segment begins at its start."""

    timestamp_us: Int64s
    size: Int64s
    gap_us: Int64s
    without_gap: Int64s
    segment_starts: Int64s
    segments: Sequence[Segment]


class DaySketches(NamedTuple):
    """The sketches of the sizes and gaps of each row of the days."""

    size: Sketches
    gap_us: Sketches


def roll_up(segments: Sequence[Segment], levels: Sequence[str] = LEVELS) -> tuple[dict[str, Rows], DaySketches | None]:
    """The rows of each level asked for, in the order of the messages; and the sketches, with the level of days.
    `levels` are in the order of LEVELS.
    """
    messages = side_by_side(segments)
    starts = _minute_starts(messages)
    merged = _minute_rows(messages, starts)
    size = narrowed(messages.size, int(merged.size_max.max()))
    gap_us = narrowed(messages.gap_us, int(merged.gap_max_us.max(initial=0, where=merged.gaps > 0)))
    rows: dict[str, Rows] = {}
    sketches = None
    for level in levels:
        if level != MINUTE:
            merged, firsts = merge_rows(merged, WIDTHS_US[level])
            starts = starts[firsts]
        sizes, gaps = _Histograms(), _Histograms()
        looks = (sizes.count, gaps.count) if level == DAY else (None, None)
        size_p50, size_p99 = group_quantiles(size, starts, merged.messages, looks[0])
        gap_p50_us, gap_p99_us = group_quantiles(gap_us, starts, merged.gaps, looks[1])
        rows[level] = merged._replace(
            size_p50=size_p50, size_p99=size_p99, gap_p50_us=gap_p50_us, gap_p99_us=gap_p99_us
        )
        if level == DAY:
            sketches = DaySketches(
                sketch_groups(messages.size, starts, sizes), sketch_groups(messages.gap_us, starts, gaps)
            )
    return rows, sketches


class _Histograms(dict[int, Int64s]):
    """Histograms of the groups that were sorted for their percentiles."""

    def count(self, group: int, ordered: NDArray[Any]) -> None:
        self[group] = count_ordered(ordered)


def roll_up_plain(segments: Sequence[Segment], level: str) -> Rows:
    """The rows of a level without the percentiles, which are zeros."""
    messages = side_by_side(segments)
    rows, _ = merge_rows(_minute_rows(messages, _minute_starts(messages)), WIDTHS_US[level])
    return rows


def side_by_side(segments: Sequence[Segment]) -> Messages:
    lengths = np.array([len(segment.timestamp_us) for segment in segments], np.int64)
    assert lengths.all(), "a segment has at least one message"
    starts = np.cumsum(lengths) - lengths
    timestamp_us = _joined([segment.timestamp_us for segment in segments])
    size = _joined([segment.size for segment in segments])
    gap_us = np.empty(len(timestamp_us), np.int64)
    gap_us[1:] = timestamp_us[1:] - timestamp_us[:-1]
    previous_us = np.array([segment.previous_us for segment in segments], np.int64)
    gap_us[starts] = np.where(previous_us == NO_GAP, NO_VALUE, timestamp_us[starts] - previous_us)
    return Messages(timestamp_us, size, gap_us, starts[previous_us == NO_GAP], starts, segments)


def _joined(arrays: list[Int64s]) -> Int64s:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _minute_starts(messages: Messages) -> Int64s:
    """The places where a minute of a stream begins: another minute than the message before it, or another stream."""
    streams = np.array([segment.stream for segment in messages.segments], np.int64)
    firsts = messages.segment_starts[np.append(True, streams[1:] != streams[:-1])]
    times_us = messages.timestamp_us
    if len(times_us) < SEARCHED_ROWS_MIN * len(firsts):
        minute = times_us // MINUTE_US
        begins = np.empty(len(minute), np.bool_)
        np.not_equal(minute[1:], minute[:-1], out=begins[1:])
        begins[firsts] = True
        return np.flatnonzero(begins)
    ends = np.append(firsts[1:], len(times_us))
    return np.concatenate([_search_minutes(times_us[a:b]) + a for a, b in zip(firsts, ends, strict=True)])


def _search_minutes(times_us: Int64s) -> Int64s:
    """The places where a minute of one stream begins."""
    first, last = int(times_us[0]) // MINUTE_US, int(times_us[-1]) // MINUTE_US
    places = np.searchsorted(times_us, np.arange(first + 1, last + 1) * MINUTE_US)
    return np.append(0, places[np.diff(places, prepend=0) > 0])


def _minute_rows(messages: Messages, starts: Int64s) -> Rows:
    """Everything but the quantiles, which are zeros."""
    zeros = np.zeros(len(starts), np.int64)
    count = np.diff(starts, append=len(messages.size))
    gaps = count - _count_at(starts, messages.without_gap)
    gap_min_us = np.minimum.reduceat(messages.gap_us, starts)
    messages.gap_us[messages.without_gap] = 0
    gap_max_us = np.where(gaps > 0, np.maximum.reduceat(messages.gap_us, starts), NO_VALUE)
    gap_sum_us = np.add.reduceat(messages.gap_us, starts)
    messages.gap_us[messages.without_gap] = NO_VALUE
    segment = np.searchsorted(messages.segment_starts, starts, side="right") - 1
    last = starts + count - 1
    last_segment = np.searchsorted(messages.segment_starts, last, side="right") - 1
    ends = np.append(messages.segment_starts[1:], len(messages.size)) - 1
    first_seqs = np.array([each.first_seq for each in messages.segments], np.int64)
    return Rows(
        stream=np.array([each.stream for each in messages.segments], np.int64)[segment],
        start_us=messages.timestamp_us[starts] // MINUTE_US * MINUTE_US,
        messages=count,
        bytes=np.add.reduceat(messages.size, starts),
        size_min=np.minimum.reduceat(messages.size, starts),
        size_max=np.maximum.reduceat(messages.size, starts),
        size_p50=zeros,
        size_p99=zeros,
        gaps=gaps,
        gap_sum_us=gap_sum_us,
        gap_min_us=gap_min_us,
        gap_max_us=gap_max_us,
        gap_p50_us=zeros,
        gap_p99_us=zeros,
        first_seq=first_seqs[segment] + starts - messages.segment_starts[segment],
        last_seq=first_seqs[last_segment] + last - messages.segment_starts[last_segment],
        missing=_sum_at(starts, messages.segment_starts, [each.missing for each in messages.segments]),
        damaged=_sum_at(starts, messages.segment_starts, [each.damaged for each in messages.segments])
        + _sum_at(starts, ends, [each.damaged_behind for each in messages.segments]),
    )


def _count_at(starts: Int64s, places: Int64s) -> Int64s:
    """The number of places in each group."""
    return np.bincount(np.searchsorted(starts, places, side="right") - 1, minlength=len(starts))


def _sum_at(starts: Int64s, places: Int64s, numbers: list[int]) -> Int64s:
    """The numbers, one a place, added up in the groups that the places are in."""
    total = np.zeros(len(starts), np.int64)
    if any(numbers):
        np.add.at(total, np.searchsorted(starts, places, side="right") - 1, np.array(numbers, np.int64))
    return total


def merge_rows(rows: Rows, width_us: int) -> tuple[Rows, Int64s]:
    """Merges adjacent rows of one stream and one minute, hour or day; returns the start of each among the old.

    The percentiles are not right afterwards.
    """
    bucket = rows.start_us // width_us
    begins = (bucket[1:] != bucket[:-1]) | (rows.stream[1:] != rows.stream[:-1])
    first = np.concatenate(([0], np.flatnonzero(begins) + 1))
    last = np.append(first[1:], len(bucket)) - 1
    sums = {
        name: np.add.reduceat(getattr(rows, name), first)
        for name in ("messages", "bytes", "gaps", "gap_sum_us", "missing", "damaged")
    }
    with_gap_max = np.where(rows.gap_max_us == NO_VALUE, NO_GAP, rows.gap_max_us)
    gap_max_us = np.maximum.reduceat(with_gap_max, first)
    merged = rows._replace(
        **sums,
        stream=rows.stream[first],
        start_us=bucket[first] * width_us,
        size_min=np.minimum.reduceat(rows.size_min, first),
        size_max=np.maximum.reduceat(rows.size_max, first),
        gap_min_us=np.minimum.reduceat(rows.gap_min_us, first),
        gap_max_us=np.where(gap_max_us == NO_GAP, NO_VALUE, gap_max_us),
        first_seq=rows.first_seq[first],
        last_seq=rows.last_seq[last],
    )
    return merged, first
