"""How many messages a second the rollup's kernel makes into rows, on one core, without reading and writing.

    python -m bench.load.kernel_rate [--messages 5000000] [--rounds 5]

Prints the median of the rounds in messages for each second of processor time: of a stream whose messages come evenly,
500 at a time and of one size; of one with log-normal sizes and exponential gaps; and of many small ones like that.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

import numpy as np

from bench.figures import median
from bench.load.spark_data import BATCH_MESSAGES, DAY_START_US, DAY_US, Day, make_day
from tailrace.spark.directory_source import INDEX_BLOCK_ENTRIES
from tailrace.spark.rollup.kernel import NO_GAP, Segment, roll_up
from tailrace.spark.rollup.reading import PACK_ROWS

SMALL_MESSAGES: Final = 10_000
SIZE_BYTES: Final = 100


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    random = np.random.default_rng(1)
    small = min(SMALL_MESSAGES, options.messages)
    pack = [make_day(random, small) for _ in range(max(1, min(PACK_ROWS, options.messages) // small))]
    days = {
        "one stream, evenly": [make_even_day(options.messages)],
        "one stream, realistic": [make_day(random, options.messages)],
        f"streams of {small:,}, realistic": pack,
    }
    for name, streams in days.items():
        segments = [each for number, day in enumerate(streams) for each in cut(number, day)]
        messages = sum(len(day.timestamp_us) for day in streams)
        rates = [messages / measure_s(segments) for _ in range(options.rounds)]
        print(f"{name}: {median(rates) / 1e6:.1f} M msg/s, at best {max(rates) / 1e6:.1f}")


def make_even_day(messages: int) -> Day:
    first_of_batch = np.arange(messages) // BATCH_MESSAGES * BATCH_MESSAGES
    return Day(DAY_START_US + first_of_batch * DAY_US // messages, np.full(messages, SIZE_BYTES))


def cut(stream: int, day: Day) -> list[Segment]:
    """As they are read from an index."""
    segments, previous_us = [], NO_GAP
    for first in range(0, len(day.timestamp_us), INDEX_BLOCK_ENTRIES):
        times_us, sizes = (column[first : first + INDEX_BLOCK_ENTRIES] for column in day)
        segments.append(Segment(stream, first, times_us, sizes, previous_us))
        previous_us = int(times_us[-1])
    return segments


def measure_s(segments: list[Segment]) -> float:
    begun_s = time.process_time()
    roll_up(segments)
    return time.process_time() - begun_s


if __name__ == "__main__":
    main()
