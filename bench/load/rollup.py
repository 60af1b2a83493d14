"""A day's rollup, asked of `spark_server`: by tailrace, by Spark over exported Parquet, and by polars over columns that
somebody has got ready in memory.

All three give the rows of minutes with exact percentiles. tailrace gives those of hours and days as well, and puts all
of them on the disk; `rollup-all` is polars with hours and days.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bench.load.spark_data import polars_percentiles
from tailrace.spark.rollup.day_plan import day_of, plan_day
from tailrace.spark.rollup.job import Job, run_job
from tailrace.spark.rollup.reading import index_reader
from tailrace.spark.rollup.spark_engine import SparkEngine
from tailrace.spark.source import SourceOptions, open_source

UNITS: Final = ("1m", "1h", "1d")


def roll_up(session: Any, data: Path, scratch: Path, day_start_us: int) -> int:
    """`tailrace rollup` but for the report; return the number of rows. The session is warm."""
    job = Job({"path": str(data)}, scratch / "rollups", day_of(day_start_us))
    engine = SparkEngine(lambda: session.sparkContext)
    outcome = run_job(job, lambda _messages: engine, lambda _phase, _done, _total: None)
    return sum(outcome.rows.values())


def roll_up_parquet(messages: Any, scratch: Path) -> None:
    """Spark's own: `messages` has stream, seq, timestamp and size of each."""
    aggregates = ["count(1) messages", "min(seq) first_seq", "max(seq) last_seq", "sum(size) bytes"]
    for name in ("size", "gap_us"):
        aggregates += [f"{each}({name}) {name}_{each}" for each in ("min", "avg", "max")]
        aggregates.append(f"percentile({name}, array(0.5, 0.99)) {name}_percentiles")
    before = "lag(timestamp) over (partition by stream order by seq)"
    gaps = messages.selectExpr(
        "stream", "seq", "size", "timestamp", f"timestampdiff(microsecond, {before}, timestamp) gap_us"
    )
    minutes = gaps.selectExpr("*", "date_trunc('minute', timestamp) minute").groupBy("stream", "minute")
    found = minutes.agg(*(_sql(each) for each in aggregates))
    found.write.mode("overwrite").parquet(str(scratch / "native"))


def roll_up_polars(frame: Any, units: tuple[str, ...]) -> int:
    """Over the columns of `gather`; return the number of rows, which stay in memory."""
    import polars as pl

    wanted = [pl.len(), pl.col("size").sum().alias("bytes"), pl.col("seq").min().alias("first"), pl.col("seq").max()]
    wanted += polars_percentiles("lower")
    starts = [pl.col("timestamp").dt.truncate(unit) for unit in units]
    return sum(int(frame.group_by("stream", start).agg(wanted).height) for start in starts)


def gather(data: Path, day_start_us: int) -> Any:
    """Columns of every message of the day, as polars likes them: stream (a number), seq, timestamp, size, gap_us."""
    import polars as pl

    source = open_source(SourceOptions(str(data)))
    read = index_reader(source)
    tasks = plan_day(source, day_of(day_start_us), whole_rows_max=1 << 62).tasks
    columns: dict[str, list[Any]] = {name: [] for name in ("stream", "seq", "timestamp", "size", "gap_us")}
    for number, slice_ in enumerate(sorted(unit.slice for task in tasks for unit in task)):
        for segment in read(slice_):
            times = segment.timestamp_us
            columns["stream"].append(np.full(len(times), number, np.int32))
            columns["seq"].append(np.arange(segment.first_seq, segment.first_seq + len(times)))
            columns["timestamp"].append(times)
            columns["size"].append(segment.size.astype(np.int32))
            columns["gap_us"].append(np.diff(times, prepend=times[0]))
    joined = {name: pa.array(np.concatenate(parts)) for name, parts in columns.items()}
    joined["timestamp"] = joined["timestamp"].cast(pa.timestamp("us", tz="UTC"))
    return pl.from_arrow(pa.table(joined))


def _sql(text: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(text)
