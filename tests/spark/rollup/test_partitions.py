"""The tables have a folder for each node: runs for one node touch no other's, and any reader has `node` as a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import main, rollup
from tailrace.cli.ending import OK, REFUSED
from tailrace.shard.directory import DataDirectory
from tailrace.spark.rollup.engine import ChooseEngine
from tailrace.spark.rollup.remote import read_state
from tailrace.spark.rollup.store import TABLES, Store, node_folder
from tests.spark.data import make_directory, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, MINUTE_US
from tests.spark.rollup.tables import read_rows, state_of
from tests.spark.rollup.test_job import spread

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def fleet(tmp_path: Path) -> dict[str, DataDirectory]:
    """Streams of their own, and one that only shares its name."""
    return {
        "north": make_directory(tmp_path / "north", {"n": spread(300), "both": spread(60)}),
        "south": make_directory(tmp_path / "south", {"s": spread(40), "both": spread(50, step_us=3 * MINUTE_US)}),
    }


def run(out: Path | str, *words: str) -> int:
    return main.run(["rollup", *words, str(out), "--day", str(DAY), "--no-report"])


def files(out: Path) -> dict[str, bytes]:
    """The files of the tables with a folder for each node, by their paths below the state."""
    state = state_of(out)
    found = (path for table in TABLES.values() for path in (state / table).rglob("*.parquet"))
    return {str(path.relative_to(state)): path.read_bytes() for path in found}


def inodes(out: Path, node: str) -> dict[str, int]:
    state = state_of(out)
    return {str(path.relative_to(state)): path.stat().st_ino for path in state.glob(f"*/*/{node_folder(node)}/*")}


@pytest.mark.few(1)
def test_a_node_that_is_completed_later_touches_only_its_own_folders(
    tmp_path: Path, fleet: dict[str, DataDirectory], engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the tables are, byte for byte, those of a run that had both."""
    monkeypatch.setattr(rollup, "make_engine", lambda *_: engine(0))
    north, south = (f"{name}={each.path}" for name, each in fleet.items())
    assert run(tmp_path / "both", north, south) == OK
    (tmp_path / "south").rename(tmp_path / "away")
    assert run(tmp_path / "later", north, south) == REFUSED
    own = inodes(tmp_path / "later", fleet["north"].node_id)
    assert len(own) == 3 == len(files(tmp_path / "later"))
    assert [row["state"] for row in read_rows(state_of(tmp_path / "later"), "nodes", DAY)] == ["whole", "missing"]
    (tmp_path / "away").rename(tmp_path / "south")
    assert run(tmp_path / "later", south) == OK
    assert inodes(tmp_path / "later", fleet["north"].node_id) == own
    assert [row["state"] for row in read_rows(state_of(tmp_path / "later"), "nodes", DAY)] == ["whole", "whole"]
    assert files(tmp_path / "later") == files(tmp_path / "both")
    trim(fleet["south"].path, "s", 20)  # of which rows are kept: this node's are merged, and nobody else's are read
    assert run(tmp_path / "later", south) == OK
    assert inodes(tmp_path / "later", fleet["north"].node_id) == own
    sums = {
        (row["node"], row["stream"]): row["messages"] for row in read_rows(state_of(tmp_path / "later"), "days", DAY)
    }
    assert sums[fleet["south"].node_id, "s"] == 40
    for each in fleet.values():
        for (level, stream, _), row in reference.roll_up(each.path, DAY_START_US).items():
            if level == "day" and stream != "s":
                assert sums[each.node_id, stream] == row["messages"]


def test_replace_removes_the_folders_of_other_nodes(tmp_path: Path, fleet: dict[str, DataDirectory]) -> None:
    north, south = (f"{name}={each.path}" for name, each in fleet.items())
    assert run(tmp_path / "out", north, south) == OK
    assert run(tmp_path / "out", north, "--replace", "--stream", "both") == OK
    store = Store(tmp_path / "out")
    rows = read_rows(state_of(store.path), "days", DAY)
    ids = {name: each.node_id for name, each in fleet.items()}
    assert {(row["node"], row["stream"]) for row in rows} == {
        *((ids["north"], stream) for stream in ("both", "n")),
        (ids["south"], "s"),
    }
    assert run(tmp_path / "out", north, "--replace") == OK
    for table in TABLES.values():
        assert list(store.snapshot().by_node(table, DAY)) == [ids["north"]]


