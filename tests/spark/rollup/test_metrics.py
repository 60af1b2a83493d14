"""The textfile, as the broker will read it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from tailrace.spark.rollup.metrics import LAST_SUCCESS, RunFigures, write_metrics
from tailrace.supervisor.textfile import read_textfile

FIGURES = RunFigures(date(2026, 11, 20), 1_795_200_000.5, 12.25, True, 40_000, 77, 2, 3)


def read(path: Path) -> dict[str, float]:
    return {sample.name: sample.value for family in read_textfile(path) for sample in family.samples}


def test_the_broker_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "metrics.prom"
    write_metrics(path, FIGURES)
    assert read(path) == {
        "tailrace_rollup_last_run_timestamp_seconds": 1_795_200_000.5,
        "tailrace_rollup_last_run_success": 1,
        LAST_SUCCESS: 1_795_200_000.5,
        "tailrace_rollup_duration_seconds": 12.25,
        "tailrace_rollup_day_timestamp_seconds": 1_795_132_800,
        "tailrace_rollup_messages": 40_000,
        "tailrace_rollup_rows": 77,
        "tailrace_rollup_failures": 2,
        "tailrace_rollup_kept_streams": 3,
    }
    assert [each.name for each in path.parent.iterdir()] == ["metrics.prom"]


def test_a_failure_leaves_the_time_of_the_last_success(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    write_metrics(path, FIGURES._replace(is_success=False))
    assert LAST_SUCCESS not in read(path), "there was none"
    write_metrics(path, FIGURES)
    for _ in range(2):
        write_metrics(path, FIGURES._replace(is_success=False, ended_s=FIGURES.ended_s + 86_400))
    assert read(path)[LAST_SUCCESS] == FIGURES.ended_s
    assert read(path)["tailrace_rollup_last_run_success"] == 0


def test_a_file_that_is_garbage_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metrics.prom"
    path.write_bytes(b"\xff{")
    write_metrics(path, FIGURES)
    assert read(path)[LAST_SUCCESS] == FIGURES.ended_s
