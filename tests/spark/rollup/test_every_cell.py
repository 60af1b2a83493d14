"""Hard nights, of which every cell of every table is computed once more from the files, by both engines."""

from __future__ import annotations

import ast
import json
import math
import shutil
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.cli import main, rollup
from tailrace.cli.ending import OK
from tailrace.shard.directory import DataDirectory
from tailrace.shard.stream_files import stream_paths
from tailrace.spark.rollup import job
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.engine import ChooseEngine
from tailrace.spark.rollup.job import Job, run_job
from tailrace.spark.rollup.local import LocalEngine
from tests.shard.helpers import flip
from tests.spark.data import make_directory, trim
from tests.spark.rollup import data_files, reference, tables
from tests.spark.rollup.data_files import Stream, read_directory
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US
from tests.spark.rollup.hard_night import CONTRADICTORY, DAMAGED, UNREADABLE, copy_stream, make_hard_night, spread
from tests.spark.rollup.tables import TABLES, differences, left_over, read_rows, read_tables, state_of

pytestmark = pytest.mark.slow

Rows = dict[reference.Key, reference.Row]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> DataDirectory:
    return make_hard_night(tmp_path_factory.mktemp("night") / "data")


@pytest.fixture(autouse=True)
def several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "plan_day", partial(plan_day, task_rows=100_000, whole_rows_max=600))


def show(_phase: str, _done: int, _total: int) -> None:
    pass


@pytest.mark.few(2)
@pytest.mark.parametrize("verify", [False, True], ids=["index", "frames"])
def test_of_a_hard_night(night: DataDirectory, tmp_path: Path, engine: ChooseEngine, verify: bool) -> None:
    begun = datetime.now(UTC)
    out = tmp_path / "out"
    outcome = run_job(Job({"path": str(night.path)}, out, DAY, verify=verify), engine, show)
    expected = reference.roll_up(night.path, DAY_START_US, verify=verify, unreadable=UNREADABLE)
    assert not differences(read_tables(out, DAY), expected)
    assert outcome.failed == UNREADABLE | (DAMAGED if verify else CONTRADICTORY)
    (node,) = read_rows(state_of(out), "nodes", DAY)
    assert begun <= node.pop("rolled_up_at") <= datetime.now(UTC)
    own = [each for each in read_directory(night.path).streams if not each.name.startswith("$")]
    assert json.loads(node.pop("terms")) == terms_of(own)
    messages = sum(row["messages"] + row["damaged"] for (level, *_), row in expected.items() if level == "day")
    identity = {"name": night.node_id, "node": night.node_id, "state": "partly", "cause": None}
    assert node == {**identity, "streams": len(own) + len(UNREADABLE), "messages": messages}
    assert not left_over(out)


def terms_of(streams: list[Stream]) -> dict[str, list[list[Any]]]:
    """The terms of streams with several: each epoch, its first seq, and the master, which these streams do not know."""
    found = {}
    for stream in streams:
        epochs, places = np.unique(stream.messages.epoch, return_index=True)
        if len(epochs) > 1:
            seqs = stream.messages.seq[places].tolist()
            found[stream.name] = [[epoch, seq, ""] for epoch, seq in zip(epochs.tolist(), seqs, strict=True)]
    return found


