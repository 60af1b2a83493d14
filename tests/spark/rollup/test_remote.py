"""Tables in an object store: S3, as a server on the loopback speaks it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tailrace.cli import main
from tailrace.cli.ending import OK, REFUSED, USAGE
from tailrace.spark.file_systems import Place, open_place
from tailrace.spark.rollup import remote
from tailrace.spark.rollup.nodes import NodeRow, stage_node
from tailrace.spark.rollup.remote import RemoteStore, open_remote, read_state
from tailrace.spark.rollup.store import NODES, STATE_KEPT_S, STATES_KEPT_MAX, TABLES, StoreInUse
from tests.spark.data import make_directory, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US
from tests.spark.rollup.test_job import spread

Captured = pytest.CaptureFixture[str]


def files(url: str) -> list[str]:
    place = open_place(url)
    found = place.system.get_file_info(fs.FileSelector(place.path, recursive=True, allow_not_found=True))
    return sorted(each.path.removeprefix(f"{place.path}/") for each in found if each.is_file)


def read_tables(url: str) -> dict[reference.Key, reference.Row]:
    """All rows of a day, in one state of the tables."""
    place, state = open_place(url), read_state(url)
    rows: dict[reference.Key, reference.Row] = {}
    for level, table in TABLES.items():
        for file in state.tables.get(table, {}).get(str(DAY), []):
            node = file.split("/")[3].removeprefix("node=")
            for row in pq.read_table(f"{place.path}/{file}", filesystem=place.system, partitioning=None).to_pylist():
                row["node"] = node
                rows[level, row.pop("stream"), row.pop("start")] = row
    return rows


def test_nothing_is_written_into_a_copy_of_a_data_directory(tmp_path: Path, url: str, capsys: Captured) -> None:
    make_directory(tmp_path / "data", {"a": spread(3)})
    open_place(url).write("node.json", (tmp_path / "data" / "node.json").read_bytes())
    assert main.run(["rollup", str(tmp_path / "data"), url, "--day", str(DAY)]) == USAGE
    assert "tailrace is the data directory of a broker; give a folder" in capsys.readouterr().err
    assert files(url) == ["node.json"]


def test_the_command_writes_to_a_bucket_as_to_a_folder(tmp_path: Path, url: str, capsys: Captured) -> None:
    data = str(tmp_path / "data")
    make_directory(tmp_path / "data", {f"s{i}": spread(100) for i in range(3)})
    for _ in range(2):  # twice is as once
        assert main.run(["rollup", data, url, "--day", str(DAY)]) == OK
    shown = url.partition("?")[0]
    assert f"report: {shown}/reports/{DAY}.html" in capsys.readouterr().out
    expected = reference.roll_up(tmp_path / "data", DAY_START_US)
    names = next(iter(expected.values())).keys()
    assert {key: {name: row[name] for name in names} for key, row in read_tables(url).items()} == expected
    trim(tmp_path / "data", "s1", 60)  # from here on only the tables know
    last = ["--catch-up", "--day", str(DAY + timedelta(days=1))]
    assert main.run(["rollup", data, url, *last]) == OK
    assert main.run(["rollup", data, url, "--day", str(DAY)]) == OK
    assert "whose rows are kept: s1" in capsys.readouterr().out
    assert {key: {name: row[name] for name in names} for key, row in read_tables(url).items()} == expected
    assert not [name for name in files(url) if "_run" in name or "_new" in name]
    assert set(read_state(url).tables[NODES]) == {str(DAY), str(DAY + timedelta(days=1))}


def commit(store: RemoteStore, text: str, day: date = DAY) -> None:
    with store.locked(), store.group(), store.run() as run:
        store.prepare(day)
        stage_node(run, store.partition(NODES, day), NodeRow(text, text, "whole"))
        store.commit(run, day, (NODES,))


def names_in(url: str, day: date = DAY) -> list[str]:
    place, names = open_place(url), list[str]()
    for file in read_state(url).tables.get(NODES, {}).get(str(day), []):
        names += pq.read_table(f"{place.path}/{file}", filesystem=place.system, partitioning=None)["name"].to_pylist()
    return names


class Killed(BaseException):
    """The process ends here."""


def test_killed_at_any_write_readers_see_the_former_state_or_the_new_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_remote(url) as store:
        commit(store, "a")
    seen = []
    for survived in range(10):
        left = iter(range(survived))

        def dying(step: Any, left: Iterator[int] = left) -> Any:
            def run(*arguments: Any) -> Any:
                if next(left, None) is None:
                    raise Killed
                return step(*arguments)

            return run

        before = names_in(url)
        is_done = False
        with monkeypatch.context() as patch, open_remote(url) as store:
            patch.setattr(fs, "copy_files", dying(fs.copy_files))
            patch.setattr(Place, "write", dying(Place.write))
            patch.setattr(remote, "_remove_former", dying(remote._remove_former))
            try:
                commit(store, f"b{survived}")
                is_done = True
            except Killed:
                pass
        assert names_in(url) in (before, sorted([*before, f"b{survived}"]))
        seen.append(names_in(url) != before)
        if is_done:
            break
    assert is_done
    assert {False, True} == set(seen)


def test_of_two_runs_at_a_time_the_later_is_refused(url: str) -> None:
    with open_remote(url) as one, open_remote(url) as other:
        commit(one, "one")
        with pytest.raises(StoreInUse, match="another rollup has written to s3://"):
            commit(other, "other")
    assert names_in(url) == ["one"]


@pytest.mark.thorough
def test_former_states_and_their_files_go_after_a_while(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_remote(url) as store:
        for number in range(3):
            commit(store, f"n{number}")
        commit(store, "x", DAY + timedelta(days=1))
        assert len([name for name in files(url) if name.startswith("states/")]) == 4
        monkeypatch.setattr(time, "time", lambda left=time.time: left() + STATE_KEPT_S + 10)
        commit(store, "y", DAY + timedelta(days=1))
    assert STATES_KEPT_MAX > 4, "it was the time"
    found = files(url)
    assert [name for name in found if name.startswith("states/")] == ["states/00000005.json"]
    assert sorted(name for name in found if name.startswith("files/")) == sorted(read_state(url).files(NODES))
    assert names_in(url) == ["n0", "n1", "n2"]


def test_a_bucket_that_is_missing(tmp_path: Path, server: str, capsys: Captured) -> None:
    make_directory(tmp_path / "data", {"a": spread(3)})
    missing = f"s3://no-such-bucket/rollups?{server}"
    assert main.run(["rollup", str(tmp_path / "data"), missing, "--day", str(DAY)]) == REFUSED
    assert "no-such-bucket" in capsys.readouterr().err


def test_a_file_url_is_a_store_without_links(tmp_path: Path) -> None:
    """As HDFS is: files are put under another name, and moved."""
    url = f"file://{tmp_path}/out"
    with open_remote(url) as store:
        commit(store, "a")
        commit(store, "b")
    assert names_in(url) == ["a", "b"]
    assert not [name for name in files(url) if "_new" in name]
