"""Several days in one run: a range, and the nights that were missed."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from tailrace.cli import main
from tailrace.cli.ending import IN_USE, OK, REFUSED
from tailrace.spark.rollup.day_plan import day_start_us
from tailrace.spark.rollup.days import DAYS_MAX, is_done, list_days
from tailrace.spark.rollup.engine import Engine, Show
from tailrace.spark.rollup.job import Job
from tailrace.spark.rollup.nightly import Night, run_nights
from tailrace.spark.rollup.nodes import NodeRow, read_all_nodes, stage_node
from tailrace.spark.rollup.store import NODES, Store
from tailrace.spark.rollup.tasks import TaskResult, Work
from tailrace.spark.rollup.units import Task
from tests.spark.data import Sent, add_stream, make_directory
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US
from tests.spark.rollup.tables import left_over, read_tables

Captured = pytest.CaptureFixture[str]
ONE = timedelta(days=1)
DAYS = [DAY + place * ONE for place in range(-3, 1)]


def over_days(first: date = DAYS[0], count: int = len(DAYS)) -> list[Sent]:
    """Two messages in each hour, the first at the very beginning and the second at the very end of it."""
    hours = [day_start_us(first) + hour * HOUR_US for hour in range(24 * count)]
    return [Sent(at_us, b"x" * (at_us % 7)) for hour in hours for at_us in (hour, hour + HOUR_US - 1)]


def run(tmp_path: Path, *words: str) -> int:
    return main.run(["rollup", str(tmp_path / "data"), str(tmp_path / "out"), "--no-report", *words])


def check(tmp_path: Path, days: Sequence[date]) -> None:
    assert Store(tmp_path / "out").days() == list(days)
    for day in days:
        assert read_tables(tmp_path / "out", day) == reference.roll_up(tmp_path / "data", day_start_us(day))


def nodes(tmp_path: Path) -> dict[tuple[date, str], str]:
    return {(day, row.name): row.state for day, row in read_all_nodes(Store(tmp_path / "out").snapshot())}


def test_a_range_across_the_end_of_summer_time(tmp_path: Path) -> None:
    """Days are those of UTC wherever the machine is; this one's has 25 hours. Each has its tables and its report."""
    first, last = date(2026, 10, 31), date(2026, 11, 2)
    make_directory(tmp_path / "data", {"a": over_days(first, 4), "=b/%41": over_days(first, 2)})
    words = ["rollup", "data", "out", "--from", str(first), "--to", str(last), "--metrics", "m.prom"]
    done = subprocess.run(
        [sys.executable, "-c", "from tailrace.cli.main import main; main()", *words],
        cwd=tmp_path,
        env=os.environ | {"TZ": "America/New_York"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (OK, "")
    days = list_days(first, last)
    check(tmp_path, days)
    assert [line[:10] for line in done.stdout.splitlines()[::2]] == [str(day) for day in days]
    assert sorted(path.stem for path in (tmp_path / "out" / "reports").iterdir()) == [str(day) for day in days]
    assert not left_over(tmp_path / "out")
    assert "tailrace_rollup_messages 240.0\n" in (tmp_path / "m.prom").read_text()


def test_every_missed_night_is_made_up_for(tmp_path: Path, capsys: Captured) -> None:
    make_directory(tmp_path / "data", {"a": over_days()})
    words = ("--catch-up", "--day")
    assert run(tmp_path, *words, str(DAYS[0])) == OK
    check(tmp_path, DAYS[:1])  # nothing was missed before the first night
    capsys.readouterr()
    assert run(tmp_path, *words, str(DAYS[-1])) == OK
    check(tmp_path, DAYS)
    assert [line[:10] for line in capsys.readouterr().out.splitlines()] == [str(day) for day in DAYS[1:]]
    assert run(tmp_path, *words, str(DAYS[-1])) == OK
    assert [line[:10] for line in capsys.readouterr().out.splitlines()] == [str(DAYS[-1])], "only the day itself again"


def test_a_day_that_was_not_over_or_only_for_some_streams_was_missed(tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {"a": over_days(count=1), "b": []})
    assert run(tmp_path, "--day", str(DAYS[0])) == OK
    add_stream(data, "a", over_days(DAYS[1], 2))
    assert run(tmp_path, "--day", str(DAYS[1]), "--stream", "a") == OK
    store = Store(tmp_path / "out")
    assert nodes(tmp_path)[DAYS[1], data.node_id] == "selected"
    ((_, row), _) = read_all_nodes(store.snapshot())
    with store.locked():
        early = store.begin()
        at_noon = datetime(DAYS[0].year, DAYS[0].month, DAYS[0].day, 12, tzinfo=UTC)
        stage_node(early, store.partition(NODES, DAYS[0]), row._replace(rolled_up_at=at_noon))
        store.commit(early, DAYS[0], (NODES,))
    assert run(tmp_path, "--catch-up", "--day", str(DAYS[2])) == OK
    check(tmp_path, DAYS[:3])
    assert set(nodes(tmp_path).values()) == {"whole"}
    assert run(tmp_path, "--day", str(DAYS[2]), "--stream", "a") == OK
    assert set(nodes(tmp_path).values()) == {"whole"}, "a run for some streams takes nothing back"


@pytest.mark.thorough
def test_a_node_that_lacks_a_day_gets_it_later(tmp_path: Path, capsys: Captured) -> None:
    make_directory(tmp_path / "north", {"n": over_days()})
    make_directory(tmp_path / "south", {"s": over_days()})
    words = [f"north={tmp_path}/north", f"south={tmp_path}/south", str(tmp_path / "out"), "--no-report", "--catch-up"]
    assert main.run(["rollup", *words, "--day", str(DAYS[0])]) == OK
    os.rename(tmp_path / "south", tmp_path / "away")
    assert main.run(["rollup", *words, "--day", str(DAYS[1])]) == REFUSED
    assert nodes(tmp_path)[DAYS[1], "south"] == "missing"
    os.rename(tmp_path / "away", tmp_path / "south")
    capsys.readouterr()
    assert main.run(["rollup", *words, "--day", str(DAYS[3])]) == OK
    said = capsys.readouterr().out
    assert [line.split()[1] for line in said.splitlines()] == ["48", "96", "96"], "north's second day is not read again"
    assert set(nodes(tmp_path).values()) == {"whole"}
    for day in DAYS:
        expected = [reference.roll_up(tmp_path / each, day_start_us(day)) for each in ("north", "south")]
        assert read_tables(tmp_path / "out", day) == expected[0] | expected[1]


def test_a_damaged_table_of_one_day_does_not_stop_the_others(tmp_path: Path, capsys: Captured) -> None:
    make_directory(tmp_path / "data", {"a": over_days()})
    assert run(tmp_path, "--day", str(DAYS[1])) == OK
    (file,) = Store(tmp_path / "out").partition("days", DAYS[1]).glob("*/*")
    file.write_bytes(b"half written")
    words = ("--from", str(DAYS[0]), "--to", str(DAYS[2]), "--metrics", str(tmp_path / "m.prom"))
    assert run(tmp_path, *words) == REFUSED
    said = capsys.readouterr().err
    assert said.startswith(f"tailrace: {DAYS[1]}: {tmp_path}/out: ")
    assert str(file.name) in said
    assert "tailrace_rollup_last_run_success 0.0\n" in (tmp_path / "m.prom").read_text()
    for day in (DAYS[0], DAYS[2]):
        assert read_tables(tmp_path / "out", day) == reference.roll_up(tmp_path / "data", day_start_us(day))


def test_the_tables_are_locked_between_the_days(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {})
    second = []
    days = [Night(Job({"path": str(tmp_path / "data")}, tmp_path / "out", day), with_report=False) for day in DAYS]
    run_nights(days, no_engine, show, lambda _done: second.append(run(tmp_path, "--day", str(DAY))))
    assert second == [IN_USE] * len(DAYS)


class Full:
    def run(self, work: Work, tasks: Sequence[Task], show: Show) -> list[TaskResult]:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_stops_all(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": over_days()})
    nights = [Night(Job({"path": str(tmp_path / "data")}, tmp_path / "out", day)) for day in DAYS]
    told: list[object] = []
    with pytest.raises(OSError, match="No space left"):
        run_nights(nights, lambda _messages: Full(), show, told.append)
    assert not told
    assert not left_over(tmp_path / "out")


def no_engine(_messages: int) -> Engine:
    raise AssertionError("not needed")


def show(_phase: str, _done: int, _total: int) -> None:
    pass


def test_a_day_is_done_when_it_was_rolled_up_after_its_end() -> None:
    end = datetime.fromtimestamp(DAY_START_US / 1e6, UTC) + ONE
    row = NodeRow("n", "id", "whole", rolled_up_at=end)
    assert is_done(DAY, row)
    assert not is_done(DAY, row._replace(rolled_up_at=end - timedelta(microseconds=1)))
    assert is_done(DAY, row._replace(state="partly"))
    assert not is_done(DAY, row._replace(state="missing"))
    assert not is_done(DAY, row._replace(state="selected"))
    assert is_done(DAY, row._replace(state="selected"), ("a*",))


def test_days_are_bounded() -> None:
    assert list_days(DAY, DAY) == [DAY]
    assert list_days(DAY + ONE, DAY) == []
    assert len(list_days(date(1, 1, 1), DAY)) == DAYS_MAX
    assert list_days(date(1, 1, 1), DAY)[-1] == DAY