@pytest.mark.few(1)
def test_of_two_nodes_that_hold_the_same_streams(
    tmp_path: Path, engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command. A slave has messages of its master, each counts once, under the larger of the ids."""
    north = make_directory(tmp_path / "north", {"both": spread(300), "part": spread(300), "n": spread(30)})
    south = make_directory(tmp_path / "south", {"s": spread(30), "n": spread(9, DAY_START_US + HOUR_US)})
    for name in ("both", "part"):
        copy_stream(north, south, name)
    trim(south.path, "part", 100)
    monkeypatch.setattr(rollup, "make_engine", lambda *_: engine(0))
    words = [f"north={north.path}", f"south={south.path}", str(tmp_path / "out"), "--day", str(DAY), "--no-report"]
    assert main.run(["rollup", *words]) == OK
    first, second = (read_directory(each.path) for each in (north, south))
    holder = max(first, second, key=lambda each: each.node_id)
    streams = {each.name: {"node": holder.node_id, "stream_id": each.stream_id} for each in holder.streams}
    rows: dict[tuple[str, reference.Key], reference.Row] = {}
    for each in (first, second):
        for key, row in reference.roll_up(north.path if each is first else south.path, DAY_START_US).items():
            # The master has all of these; of a minute that both have, the row with more messages stays.
            if key[1] in ("both", "part"):
                rows.setdefault((holder.node_id, key), row | streams[key[1]])
            else:
                rows[each.node_id, key] = row
    found = {}
    for level, table in TABLES.items():
        for row in read_rows(state_of(tmp_path / "out"), table, DAY):
            found[row["node"], (level, row.pop("stream"), row.pop("start"))] = row
    assert not differences(found, rows)
    nodes = read_rows(state_of(tmp_path / "out"), "nodes", DAY)
    assert [(row["name"], row["node"], row["state"], row["cause"], row["streams"]) for row in nodes] == [
        ("north", first.node_id, "whole", None, 3),
        ("south", second.node_id, "whole", None, 4),
    ]


@pytest.mark.few(1)
def test_of_messages_that_were_trimmed_since(tmp_path: Path, engine: ChooseEngine) -> None:
    """In a minute, at its end, all, and none."""
    trims = {"minute": 100, "edge": 180, "all": 400, "none": 0}
    data = make_directory(tmp_path / "data", {name: spread(400, step_us=20_000_000) for name in trims})
    wanted = Job({"path": str(data.path)}, tmp_path / "out", DAY)
    expected = reference.roll_up(data.path, DAY_START_US)
    for kept in ([], ["all", "edge", "minute"]):
        assert run_job(wanted, engine, show).kept == kept
        assert not differences(read_tables(tmp_path / "out", DAY), expected)
        for name, seq in trims.items():
            trim(data.path, name, seq)


# --- the check itself -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """The tables made, and the expected rows."""
    folder = tmp_path_factory.mktemp("made")
    data = make_directory(folder / "data", {"a": spread(100), "b": spread(9)})
    run_job(Job({"path": str(data.path)}, folder / "out", DAY), lambda _messages: LocalEngine(1), show)
    return folder, reference.roll_up(data.path, DAY_START_US)


def test_a_wrong_cell_of_any_column_is_found(made: tuple[Path, Rows]) -> None:
    folder, expected = made
    found = read_tables(folder / "out", DAY)
    assert not differences(found, expected)
    for level in TABLES:
        key = next(key for key in found if key[0] == level)
        for name, value in found[key].items():
            for wrong in (None if value is not None else 0, change(value)):
                changed = {**found, key: {**found[key], name: wrong}}
                (text,) = differences(changed, expected)
                assert f": {name} is {wrong}, not {value}" in text
        less, fewer = ({each: row for each, row in rows.items() if each != key} for rows in (found, expected))
        assert ["no such row" in text for text in differences(less, expected)] == [True]
        assert ["a row too many" in text for text in differences(found, fewer)] == [True]


def change(value: Any) -> Any:
    """Another value, as near as there is."""
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1)
    if isinstance(value, list):
        return [*value[:-1], {**value[-1], "count": value[-1]["count"] + 1}]
    return math.nextafter(value, math.inf) if isinstance(value, float) else (value or 0) + 1


@pytest.mark.parametrize("table", TABLES.values())
def test_a_bit_that_flips_in_a_file_is_found(made: tuple[Path, Rows], tmp_path: Path, table: str) -> None:
    folder, expected = made
    shutil.copytree(folder / "out", tmp_path / "out", symlinks=True)
    (path,) = (state_of(tmp_path / "out") / table / f"day={DAY}").glob("node=*/*")
    rows = pq.ParquetFile(path).read()
    plainly = {"compression": None, "use_dictionary": False, "write_statistics": False}
    for name in ("messages", "bytes", "gap_sum_us", "last_seq", "size_avg"):
        pq.write_table(rows, path, **plainly)
        assert not differences(read_tables(tmp_path / "out", DAY), expected)
        value = rows[name].to_numpy()[-1:].tobytes()
        flip(path, path.read_bytes().index(value), 1)
        assert differences(read_tables(tmp_path / "out", DAY), expected), name


def test_a_row_twice_or_a_column_of_another_type_is_found(made: tuple[Path, Rows], tmp_path: Path) -> None:
    shutil.copytree(made[0] / "out", tmp_path / "out", symlinks=True)
    (path,) = (state_of(tmp_path / "out") / "days" / f"day={DAY}").glob("node=*/*")
    rows = pq.ParquetFile(path).read()
    pq.write_table(pa.concat_tables([rows, rows[:1]]), path)
    with pytest.raises(AssertionError, match="twice"):
        read_tables(tmp_path / "out", DAY)
    place, column = rows.schema.get_field_index("bytes"), rows["bytes"].cast(pa.float64())
    pq.write_table(rows.set_column(place, "bytes", column), path)
    with pytest.raises(AssertionError):
        read_tables(tmp_path / "out", DAY)


def test_the_reader_finds_what_is_wrong_in_the_files(tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {"a": spread(9)}, shards=2)
    paths = stream_paths(data.stream_directory("a"), "a")
    (whole,) = read_directory(data.path).streams
    assert whole.messages.is_whole.all()
    # A magic, a name, a word, a length, a seq; a payload is a message that is damaged.
    content = [(paths.content_file, offset) for offset in (42, 4098, 4104)]
    for file, offset in [(paths.index_file, 3), (paths.index_file, 520), *content]:
        flip(file, offset)
        assert read_directory(data.path).unreadable.keys() == {"a"}, (file, offset)
        flip(file, offset)
    flip(paths.content_file, Path(paths.content_file).stat().st_size - 1)
    (damaged,) = read_directory(data.path).streams
    assert damaged.messages.is_whole.tolist() == [True] * 8 + [False]
    other = data.path / f"shard-{1 - data.shard_of('a'):02d}"
    for path in (paths.index_file, paths.content_file):
        Path(path).rename(other / Path(path).name)
    assert "does not belong here" in read_directory(data.path).unreadable["a"]


@pytest.mark.parametrize("module", [data_files, reference, tables])
def test_the_check_uses_nothing_of_the_product(module: ModuleType) -> None:
    assert module.__file__ is not None
    found = ast.walk(ast.parse(Path(module.__file__).read_text()))
    imports = [node for node in found if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {getattr(node, "module", None) or node.names[0].name for node in imports}
    own = {name for name in names if name.startswith("tests")}
    assert own <= {"tests.spark.rollup", "tests.spark.rollup.data_files"}
    third = {name.partition(".")[0] for name in names - own} - sys.stdlib_module_names
    assert third <= {"numpy", "google_crc32c", "pyarrow"}
