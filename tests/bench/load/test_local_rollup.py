"""polars makes as many rows as the local engine, and both are measured."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

pytest.importorskip("polars", reason="needs the extra `bench` (pip install -e '.[bench,rollup]')")
pytest.importorskip("pyarrow", reason="needs the extra `rollup` (pip install -e '.[bench,rollup]')")

import pyarrow.parquet as pq

from bench.load.local_rollup import TABLES, main
from bench.load.spark_data import DAY_START_US
from tailrace.spark.rollup.day_plan import day_of
from tailrace.spark.rollup.store import Store

MESSAGES, STREAMS = 6_000, 3


@pytest.mark.thorough
def test_both_make_the_same_rows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--messages", str(MESSAGES), "--streams", str(STREAMS), "--realistic", str(MESSAGES), "--rounds", "1"]
    main([str(tmp_path), *words])
    assert capfd.readouterr().out.count(" s of processors\n") == 5
    for day, table in product(("even", "realistic"), TABLES):
        ours = pq.read_table(Store(tmp_path / f"{day}-local").partition(table, day_of(DAY_START_US)))
        theirs = pq.read_table(tmp_path / f"{day}-polars" / f"{table}.parquet")
        total = sum(ours["messages"].to_pylist())
        assert total == sum(theirs["messages"].to_pylist()) and MESSAGES * 0.9 < total <= MESSAGES
        for name, other in (("size_p99", "size_p99"), ("gap_p99_us", "gap_us_p99"), ("first_seq", "first_seq")):
            numbers = [None if each is None else int(each) for each in theirs[other].to_pylist()]
            assert sorted(ours[name].to_pylist(), key=str) == sorted(numbers, key=str)
