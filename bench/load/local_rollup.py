"""The local engine's rollup, cold from the command to the tables on the disk, against polars making the same tables.

    python -m bench.load.local_rollup DIR [--messages 40000000] [--streams 8] [--rounds 3]

DIR gets the data and the tables, and stays. Prints medians of the rounds, which go by turns: seconds by the clock, and
seconds of processor time. A small day (10 streams, 5,000 messages) comes first, with its report.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from bench.load.spark_data import DAY_START_US, make_data
from tailrace.shard.catalog import all_streams
from tailrace.shard.directory import open_data_dir
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.stream_files import stream_paths
from tailrace.spark.entries import ENTRY
from tailrace.spark.rollup.day_plan import day_of

SMALL: Final = (10, 5_000)
PAYLOAD_BYTES: Final = 16


TABLES: Final = {"minutes": "1m", "hours": "1h", "days": "1d"}


class Spent(NamedTuple):
    """Of a process and its children: by the clock, and of processors."""

    seconds: float
    processor_s: float


def run(command: list[str]) -> Spent:
    """Raises RuntimeError if it fails."""
    begun_s = time.monotonic()
    silent = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[silent])
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return Spent(time.monotonic() - begun_s, usage.ru_utime + usage.ru_stime)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--messages", type=int, default=40_000_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--polars", action="store_true", help="Only let polars roll up DIR/large.")
    said = parser.parse_args(arguments)
    if said.polars:
        return roll_up_polars(said.directory / "large", said.directory / "polars")
    for name, (streams, messages) in (("small", SMALL), ("large", (said.streams, said.messages))):
        if not (said.directory / name).exists():
            make_data(said.directory / name, streams, messages, PAYLOAD_BYTES)
    local = [sys.executable, "-m", "tailrace.cli.main", "rollup", "--day", str(day_of(DAY_START_US))]
    large = [*local, "--engine", "local", "--no-report", str(said.directory / "large"), str(said.directory / "tables")]
    commands = {
        "a small day, with its report": [*local, str(said.directory / "small"), str(said.directory / "small-tables")],
        f"{said.messages:,} messages, local": large,
        f"{said.messages:,} messages, polars": [*polars_command(), str(said.directory)],
    }
    spent: dict[str, list[Spent]] = {name: [] for name in commands}
    for _ in range(said.rounds):
        for name, command in commands.items():
            spent[name].append(run(command))
    for name, rounds in spent.items():
        medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
        print(f"{name}: {medians[0]:.2f} s, {medians[1]:.2f} s of processors")


def polars_command() -> list[str]:
    return [sys.executable, "-m", "bench.load.local_rollup", "--polars"]


def roll_up_polars(data: Path, out: Path) -> None:
    """The three tables from the index files alone."""
    import polars as pl

    directory = open_data_dir(data)
    frames = [
        _columns(pl, stream, shard, Path(stream_paths(directory.shard_path(shard), stream).index_file))
        for shard, stream in all_streams(directory)
    ]
    frame = pl.concat(frames)
    out.mkdir(exist_ok=True)
    for table, every in TABLES.items():
        start = pl.col("timestamp").dt.truncate(every).alias("start")
        rows = frame.group_by("stream", "shard", start).agg(_aggregates(pl))
        rows.write_parquet(out / f"{table}.parquet")


def _aggregates(pl: Any) -> list[Any]:
    """The columns that the tables have."""
    found = [pl.len().alias("messages"), pl.col("size").sum().alias("bytes"), pl.col("gap_us").count().alias("gaps")]
    found += [pl.col("gap_us").sum().alias("gap_sum_us"), pl.col("seq").min().alias("first_seq")]
    found.append(pl.col("seq").max().alias("last_seq"))
    for name in ("size", "gap_us"):
        column = pl.col(name)
        found += [column.min().alias(f"{name}_min"), column.mean().alias(f"{name}_avg")]
        found += [column.max().alias(f"{name}_max"), column.quantile(0.5, "equiprobable").alias(f"{name}_p50")]
        found.append(column.quantile(0.99, "equiprobable").alias(f"{name}_p99"))
    return found


def _columns(pl: Any, stream: str, shard: int, index: Path) -> Any:
    entries = np.fromfile(index, ENTRY, offset=HEADER_PAGE_BYTES)
    entries = entries[: np.count_nonzero(entries["length"])]  # the file is longer than what it holds
    columns = {
        "timestamp": entries["timestamp_us"].astype(np.int64),
        "size": entries["length"].astype(np.int64) - HEADER_BYTES,
        "seq": np.arange(len(entries)),
    }
    frame = pl.DataFrame(columns).with_columns(
        pl.col("timestamp").diff().alias("gap_us"), pl.from_epoch("timestamp", time_unit="us")
    )
    names = pl.lit(stream, pl.Categorical).alias("stream"), pl.lit(shard, pl.Int32).alias("shard")
    return frame.with_columns(*names)


if __name__ == "__main__":
    main()
