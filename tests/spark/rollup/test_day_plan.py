"""The plan of a day."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from tailrace.shard.stream_files import stream_paths
from tailrace.spark.rollup.day_plan import day_of, day_start_us, plan_day
from tailrace.spark.rollup.kernel import DAY_US
from tailrace.spark.source import SourceOptions, open_source
from tests.shard.helpers import flip
from tests.spark.data import make_directory, plain, trim
from tests.spark.rollup.directories import DAY, DAY_START_US


def test_days_begin_at_midnight_utc() -> None:
    assert day_start_us(date(1970, 1, 2)) == DAY_US
    assert day_of(day_start_us(DAY)) == DAY
    assert day_of(day_start_us(DAY) - 1) == DAY - timedelta(days=1)


def test_what_a_plan_knows(tmp_path: Path) -> None:
    data = make_directory(
        tmp_path / "data",
        {"a": plain(10, DAY_START_US - 5_000), "b": plain(3, DAY_START_US - DAY_US), "bad": plain(1), "$own": plain(1)},
    )
    trim(tmp_path / "data", "a", 2)
    flip(stream_paths(data.stream_directory("bad"), "bad").index_file, 8)
    seen: list[tuple[int, int]] = []
    plan = plan_day(open_source(SourceOptions(str(tmp_path / "data"))), DAY, (), lambda *each: seen.append(each))
    ((unit,),) = plan.tasks
    assert (unit.slice.stream, unit.slice.first_seq, unit.slice.end_seq, plan.messages) == ("a", 5, 10, 5)
    assert plan.first_seqs == {"a": 2, "b": 0}
    assert [bad.stream for bad in plan.bad] == ["bad"]
    assert (plan.node, set(plan.stream_ids)) == (data.node_id, {"a", "b"})
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_message_that_is_read_twice_counts_once(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": plain(100, DAY_START_US, 90_000_000), "b": plain(100, DAY_START_US)})
    for whole_rows_max in (7, 30, 1_000):
        plan = plan_day(open_source(SourceOptions(str(tmp_path / "data"))), DAY, whole_rows_max=whole_rows_max)
        assert plan.messages == 200


def test_only_the_streams_that_are_wanted(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {name: plain(3, DAY_START_US) for name in ("log.a", "log.b", "other")})
    plan = plan_day(open_source(SourceOptions(str(tmp_path / "data"))), DAY, ("log.*",))
    assert sorted(plan.first_seqs) == ["log.a", "log.b"]
