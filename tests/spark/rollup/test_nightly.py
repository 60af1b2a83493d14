"""A night's work around the rollup itself: the report and the figures, also when it fails."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tailrace.shard.errors import DirectoryError
from tailrace.shard.retention import RetentionPolicy
from tailrace.spark.rollup import nightly
from tailrace.spark.rollup.engine import Engine
from tailrace.spark.rollup.job import Job, Note, Outcome
from tailrace.spark.rollup.nightly import Night, find_removals, reports_of_kept, run_nights
from tailrace.supervisor.textfile import read_textfile
from tests.spark.data import make_directory
from tests.spark.rollup.directories import DAY, DAY_START_US
from tests.spark.rollup.made import row, write
from tests.spark.rollup.test_job import spread


def night(tmp_path: Path, **changes: Any) -> Night:
    job = Job({"path": str(tmp_path / "data")}, tmp_path / "out", DAY)
    return Night(job)._replace(**changes)


def run_one(tmp_path: Path, **changes: Any) -> tuple[Outcome, str | None]:
    (done,) = run_nights([night(tmp_path, **changes)], no_engine, show, metrics=tmp_path / "metrics.prom")
    assert done.outcome is not None
    return done.outcome, done.report


def figures(tmp_path: Path) -> dict[str, float]:
    found = read_textfile(tmp_path / "metrics.prom")
    return {family.name.removeprefix("tailrace_rollup_"): family.samples[0].value for family in found}


def no_engine(_messages: int) -> Engine:
    raise AssertionError("not needed")


def show(_phase: str, _done: int, _total: int) -> None:
    pass


def test_a_quiet_day_has_a_report_and_figures(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": spread(3, DAY_START_US - 10, 1)})
    outcome, report = run_one(tmp_path)
    assert report == str(tmp_path / "out" / "reports" / f"{DAY}.html")
    assert "No messages came on this day" in Path(report).read_text()
    found = figures(tmp_path)
    assert (outcome.streams, found["messages"], found["last_run_success"], found["failures"]) == (1, 0, 1, 0)


def test_a_quiet_day_behind_a_busy_one_has_a_report(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {})
    write(tmp_path / "out", "days", [row("a")], DAY - timedelta(days=1))
    _, report = run_one(tmp_path)
    assert report is not None
    assert "No messages came on this day" in Path(report).read_text()


def test_without_a_report(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {})
    assert run_nights([night(tmp_path, with_report=False)], no_engine, show)[0].report is None
    assert not (tmp_path / "out" / "reports").exists()
    assert not (tmp_path / "metrics.prom").exists()


def test_a_night_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError):
        run_one(tmp_path)
    assert figures(tmp_path)["last_run_success"] == 0


def test_notes_and_kept_streams_are_in_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Outcome(kept=["trimmed one"])
    outcome.add(Note("bad one", "cannot be read", True))
    outcome.add(Note("x", "fine", False))
    monkeypatch.setattr(nightly, "run_locked", lambda *_: outcome)
    _, report = run_one(tmp_path)
    assert report is not None
    text = Path(report).read_text()
    for wanted in ("bad one", "cannot be read", "trimmed one", "the former rows were kept"):
        assert wanted in text
    assert (figures(tmp_path)["failures"], figures(tmp_path)["kept_streams"]) == (1, 1)


def test_many_kept_streams_are_told_in_a_few_lines() -> None:
    told = reports_of_kept(Outcome(kept=[f"s{i}" for i in range(1_000)]))
    assert len(told) == 11
    assert told[-1].stream == "990 more streams"


def test_the_forecast_knows_what_came_on_the_day(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": spread(10, step_us=1)})
    write(tmp_path / "out", "days", [row("a", messages=10, bytes=500)])
    job = night(tmp_path).job
    (removal,) = find_removals(job, lambda _name: RetentionPolicy(max_bytes=1_500)) or []
    assert (removal.stream, removal.reason) == ("a", "size")
    assert find_removals(job._replace(source={"brokers": "h:1"}), lambda _name: RetentionPolicy(1)) is None
