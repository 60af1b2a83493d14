"""A day of messages in a data directory, made through the broker's own storage, quicker than any broker takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from tailrace.shard.directory import make_data_dir
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.header import read_boot_id
from tailrace.shard.log import StreamLog

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
