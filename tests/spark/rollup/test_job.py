"""Runs of the rollup: all numbers by both engines, repeated runs, and days whose streams have been trimmed since."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.shard.directory import open_data_dir
from tailrace.shard.stream_files import stream_paths
from tailrace.spark.rollup import job, merge, tasks
from tailrace.spark.rollup.day_plan import DayPlan
from tailrace.spark.rollup.engine import ChooseEngine, Engine
from tailrace.spark.rollup.job import Before, Job, Outcome, find_idle, find_kept, is_another, run_job
from tailrace.spark.rollup.merge import KEPT_FROM_MAX, Identity, Kept
from tailrace.spark.rollup.store import Store
from tests.shard.helpers import flip
from tests.spark.data import Sent, add_stream, append, make_directory, open_log, plain, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US, MINUTE_US
from tests.spark.rollup.tables import left_over, read_tables

Run = Callable[..., Outcome]


def run_with(engine: ChooseEngine, tmp_path: Path, **changes: Any) -> Outcome:
    wanted = Job({"path": str(tmp_path / "data")}, tmp_path / "out", DAY)._replace(**changes)
    return run_job(wanted, engine, lambda _phase, _done, _total: None)


@pytest.fixture
def roll_up(tmp_path: Path, local_engine: ChooseEngine) -> Run:
    """By the engine that takes no seconds to start; merging and committing are the same for both."""
    return partial(run_with, local_engine, tmp_path)


def no_engine(_messages: int) -> Engine:
    raise AssertionError("there is nothing to read")


def spread(count: int, first_us: int = DAY_START_US, step_us: int = 7 * MINUTE_US // 3) -> list[Sent]:
    return [Sent(first_us + i * step_us, bytes(i * 37 % 101), epoch=1 + i // 50) for i in range(count)]


def test_every_number_is_that_of_the_plain_pass(tmp_path: Path, engine: ChooseEngine) -> None:
    odd = ["a/b", "..", "ключ", "%41", "é" * 100, "*?[x]", "day=1", "25"]
    streams = {name: spread(40, DAY_START_US - HOUR_US + i * HOUR_US) for i, name in enumerate(odd)}
    streams["around midnight"[:6]] = spread(2_000, DAY_START_US - 3 * HOUR_US, MINUTE_US)
    streams |= {"one": spread(1), "none": [], "same": spread(5, step_us=0), "$own": spread(5)}
    streams["late"] = spread(3, DAY_START_US + 24 * HOUR_US - 1, 1)
    make_directory(tmp_path / "data", streams)
    trim(tmp_path / "data", "25", 17)
    trim(tmp_path / "data", "one", 1)
    outcome = run_with(engine, tmp_path)
    expected = reference.roll_up(tmp_path / "data", DAY_START_US)
    assert read_tables(tmp_path / "out", DAY) == expected
    assert sum(outcome.rows.values()) == len(expected)
    assert (outcome.failures, outcome.kept, outcome.was_cleared) == (0, [], False)
    assert not left_over(tmp_path / "out")


def test_twice_is_as_once_and_other_days_are_left_alone(tmp_path: Path, roll_up: Run) -> None:
    make_directory(tmp_path / "data", {"a": spread(3_000)})
    roll_up(day=DAY + timedelta(days=1))
    other = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("day=*/node=*/*")}
    assert other
    roll_up()
    first = read_tables(tmp_path / "out", DAY)
    roll_up()
    assert read_tables(tmp_path / "out", DAY) == first
    assert {path: path.stat().st_mtime_ns for path in other} == other


def test_what_is_trimmed_since_is_kept(tmp_path: Path, roll_up: Run) -> None:
    """Rows of minutes that are gone stay as they were; hours and days count them."""
    data = make_directory(tmp_path / "data", {"a": spread(300), "b": spread(300), "gone": spread(9)})
    roll_up()
    before = read_tables(tmp_path / "out", DAY)
    trim(tmp_path / "data", "a", 101)
    trim(tmp_path / "data", "gone", 9)
    log = open_log(data, "a")
    append(log, spread(20, DAY_START_US + 23 * HOUR_US))  # they come late, but come
    log.close()
    outcome = roll_up()
    after = read_tables(tmp_path / "out", DAY)
    assert sorted(outcome.kept) == ["a", "gone"]

    late = {key for key in after if key[1] == "a" and key[2].hour >= 23 and key[0] != "day"}
    day = next(key for key in after if key[:2] == ("day", "a"))
    assert {key: row for key, row in after.items() if key not in {*late, day}} == {
        key: row for key, row in before.items() if key != day
    }
    assert late
    minutes = [row for key, row in after.items() if key[:2] == ("minute", "a")]
    assert sum(row["messages"] for row in minutes) == 320 == after[day]["messages"]
    assert after[day]["bytes"] == sum(row["bytes"] for row in minutes)
    assert after[day]["size_p50"] is None, "nobody has all of its messages any more"
    assert (after[day]["first_seq"], after[day]["last_seq"], after[day]["missing"]) == (0, 319, 0)
    assert roll_up().rows == outcome.rows
    assert read_tables(tmp_path / "out", DAY) == after


def test_however_the_merge_is_cut(tmp_path: Path, roll_up: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"s{i}" for i in range(7)]
    make_directory(tmp_path / "data", {name: spread(50) for name in names})
    roll_up()
    before = read_tables(tmp_path / "out", DAY)
    for name in names[1:]:
        trim(tmp_path / "data", name, 30)
    monkeypatch.setattr(merge, "PART_SERIES", 4)
    monkeypatch.setattr(merge, "FILE_ROWS", 60)
    assert roll_up().kept == names[1:]
    assert read_tables(tmp_path / "out", DAY) == before
    files = sorted(Store(tmp_path / "out").partition("minutes", DAY).glob("*/*"))
    parts = [pq.ParquetFile(file).read()["stream"].to_pylist() for file in files]
    assert len(parts) == 4
    assert [name for part in parts for name in part] == sorted(name for name in names for _ in range(50))


def test_of_a_minute_that_is_partly_gone_the_fuller_row_stays(tmp_path: Path, roll_up: Run) -> None:
    data = make_directory(tmp_path / "data", {"a": plain(30, DAY_START_US, 1_000_000)})
    roll_up()
    trim(tmp_path / "data", "a", 10)
    roll_up()
    rows = read_tables(tmp_path / "out", DAY)
    assert {row["messages"] for row in rows.values()} == {30}
    log = open_log(data, "a")
    append(log, plain(15, DAY_START_US + 30_000_000, 1_000_000))  # now 35 can be read
    log.close()
    roll_up()
    rows = read_tables(tmp_path / "out", DAY)
    assert {(row["messages"], row["first_seq"], row["missing"]) for row in rows.values()} == {(35, 10, 0)}


def test_a_trim_up_to_the_day_loses_no_gap(tmp_path: Path, roll_up: Run) -> None:
    make_directory(
        tmp_path / "data", {"a": plain(10, DAY_START_US - 5_000_000, 1_000_000), "b": plain(3, DAY_START_US)}
    )
    roll_up()
    before = read_tables(tmp_path / "out", DAY)
    assert {row["gaps"] for key, row in before.items() if key[1] == "a"} == {5}
    trim(tmp_path / "data", "a", 5)
    for _ in range(2):
        assert roll_up().kept == ["a"]
        assert read_tables(tmp_path / "out", DAY) == before


def test_patterns_that_mean_no_stream() -> None:
    assert find_idle(("a*", "b", "$c*", "x*"), ["a1", "b", "$cursor/a"]) == ["x*"]
    assert find_idle((), []) == []


def test_messages_that_no_run_has_seen_are_missing(tmp_path: Path, roll_up: Run) -> None:
    data = make_directory(tmp_path / "data", {"a": plain(10, DAY_START_US, 1_000_000)})
    roll_up()
    log = open_log(data, "a")
    append(log, plain(10, DAY_START_US + 2 * MINUTE_US, 1_000_000))
    log.close()
    trim(tmp_path / "data", "a", 15)
    roll_up()
    rows = read_tables(tmp_path / "out", DAY)
    assert [row["missing"] for key, row in sorted(rows.items()) if key[0] == "minute"] == [0, 5]
    assert [row["missing"] for key, row in rows.items() if key[0] == "day"] == [5]


def test_a_day_that_was_trimmed_whole_is_kept(tmp_path: Path, roll_up: Run) -> None:
    make_directory(tmp_path / "data", {"a": spread(100), "b": spread(100, DAY_START_US + 24 * HOUR_US)})
    roll_up()
    before = read_tables(tmp_path / "out", DAY)
    trim(tmp_path / "data", "a", 100)
    outcome = roll_up()
    assert (outcome.kept, outcome.messages, outcome.was_cleared) == (["a"], 0, False)
    assert read_tables(tmp_path / "out", DAY) == before


def test_a_day_whose_messages_never_were_is_cleared(tmp_path: Path, roll_up: Run) -> None:
    """The stream was made anew, and the caller of the rollup has allowed that this is taken from the tables."""
    data = make_directory(tmp_path / "data", {"a": spread(100)})
    roll_up()
    for path in stream_paths(data.stream_directory("a"), "a")[3:]:
        Path(path).unlink()
    add_stream(data, "a", [])
    outcome = run_with(no_engine, tmp_path, replace=True)
    assert (outcome.kept, outcome.others, outcome.was_cleared) == ([], [], True)
    assert read_tables(tmp_path / "out", DAY) == {}
    assert Store(tmp_path / "out").days() == []


def test_a_stream_that_cannot_be_read_keeps_what_there_was_and_is_told(tmp_path: Path, roll_up: Run) -> None:
    data = make_directory(tmp_path / "data", {"a": spread(50), "b": spread(50)})
    roll_up()
    before = read_tables(tmp_path / "out", DAY)
    flip(stream_paths(data.stream_directory("a"), "a").index_file, 8)
    outcome = roll_up()
    assert (outcome.failures, outcome.kept) == (1, ["a"])
    assert read_tables(tmp_path / "out", DAY) == before


def test_streams_that_are_not_asked_for_stay_as_they_were(tmp_path: Path, roll_up: Run) -> None:
    data = make_directory(tmp_path / "data", {"a": spread(20), "b": spread(20)})
    roll_up()
    for name in ("a", "b"):
        log = open_log(data, name)
        append(log, spread(5, DAY_START_US + 5 * HOUR_US))
        log.close()
    assert roll_up(streams=("b",)).kept == []
    rows = read_tables(tmp_path / "out", DAY)
    assert {key[1]: row["messages"] for key, row in rows.items() if key[0] == "day"} == {"a": 20, "b": 25}


def test_a_run_that_fails_leaves_the_day_as_it_was(
    tmp_path: Path, roll_up: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directory(tmp_path / "data", {"a": spread(50)})
    roll_up()
    before = read_tables(tmp_path / "out", DAY)

    def fails(*_arguments: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(tasks, "run_task", fails)  # the processes of the engine are forks of this one
    with pytest.raises(OSError, match="the disk is full"):
        roll_up()
    assert read_tables(tmp_path / "out", DAY) == before
    assert not left_over(tmp_path / "out")


def test_a_day_without_messages_needs_no_engine(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": spread(5, DAY_START_US - HOUR_US, 1)})
    outcome = run_with(no_engine, tmp_path)
    assert outcome.rows == {"minutes": 0, "hours": 0, "days": 0}
    assert outcome.streams == 1


def test_which_rows_are_kept() -> None:
    names = ("same", "trimmed", "bad", "anew")
    plan = DayPlan([], dict(zip(names, (5, 6, 0, 0), strict=True)), [], dict.fromkeys(names, "id"), "node", [], {})
    old = {Identity(name, "node", "id"): Before(5) for name in ("same", "trimmed", "bad", "gone", "unopened")}
    others = [Identity("anew", "node", "earlier id"), Identity("same", "other node", "id")]
    old |= dict.fromkeys(others, Before(5))
    job = Job({}, Path(), DAY)
    merging = [
        Kept(Identity("trimmed", "node", "id"), 6, Identity("trimmed", "node", "id")),
        Kept(Identity("bad", "node", "id"), KEPT_FROM_MAX, Identity("bad", "node", "id")),
    ]
    gone, unopened = Kept(Identity("gone", "node", "id")), Kept(Identity("unopened", "node", "id"))
    unreadable = {"bad", "unopened"}
    assert find_kept(plan, old, unreadable, job) == [*merging, gone, unopened, *map(Kept, others)]
    assert [is_another(each, plan) for each in (*merging, gone, unopened, *map(Kept, others))] == [False] * 4 + [
        True
    ] * 2
    assert find_kept(plan, old, unreadable, job._replace(replace=True)) == [*merging, unopened]
    assert find_kept(plan, {others[0]: Before(5)}, set(), job._replace(replace=True, streams=("x",))) == [
        Kept(others[0])
    ]


@pytest.mark.parametrize("was", [Identity("a", "node", "id"), Identity("a", "node", None)])
def test_rows_that_do_not_say_of_which_stream_they_are(was: Identity) -> None:
    plan = DayPlan([], {"a": 6}, [], {"a": "id"}, "node", [], {})
    assert find_kept(plan, {was: Before(5)}, set(), Job({}, Path(), DAY)) == [Kept(was, 6, Identity("a", "node", "id"))]


def test_more_notes_than_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "NOTES_MAX", 2)
    outcome = Outcome()
    for name in "abca":
        outcome.add(job.Note(name, "why", True))
    assert (len(outcome.notes), outcome.failures) == (2, 3)


def test_data_directories_stay_untouched(tmp_path: Path, roll_up: Run) -> None:
    make_directory(tmp_path / "data", {"a": spread(50)})
    folder = open_data_dir(tmp_path / "data").path
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    roll_up()
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
