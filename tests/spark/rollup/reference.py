"""The rollup of a day once more, from the frames alone and by the definitions in docs/spark.md: what every number is
held against. Imports nothing of the product.

Percentiles are by the definition: the smallest value that at least that percentage of the values are not above.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from tests.spark.rollup.data_files import Int64s, Messages, Stream, read_directory

WIDTHS_US: Final = {"minute": 60_000_000, "hour": 3_600_000_000, "day": 86_400_000_000}
DAY_US: Final = WIDTHS_US["day"]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
BOUNDS: Final = [101**k // 99**k for k in range(2_190)]
NO_GAP: Final = -1

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str, datetime]
"""Level, stream, start."""


def percentile(values: Sequence[int] | Int64s, percent: int) -> int:
    ordered = np.sort(np.asarray(values, np.int64))
    shares = np.arange(1, len(ordered) + 1) * 100
    return int(ordered[shares >= percent * len(ordered)][0])


def sketch(values: Iterable[int]) -> list[dict[str, int]] | None:
    """A number from 1 on is in the first bin k whose bound (101/99)**k is not below it; 0 is in bin -1."""
    found = Counter(bisect_left(BOUNDS, value) if value else -1 for value in values)
    return [{"bin": place, "count": found[place]} for place in sorted(found)] or None


def gaps_of(messages: Messages) -> Int64s:
    """From each message to the one before it; NO_GAP for the first, and behind a message that is damaged."""
    gaps = np.diff(messages.timestamp_us, prepend=0)
    gaps[:1] = NO_GAP
    gaps[1:][~messages.is_whole[:-1]] = NO_GAP
    return gaps


def numbers_of(values: Int64s, name: str, unit: str = "") -> Row:
    """Least, greatest, mean and percentiles; null without values."""
    known = len(values) > 0
    row: Row = {
        f"{name}_min{unit}": int(values.min()) if known else None,
        f"{name}_max{unit}": int(values.max()) if known else None,
        f"{name}_avg{unit}": int(values.sum()) / len(values) if known else None,
    }
    return row | {f"{name}_p{each}{unit}": percentile(values, each) if known else None for each in (50, 99)}


def row_of(messages: Messages, gap_us: Int64s, level: str, damaged: int = 0) -> Row:
    """The row that all of these messages are of, without names."""
    gap_us = gap_us[gap_us != NO_GAP]
    row: Row = {"messages": len(messages.seq), "bytes": int(messages.size.sum())}
    row |= {"gaps": len(gap_us), "gap_sum_us": int(gap_us.sum())}
    row |= numbers_of(messages.size, "size") | numbers_of(gap_us, "gap", "_us")
    row |= {"first_seq": int(messages.seq[0]), "last_seq": int(messages.seq[-1]), "missing": 0, "damaged": damaged}
    is_day = level == "day"
    sketches = {"size_sketch": messages.size, "gap_sketch": gap_us}
    return row | {name: sketch(values.tolist()) if is_day else None for name, values in sketches.items()}


def taken(messages: Messages, which: Any) -> Messages:
    return Messages(*(column[which] for column in messages))


def damaged_before(is_whole: Any) -> Int64s:
    """The damaged messages that are counted with each whole one: those just before it, and with the last those behind
    it, too."""
    places = np.flatnonzero(is_whole)
    counts = np.diff(places, prepend=-1) - 1
    counts[-1:] += len(is_whole) - 1 - places[-1:]
    return counts


def rows_of_stream(stream: Stream, start_us: int, verify: bool) -> Iterator[tuple[Key, Row]]:
    """Each row of the day that begins at start_us. `verify`: damaged messages are not counted as messages."""
    messages = stream.messages
    if not verify:
        messages = messages._replace(is_whole=np.ones(len(messages.seq), np.bool_))
    is_of_day = (messages.timestamp_us >= start_us) & (messages.timestamp_us < start_us + DAY_US)
    gap_us, messages = gaps_of(messages)[is_of_day], taken(messages, is_of_day)
    damaged, gap_us = damaged_before(messages.is_whole), gap_us[messages.is_whole]
    messages = taken(messages, messages.is_whole)
    for level, width_us in WIDTHS_US.items():
        buckets = messages.timestamp_us // width_us
        starts = np.flatnonzero(np.diff(buckets, prepend=-1))
        for first, end in pairwise([*starts, len(buckets)]):
            which = slice(first, end)
            start = EPOCH + timedelta(microseconds=int(buckets[first]) * width_us)
            row = row_of(taken(messages, which), gap_us[which], level, int(damaged[which].sum()))
            yield (level, stream.name, start), row


def roll_up(data: Path, start_us: int, *, verify: bool = False, unreadable: Collection[str] = ()) -> dict[Key, Row]:
    """Every row of the day that begins at start_us. `unreadable`: the streams that do not follow the document."""
    directory = read_directory(data)
    assert directory.unreadable.keys() == set(unreadable), directory.unreadable
    rows: dict[Key, Row] = {}
    for stream in directory.streams:
        if not stream.name.startswith("$"):
            known = {"node": directory.node_id, "stream_id": stream.stream_id, "shard": stream.shard}
            rows |= {key: known | row for key, row in rows_of_stream(stream, start_us, verify)}
    return rows
