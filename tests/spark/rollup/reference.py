"""The rollup of a day once more, in plain Python and from the frames alone: what every number is held against.

Nothing of spark/ is used, nor the index. Percentiles are by the definition: the smallest value that at least so many
percent of the values are not above.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tailrace.shard.catalog import all_streams
from tailrace.shard.directory import open_data_dir
from tailrace.shard.header import HEADER_PAGE_BYTES, parse_content
from tailrace.shard.stream_files import stream_paths

LEVELS = {"minute": 60, "hour": 3_600, "day": 86_400}
FRAME = struct.Struct("<IIQQIHH")
BOUNDS = [101**k // 99**k for k in range(2_190)]


class Seen(NamedTuple):
    seq: int
    timestamp_us: int
    size: int
    gap_us: int | None


Row = dict[str, Any]
Key = tuple[str, str, datetime]
"""Level, stream, start."""


def walk(path: Path) -> list[Seen]:
    """Every message that is kept in a content file."""
    content = path.read_bytes()
    _, words = parse_content(content[:HEADER_PAGE_BYTES])
    messages: list[Seen] = []
    offset = words.first_offset
    before_us: int | None = None
    while offset < words.end_offset:
        length, _, seq, timestamp_us, _, _, _ = FRAME.unpack_from(content, offset)
        if seq >= words.first_seq:
            gap_us = None if before_us is None else timestamp_us - before_us
            messages.append(Seen(seq, timestamp_us, length - FRAME.size, gap_us))
            before_us = timestamp_us
        offset += length
    return messages


def percentile(values: list[int], percent: int) -> int:
    ordered = sorted(values)
    return next(value for i, value in enumerate(ordered) if (i + 1) * 100 >= percent * len(values))


def sketch(values: list[int]) -> list[dict[str, int]] | None:
    """A number from 1 on is in the first bin k whose bound (101/99)**k is not below it; 0 is in bin -1."""
    found = Counter(bisect_left(BOUNDS, value) if value else -1 for value in values)
    return [{"bin": place, "count": found[place]} for place in sorted(found)] or None


def row_of(messages: list[Seen], level: str) -> Row:
    sizes = [message.size for message in messages]
    gaps = [message.gap_us for message in messages if message.gap_us is not None]
    row: Row = {"messages": len(messages), "bytes": sum(sizes), "gaps": len(gaps), "gap_sum_us": sum(gaps)}
    for name, unit, values in (("size", "", sizes), ("gap", "_us", gaps)):
        row[f"{name}_min{unit}"] = min(values, default=None)
        row[f"{name}_max{unit}"] = max(values, default=None)
        row[f"{name}_avg{unit}"] = sum(values) / len(values) if values else None
        for percent in (50, 99):
            row[f"{name}_p{percent}{unit}"] = percentile(values, percent) if values else None
    row |= {"first_seq": messages[0].seq, "last_seq": messages[-1].seq, "missing": 0, "damaged": 0}
    is_day = level == "day"
    row |= {"size_sketch": sketch(sizes) if is_day else None, "gap_sketch": sketch(gaps) if is_day else None}
    return row


def roll_up(data: Path, start_us: int) -> dict[Key, Row]:
    """Every row of the day that begins at start_us."""
    directory = open_data_dir(data)
    groups: dict[Key, list[Seen]] = defaultdict(list)
    known: dict[str, Row] = {}
    for shard, stream in all_streams(directory):
        path = Path(stream_paths(directory.shard_path(shard), stream).content_file)
        stream_id = f"{parse_content(path.read_bytes()[:HEADER_PAGE_BYTES])[0].stream_id:016x}"
        known[stream] = {"node": directory.node_id, "stream_id": stream_id, "shard": shard}
        for message in walk(path):
            if stream.startswith("$") or not start_us <= message.timestamp_us < start_us + 86_400_000_000:
                continue
            for level, seconds in LEVELS.items():
                start = datetime.fromtimestamp(message.timestamp_us // 1_000_000 // seconds * seconds, UTC)
                groups[level, stream, start].append(message)
    return {key: {**known[key[1]], **row_of(messages, key[0])} for key, messages in groups.items()}
