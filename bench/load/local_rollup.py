"""The rollup, cold from the command to the tables on the disk, against polars making the same tables.

    python -m bench.load.local_rollup DIR [--messages 40000000] [--streams 8] [--realistic 16000000] [--rounds 3]

DIR gets the data and the tables, and stays. Prints medians of the rounds, which go by turns: seconds by the clock, and
seconds of processor time. A small day (10 streams, 5,000 messages) comes first, with its report; then a day that is
spread evenly over its streams, and one with sizes and gaps as they are (`bench.load.spark_data`).
"""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any, Final

import numpy as np

from bench.figures import median
from bench.load.meter import Spent
from bench.load.spark_data import DAY_START_US, make_data, make_realistic_data, polars_percentiles
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


def run(command: list[str]) -> Spent:
    """Run a command and return what it and its children took. Raises CalledProcessError if it fails."""
    begun_s, before = time.monotonic(), getrusage(RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    seconds, after = time.monotonic() - begun_s, getrusage(RUSAGE_CHILDREN)
    return Spent(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--messages", type=int, default=40_000_000)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--realistic", type=int, default=16_000_000, help="Messages of the day as it is.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="Let Spark roll up the days, too.")
    parser.add_argument("--polars", metavar="NAME", help="Only let polars roll up DIR/NAME.")
    options = parser.parse_args(arguments)
    if options.polars:
        return roll_up_polars(options.directory / options.polars, options.directory / f"{options.polars}-polars")
    make_days(options)
    commands = make_commands(options)
    spent: dict[str, list[Spent]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            spent[name].append(run(command))
    for name, rounds in spent.items():
        wall_s, cpu_s = median([each.wall_s for each in rounds]), median([each.cpu_s for each in rounds])
        print(f"{name}: {wall_s:.2f} s, {cpu_s:.2f} s of processors")


def make_days(options: Namespace) -> None:
    """Those that are not there yet."""
    for name, (streams, messages) in (("small", SMALL), ("even", (options.streams, options.messages))):
        if not (options.directory / name).exists():
            make_data(options.directory / name, streams, messages, PAYLOAD_BYTES)
    if not (options.directory / "realistic").exists():
        make_realistic_data(options.directory / "realistic", options.realistic)


def make_commands(options: Namespace) -> dict[str, list[str]]:
    directory = options.directory
    rollup = [sys.executable, "-m", "tailrace.cli.main", "rollup", "--day", str(day_of(DAY_START_US))]
    small = [f"{directory}/small", f"{directory}/small-tables"]
    commands = {"a small day, with its report": [*rollup, *small]}
    if options.spark:
        commands["a small day, with its report, spark"] = [*rollup, "--engine", "spark", *small]
    for name, messages in (("even", options.messages), ("realistic", options.realistic)):
        data, day = f"{directory}/{name}", f"{messages:,} messages, {name}"
        commands[f"{day}, local"] = [*rollup, "--engine", "local", "--no-report", data, f"{data}-local"]
        if options.spark:
            commands[f"{day}, spark, with its report"] = [*rollup, "--engine", "spark", data, f"{data}-spark"]
        polars = [sys.executable, "-m", "bench.load.local_rollup", "--polars", name, str(directory)]
        commands[f"{day}, polars"] = polars
    return commands


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
    """Return the columns of the tables."""
    found = [pl.len().alias("messages"), pl.col("size").sum().alias("bytes"), pl.col("gap_us").count().alias("gaps")]
    found += [pl.col("gap_us").sum().alias("gap_sum_us"), pl.col("seq").min().alias("first_seq")]
    found.append(pl.col("seq").max().alias("last_seq"))
    return found + polars_percentiles("equiprobable")


def _columns(pl: Any, stream: str, shard: int, index: Path) -> Any:
    entries = np.fromfile(index, ENTRY, offset=HEADER_PAGE_BYTES)
    entries = entries[: np.count_nonzero(entries["length"])]  # the file is longer than its entries
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
