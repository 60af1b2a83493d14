"""How the engine fails when Spark does; tests/spark/rollup/test_engine.py tests its output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.spark.rollup.engine import ChooseEngine, EngineError
from tailrace.spark.rollup.job import Job, run_job
from tailrace.spark.rollup.spark_engine import SparkEngine
from tailrace.spark.rollup.tasks import Work
from tailrace.spark.rollup.units import Unit
from tailrace.spark.slices import Slice
from tailrace.spark.source import SourceOptions
from tests.spark.data import make_directory
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US
from tests.spark.rollup.tables import read_tables
from tests.spark.rollup.test_job import spread

TASKS = [(Unit(Slice("a", 0, 0, 1), ("day",)),)]


def show(_phase: str, _done: int, _total: int) -> None:
    pass


def test_without_java(tmp_path: Path) -> None:
    def no_java() -> Any:
        raise RuntimeError("there is no Java")

    with pytest.raises(EngineError, match="Spark: there is no Java"):
        SparkEngine(no_java).run(Work(SourceOptions("data"), str(tmp_path), "node"), TASKS, show)


def test_a_task_that_fails(tmp_path: Path, spark_engine: ChooseEngine) -> None:
    work = Work(SourceOptions(str(tmp_path / "nothing")), str(tmp_path), "node")
    with pytest.raises(EngineError, match="is not a tailrace data directory") as failed:
        spark_engine(1).run(work, TASKS, show)
    assert failed.value.name == "Spark"


def test_tasks_put_their_files_at_a_url(tmp_path: Path, session: Any) -> None:
    """As on a cluster without a common folder: files that they put there come here, and nothing is left."""
    make_directory(tmp_path / "data", {"a": spread(50), "b": spread(3)})
    job = Job({"path": str(tmp_path / "data")}, tmp_path / "out", DAY)
    shared = tmp_path / "shared"
    run_job(job, lambda _messages: SparkEngine(lambda: session.sparkContext, f"file://{shared}"), show)
    assert read_tables(tmp_path / "out", DAY) == reference.roll_up(tmp_path / "data", DAY_START_US)
    assert list(shared.iterdir()) == []
