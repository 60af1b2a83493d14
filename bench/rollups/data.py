"""A day of streams, written through the broker's own storage, with every process that the machine has."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from itertools import repeat
from pathlib import Path
from typing import Final, NamedTuple

from shard.directory import make_data_dir, open_data_dir
from shard.frame import pack_frame
from shard.header import read_boot_id
from shard.log import StreamLog

DAY: Final = date(2026, 11, 20)
DAY_START_US: Final = 1_795_132_800_000_000
DAY_US: Final = 86_400_000_000
PAYLOAD_BYTES: Final = 100
BURST: Final = 10
"""Messages that the broker takes at one time, as one batch of a publisher: it stamps them with one time."""


class Shape(NamedTuple):
    """`messages` in all, evenly over the streams and, but for some jitter, over the day."""

    streams: int
    messages: int

    @property
    def name(self) -> str:
        return f"rollup-{self.streams}"


def make_day(path: Path, shape: Shape) -> None:
    """Raises OSError."""
    make_data_dir(path)
    bursts = shape.messages // shape.streams // BURST
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for _ in pool.map(_fill, repeat(path), range(shape.streams), repeat(bursts), chunksize=4):
            pass


def _fill(path: Path, number: int, bursts: int) -> None:
    name = f"stream-{number:06}"
    step_us = DAY_US // max(bursts, 1)
    batch = pack_frame(bytes(PAYLOAD_BYTES)) * BURST
    log = StreamLog.open(open_data_dir(path).stream_directory(name), name, create=True, boot_id=read_boot_id())
    for i in range(bursts):
        jitter_us = (i * 7_919 + number * 104_729) * 1_009 % step_us
        log.append(bytearray(batch), BURST, DAY_START_US + i * step_us + jitter_us, 1)
    log.close()
