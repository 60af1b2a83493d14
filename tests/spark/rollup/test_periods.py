"""Weeks and months out of days, against all of their messages."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.spark.rollup import periods
from tailrace.spark.rollup.day_plan import day_start_us
from tailrace.spark.rollup.job import Job, run_job
from tailrace.spark.rollup.local import LocalEngine
from tailrace.spark.rollup.periods import SCHEMA, find_period, merge_days, write_period
from tailrace.spark.rollup.sketch import ACCURACY
from tests.spark.data import DAY_US, Sent, make_directory
from tests.spark.rollup import reference
from tests.spark.rollup.data_files import read_directory

MONDAY = date(2026, 9, 28)
COUNT = 400


def messages(seed: int) -> list[Sent]:
    """Ten days from Monday on, log-normal sizes, Poisson gaps."""
    random = np.random.default_rng(seed)
    times = np.sort(random.integers(0, 10 * DAY_US, COUNT)) + day_start_us(MONDAY)
    sizes = random.lognormal(4, 1, COUNT).astype(int)
    return [Sent(time, bytes(size)) for time, size in zip(times.tolist(), sizes.tolist(), strict=True)]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("periods")
    data = make_directory(folder / "data", {"a": messages(1), "b": messages(2)})
    for place in range(10):
        day = MONDAY + timedelta(days=place)
        job = Job({"path": str(data.path)}, folder / "out", day)
        run_job(job, lambda _messages: LocalEngine(1), lambda _phase, _done, _total: None)
    return folder / "out"


def expected(out: Path, stream: str, first: date, end: date) -> reference.Row:
    (messages,) = (each.messages for each in read_directory(out.parent / "data").streams if each.name == stream)
    times = messages.timestamp_us
    which = (times >= day_start_us(first)) & (times < day_start_us(end))
    return reference.row_of(reference.taken(messages, which), reference.gaps_of(messages)[which], "day")


@pytest.mark.few(1)
@pytest.mark.parametrize(("period", "part_rows"), [("week", 4_000), ("month", 1)])
def test_as_if_it_were_one_day(
    out: Path, period: periods.Period, part_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periods, "PART_ROWS", part_rows)
    first, end = find_period(MONDAY + timedelta(days=8), period)
    path, count = write_period(out, MONDAY + timedelta(days=8), period)
    assert (count, path.parent.name) == (2, f"{period}={first}")
    for row in pq.ParquetFile(path).read().to_pylist():
        wanted = expected(out, row["stream"], first, end)
        assert row["start"].date() == first
        assert row["days"] == {"week": 3, "month": 7}[period]
        for name, value in wanted.items():
            accuracy = ACCURACY if "_p" in name else 1e-12
            assert row[name] == (value if "sketch" in name else pytest.approx(value, rel=accuracy)), name


def test_a_day_without_sketches_leaves_the_percentiles_out(out: Path, tmp_path: Path) -> None:
    """As those of earlier versions are."""
    for day in (MONDAY, MONDAY + timedelta(days=1)):
        (node,) = (out / "days" / f"day={day}").iterdir()
        folder = tmp_path / "days" / f"day={day}" / node.name
        folder.mkdir(parents=True)
        table = pa.concat_tables(pq.ParquetFile(each).read() for each in node.iterdir())
        if day == MONDAY:
            table = table.drop_columns(["size_sketch", "gap_sketch"])
        pq.write_table(table, folder / "part.parquet")
    (found,) = merge_days(tmp_path, MONDAY, "week")
    assert found.schema == SCHEMA
    assert found["days"].to_pylist() == [2, 2]
    for name in ("size_p50", "gap_p99_us", "size_sketch", "gap_sketch"):
        assert found[name].null_count == 2
    assert found["bytes"].null_count == 0


def test_no_days(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no day of the month of 2026-09-01"):
        write_period(tmp_path, MONDAY, "month")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("day", "period", "first", "end"),
    [
        ("2026-11-22", "week", "2026-11-16", "2026-11-23"),
        ("2026-11-16", "week", "2026-11-16", "2026-11-23"),
        ("2026-12-31", "month", "2026-12-01", "2027-01-01"),
        ("2028-02-29", "month", "2028-02-01", "2028-03-01"),
    ],
)
def test_their_days(day: str, period: periods.Period, first: str, end: str) -> None:
    assert find_period(date.fromisoformat(day), period) == (date.fromisoformat(first), date.fromisoformat(end))