@pytest.mark.thorough
def test_readers_have_the_node_and_the_day_as_columns(
    tmp_path: Path, fleet: dict[str, DataDirectory], session: Any
) -> None:
    """Spark reads only the folders of the node that is asked for; so does Polars. Weeks have the column, too."""
    polars = pytest.importorskip("polars")
    assert run(tmp_path / "out", *(f"{name}={each.path}" for name, each in fleet.items())) == OK
    state = state_of(tmp_path / "out")
    wanted = {(row["node"], row["stream"], row["messages"]) for row in read_rows(state, "days", DAY)}
    assert len(wanted) == 4
    table = session.read.parquet(f"{state}/days")
    assert table.schema["node"].dataType.simpleString() == "string"
    assert {(row.node, row.stream, row.messages) for row in table.where(f"day = '{DAY}'").collect()} == wanted
    north = table.where(f"node = '{fleet['north'].node_id}'")
    assert {row.stream for row in north.collect()} == {"both", "n"}
    assert "PartitionFilters: [isnotnull(node" in north._jdf.queryExecution().toString()
    frame = polars.read_parquet(f"{state}/days/")
    assert set(frame.select("node", "stream", "messages").rows()) == wanted
    assert main.run(["rollup", str(tmp_path / "out"), "--merge", "month", "--day", str(DAY)]) == OK
    months = polars.read_parquet(f"{tmp_path}/out/months/")
    assert set(months.select("node", "stream", "messages").rows()) == wanted


@pytest.mark.thorough
def test_an_id_that_looks_like_a_number_is_a_text(tmp_path: Path, session: Any) -> None:
    """As directories that others have made may have."""
    data = make_directory(tmp_path / "data", {"a": spread(5)})
    file = data.path / "node.json"
    text = file.read_text()
    assert data.node_id in text
    file.write_text(text.replace(data.node_id, "0012345678901234"))
    assert run(tmp_path / "out", str(data.path)) == OK
    (row,) = read_rows(state_of(tmp_path / "out"), "days", DAY)
    assert row["node"] == "0012345678901234"
    session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", False)
    try:
        (found,) = session.read.parquet(f"{state_of(tmp_path / 'out')}/days").collect()
    finally:
        session.conf.unset("spark.sql.sources.partitionColumnTypeInference.enabled")
    assert found.node == "0012345678901234"
    assert main.run(["rollup", str(tmp_path / "out"), "--merge", "week", "--day", str(DAY)]) == OK


@pytest.mark.thorough
def test_in_a_bucket_files_of_other_nodes_are_not_sent_again(
    url: str, fleet: dict[str, DataDirectory], tmp_path: Path
) -> None:
    north, south = (f"{name}={each.path}" for name, each in fleet.items())
    assert run(url, north) == OK
    before = read_state(url)
    assert run(url, south) == OK
    after = read_state(url)
    for table in TABLES.values():
        (own,) = before.tables[table][str(DAY)]
        both = after.tables[table][str(DAY)]
        assert own in both
        nodes = [name.split("/")[3] for name in both]
        assert nodes == sorted(node_folder(each.node_id) for each in fleet.values())


def test_tables_of_an_earlier_version_are_refused_by_the_command(
    tmp_path: Path, fleet: dict[str, DataDirectory], capsys: Captured
) -> None:
    folder = tmp_path / "out" / "days" / f"day={DAY}"
    folder.mkdir(parents=True)
    (folder / "part.parquet").write_bytes(b"")
    for words in ([str(fleet["north"].path)], []):
        more = ["--merge", "week"] if not words else ["--no-report"]
        assert main.run(["rollup", *words, str(tmp_path / "out"), "--day", str(DAY), *more]) == REFUSED
        assert "tables of an earlier version, without a folder for each node" in capsys.readouterr().err
