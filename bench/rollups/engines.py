"""The ways to a day's rollup. Each is prepared once, and then timed warm, several times.

Only `Tailrace` reads a data directory and ends with tables on the disk. The others begin with what somebody has got
ready for them, which is not timed: columns in memory, or Parquet.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.rollups.data import DAY
from spark.rollup.day_plan import plan_day
from spark.rollup.job import Job, run_job
from spark.rollup.kernel import LEVELS
from spark.rollup.reading import index_reader, run_task
from spark.rollup.sessions import LOCAL, make_session
from spark.source import SourceOptions, open_source

MINUTES: Final = ("minute",)
_UNITS: Final = {"minute": "1m", "hour": "1h", "day": "1d"}


class Engine(ABC):
    """`rows` counts what the last run gave."""

    name: str
    title: str
    rows: int = 0

    @abstractmethod
    def prepare(self, data: Path, scratch: Path) -> None:
        """Get ready for runs over this directory."""

    @abstractmethod
    def run(self) -> None:
        """The part that is timed."""


class Tailrace(Engine):
    name = "tailrace"
    title = "tailrace rollup: plan, kernel, Spark, three tables as Parquet, commit"

    def prepare(self, data: Path, scratch: Path) -> None:
        shutil.rmtree(scratch / "out", ignore_errors=True)
        self._job = Job({"path": str(data)}, scratch / "out", DAY)
        self._session = make_session(LOCAL, "*", "1g")

    def run(self) -> None:
        outcome = run_job(self._job, lambda: self._session, lambda _phase, _done, _total: None)
        self.rows = sum(outcome.rows.values())


class Kernel(Engine):
    name = "kernel"
    title = "(its kernel alone, from the index to Arrow batches, one process, no Spark)"

    def prepare(self, data: Path, scratch: Path) -> None:
        self._source = open_source(SourceOptions(str(data)))

    def run(self) -> None:
        read = index_reader(self._source)
        tasks = plan_day(self._source, DAY).tasks
        self.rows = sum(batch.num_rows for task in tasks for batch in run_task(task, read, None))


class Polars(Engine):
    """`levels`: of which the rows are made."""

    def __init__(self, levels: tuple[str, ...]) -> None:
        self._levels = levels
        self.name = "polars" if levels == LEVELS else "polars-minutes"
        self.title = f"polars, one process, columns of the index in memory; {', '.join(levels)}"

    def prepare(self, data: Path, scratch: Path) -> None:
        import polars as pl

        self._frame: Any = pl.from_arrow(read_columns(data))

    def run(self) -> None:
        import polars as pl

        column = pl.col
        wanted = [
            pl.len(),
            column("size").sum().alias("bytes"),
            column("seq").first().alias("first_seq"),
            column("seq").last().alias("last_seq"),
        ]
        for name in ("size", "gap_us"):
            wanted += [
                column(name).min().alias(f"{name}_min"),
                column(name).mean().alias(f"{name}_avg"),
                column(name).max().alias(f"{name}_max"),
                column(name).quantile(0.5, "lower").alias(f"{name}_p50"),
                column(name).quantile(0.99, "lower").alias(f"{name}_p99"),
            ]
        self.rows = 0
        for level in self._levels:
            start = column("timestamp").dt.truncate(_UNITS[level])
            self.rows += self._frame.group_by("stream", start).agg(wanted).height


class NativeSpark(Engine):
    name = "spark-parquet"
    title = "Spark SQL over the messages exported as Parquet; minutes, written as Parquet"

    def prepare(self, data: Path, scratch: Path) -> None:
        self._export, self._out = scratch / "export", scratch / "native"
        shutil.rmtree(self._export, ignore_errors=True)
        self._export.mkdir()
        # gap_us is exported, too: a window over all messages would take most of the time.
        table = read_columns(data)
        for number, batch in enumerate(table.to_batches(max_chunksize=4_000_000)):
            pq.write_table(pa.Table.from_batches([batch]), self._export / f"{number}.parquet")
        self._session = make_session(LOCAL, "*", "4g")

    def run(self) -> None:
        self._session.conf.set("spark.sql.shuffle.partitions", "8")
        aggregates = ["count(1) n", "sum(size) bytes", "min(seq) first_seq", "max(seq) last_seq"]
        for name in ("size", "gap_us"):
            aggregates += [f"{each}({name}) {name}_{each}" for each in ("min", "avg", "max")]
            aggregates.append(f"percentile({name}, array(0.5, 0.99)) {name}_percentiles")
        self._session.read.parquet(str(self._export)).createOrReplaceTempView("messages")
        columns = ["stream", "date_trunc('minute', timestamp) minute", *aggregates]
        found = self._session.sql(f"select {', '.join(columns)} from messages group by 1, 2")
        found.write.mode("overwrite").parquet(str(self._out))
        self.rows = self._session.read.parquet(str(self._out)).count()


def make_engines() -> list[Engine]:
    return [Tailrace(), Kernel(), Polars(LEVELS), Polars(MINUTES), NativeSpark()]


def read_columns(data: Path) -> pa.Table:
    """Of every message of the day: stream (a number), seq, timestamp, size, gap_us."""
    source = open_source(SourceOptions(str(data)))
    read = index_reader(source)
    columns: dict[str, list[Any]] = {name: [] for name in ("stream", "seq", "timestamp", "size", "gap_us")}
    slices = sorted({unit.slice for task in plan_day(source, DAY, whole_rows_max=1 << 62).tasks for unit in task})
    for number, slice_ in enumerate(slices):
        for segment in read(slice_):
            times = segment.timestamp_us
            columns["stream"].append(np.full(len(times), number, np.int32))
            columns["seq"].append(np.arange(segment.first_seq, segment.first_seq + len(times)))
            columns["timestamp"].append(times)
            columns["size"].append(segment.size.astype(np.int32))
            columns["gap_us"].append(np.diff(times, prepend=times[0]))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    table = pa.table(joined)
    return table.set_column(2, "timestamp", table["timestamp"].cast(pa.timestamp("us", tz="UTC")))
