"""A day of messages in a data directory, made through the broker's own storage, quicker than any broker takes them."""

from __future__ import annotations

from itertools import count, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.shard.directory import make_data_dir
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.header import read_boot_id
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog

_stamp = load("tailrace.shard.frame_cy").stamp

DAY_START_US: Final = 1_795_132_800_000_000
"""2026-11-20, 00:00 UTC."""
DAY_US: Final = 86_400_000_000
BATCH_MESSAGES: Final = 500
"""Appended at once, with one timestamp."""
BATCHES_MIN: Final = 400
"""Of each stream, where it has as many messages: 16 an hour."""


def stream_name(number: int) -> str:
    return f"b.{number:06d}"


def make_data(path: Path, streams: int, messages: int, payload_bytes: int) -> None:
    """`messages` in all, evenly spread over the streams and over the day; payloads that no compression makes small."""
    data, boot_id = make_data_dir(path), read_boot_id()
    random = np.random.default_rng(1)
    for number in range(streams):
        name, left = stream_name(number), messages // streams
        log = StreamLog.open(data.stream_directory(name), name, create=True, boot_id=boot_id)
        batch = min(BATCH_MESSAGES, max(1, left // BATCHES_MIN))
        for first in range(0, left, batch):
            count = min(batch, left - first)
            log.append(_frames(random, count, payload_bytes), count, DAY_START_US + first * DAY_US // left, 1)
        log.close()


class StreamKind(NamedTuple):
    """Streams of a day as it is: `streams` of them share the part `share` of all messages."""

    streams: int
    share: float


REALISTIC: Final = (StreamKind(1, 0.5), StreamKind(12, 0.375), StreamKind(500, 0.125))
SIZE_MEDIAN_BYTES: Final = 32
SIZE_SIGMA: Final = 1.0
SIZE_MAX_BYTES: Final = 1 << 20


class Day(NamedTuple):
    """Messages of a stream, as their times and sizes; the times are within a day and never decrease."""

    timestamp_us: NDArray[np.int64]
    payload_bytes: NDArray[np.int64]


def make_day(random: np.random.Generator, messages: int) -> Day:
    """Log-normal sizes, and a Poisson process: gaps that are distributed exponentially."""
    times_us = np.sort(random.integers(DAY_START_US, DAY_START_US + DAY_US, messages))
    sizes = random.lognormal(np.log(SIZE_MEDIAN_BYTES), SIZE_SIGMA, messages)
    return Day(times_us, np.minimum(sizes, SIZE_MAX_BYTES).astype(np.int64) + 1)


def make_realistic_data(path: Path, messages: int) -> None:
    """About `messages` in all, in streams of three kinds (REALISTIC). Payloads are zeros."""
    data, boot_id = make_data_dir(path), read_boot_id()
    random = np.random.default_rng(1)
    names = (stream_name(number) for number in count())
    for kind in REALISTIC:
        for name in islice(names, kind.streams):
            log = StreamLog.open(data.stream_directory(name), name, create=True, boot_id=boot_id)
            day = make_day(random, max(1, int(messages * kind.share / kind.streams)))
            for first in range(0, len(day.timestamp_us), BATCH_MESSAGES):
                part = Day(*(column[first : first + BATCH_MESSAGES] for column in day))
                log.take(_stamped_frames(part, first))
            log.close()


def _stamped_frames(day: Day, seq: int) -> bytearray:
    """Each with a time of its own, as a slave gets them."""
    lengths = HEADER_BYTES + day.payload_bytes
    ends = np.cumsum(lengths)
    frames = np.zeros(int(ends[-1]), np.uint8)
    starts = ends - lengths
    frames[starts[:, None] + np.arange(4)] = lengths.astype("<u4").view(np.uint8).reshape(-1, 4)
    view = memoryview(frames.data)
    for place, (start, end, time_us) in enumerate(
        zip(starts.tolist(), ends.tolist(), day.timestamp_us.tolist(), strict=True)
    ):
        _stamp(view[start:end], seq + place, time_us, 1, 0)
    return bytearray(view)


def polars_percentiles(method: Any) -> list[Any]:
    """Return polars' least, mean, greatest, p50 and p99 of size and gap; `method` picks a percentile's value."""
    import polars as pl

    found: list[Any] = []
    for name in ("size", "gap_us"):
        column = pl.col(name)
        found += [column.min().alias(f"{name}_min"), column.mean().alias(f"{name}_avg")]
        found += [column.max().alias(f"{name}_max"), column.quantile(0.5, method).alias(f"{name}_p50")]
        found.append(column.quantile(0.99, method).alias(f"{name}_p99"))
    return found


def _frames(random: np.random.Generator, count: int, payload_bytes: int) -> bytearray:
    """Unstamped frames of random bytes."""
    length = HEADER_BYTES + payload_bytes
    frames = np.zeros((count, length), np.uint8)
    frames[:, :4] = np.frombuffer(length.to_bytes(4, "little"), np.uint8)
    frames[:, HEADER_BYTES:] = np.frombuffer(random.bytes(count * payload_bytes), np.uint8).reshape(count, -1)
    return bytearray(frames)
