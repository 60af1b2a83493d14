"""polars and the rollup count the same messages into as many rows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("polars", reason="needs the extra `bench` (pip install -e '.[bench,spark]')")
pytest.importorskip("pyspark", reason="needs the extra `spark` (pip install -e '.[bench,spark]')")

from bench.load.rollup import UNITS, gather, roll_up_polars
from bench.load.spark_data import DAY_START_US, make_data
from tailrace.spark.rollup.day_plan import day_of, plan_day
from tailrace.spark.rollup.reading import index_reader, run_task
from tailrace.spark.source import SourceOptions, open_source

STREAMS, MESSAGES = 3, 6_000


def test_as_many_rows(tmp_path: Path) -> None:
    make_data(tmp_path, STREAMS, MESSAGES, 100)
    source = open_source(SourceOptions(str(tmp_path)))
    tasks = plan_day(source, day_of(DAY_START_US)).tasks
    rows = sum(batch.num_rows for task in tasks for batch in run_task(task, index_reader(source), None))
    columns = gather(tmp_path, DAY_START_US)
    assert columns.height == MESSAGES
    assert set(columns["size"].to_list()) == {100}
    assert roll_up_polars(columns, UNITS) == rows > roll_up_polars(columns, UNITS[:1]) > 500
