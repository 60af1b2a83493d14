"""The two engines over the same hard nights: the same files, byte for byte."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tailrace.shard.directory import DataDirectory
from tailrace.spark.rollup import job
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.engine import ChooseEngine
from tailrace.spark.rollup.job import Job, Outcome, run_job
from tailrace.spark.rollup.store import TABLES, Store
from tailrace.spark.rollup.table import FILE_SCHEMA
from tests.spark.data import Sent, make_directory, plain, trim
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US, MINUTE_US
from tests.spark.rollup.test_bad_streams import cut_index, damage_entry, damage_frame, set_tail_aside, spoil

BAD = {"entry": damage_entry, "frame": damage_frame, "torn": cut_index, "aside": set_tail_aside}


def make_night(folder: Path) -> DataDirectory:
    """Midnights, trims, epochs, torn tails, damage, a stream that is cut into several units, and many small ones."""
    streams = {name: plain(180, DAY_START_US, 1_000_000) for name in BAD}
    streams["midnights"] = plain(2_000, DAY_START_US - 3 * HOUR_US, MINUTE_US)
    streams["large"] = [Sent(DAY_START_US + i * 20_000_000, bytes(i * 37 % 101), epoch=1 + i // 50) for i in range(900)]
    streams |= {f"s{i}": plain(3, DAY_START_US + i * MINUTE_US, 40_000_000) for i in range(60)}
    streams |= {"none": [], "trimmed": plain(300, DAY_START_US, MINUTE_US), "ключ/é": plain(9, DAY_START_US, 1)}
    data = make_directory(folder, streams)
    trim(data.path, "trimmed", 20)
    spoil(data, **BAD)
    return data


def files(out: Path) -> dict[tuple[str, str], bytes]:
    """The files of the day's tables."""
    store = Store(out)
    folders = {table: store.partition(table, DAY) for table in TABLES.values()}
    return {
        (table, str(path.relative_to(folder))): path.read_bytes()
        for table, folder in folders.items()
        for path in folder.glob("*/*")
    }


def test_both_write_the_same_bytes(
    tmp_path: Path, spark_engine: ChooseEngine, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rows to keep and with none, with several tasks, by the index and by the frames."""
    monkeypatch.setattr(job, "plan_day", partial(plan_day, task_rows=100_000, whole_rows_max=600))
    data = make_night(tmp_path / "data")
    done: list[Outcome] = []

    def run(name: str, engine: ChooseEngine, verify: bool) -> dict[tuple[str, str], bytes]:
        wanted = Job({"path": str(data.path)}, tmp_path / name, DAY, verify=verify)
        done.append(run_job(wanted, engine, lambda _phase, _done, _total: None))
        return files(tmp_path / name)

    first = run("local", local_engine, False)
    assert first == run("spark", spark_engine, False)
    assert len({name for table, name in first if table == "minutes"}) > 1, "there are several parts"
    for name, seq in (("trimmed", 40), ("midnights", 500), ("s7", 3)):
        trim(data.path, name, seq)
    assert run("local", local_engine, False) == run("spark", spark_engine, False)
    assert run("verified", local_engine, True) == run("verified by Spark", spark_engine, True)
    assert [done[0], done[2], done[4]] == [done[1], done[3], done[5]]
    assert "frame" in done[4].failed - done[2].failed
    assert (done[0].kept, done[2].kept) == ([], ["entry", "midnights", "s7", "trimmed"])
    for path in Store(tmp_path / "local").partition("minutes", DAY).glob("*/*"):
        assert pq.read_schema(path) == FILE_SCHEMA
