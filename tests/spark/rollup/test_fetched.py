"""Data directories at a URL: an object store, as a server on the loopback speaks S3, and a folder."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from tailrace.cli import main
from tailrace.cli.ending import NO_DIRECTORY, OK, REFUSED, USAGE
from tailrace.shard.catalog import stream_names
from tailrace.shard.directory import open_data_dir
from tailrace.shard.files import NEW_SUFFIX
from tailrace.spark.file_systems import open_place
from tailrace.spark.planning import cut
from tailrace.spark.rollup import fetched
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.fetched import fetch_directory
from tailrace.spark.rollup.nodes import read_nodes
from tailrace.spark.rollup.store import NODES, Store
from tailrace.spark.rollup.tasks import Work, write_task
from tailrace.spark.source import SourceOptions, open_source
from tests.spark.data import make_directory
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US
from tests.spark.rollup.tables import read_tables
from tests.spark.rollup.test_frame_view import set_time
from tests.spark.rollup.test_job import spread

Captured = pytest.CaptureFixture[str]
LONG = "long/" + "ü" * 90
"""Its files are named after a hash."""


@pytest.fixture
def bucket(url: str) -> str:
    return url


def upload(data: Path, url: str) -> str:
    place = open_place(url)
    for file in sorted(data.rglob("*")):
        if file.is_file():
            name = f"{place.path}/{file.relative_to(data)}"
            fs.copy_files(str(file), name, fs.LocalFileSystem(), place.system)
    return url


def fetch(url: str, target: Path, *streams: str) -> set[str]:
    """The streams that were fetched."""
    fetch_directory(url, target, streams, lambda _done, _total: None)
    return {name for path in open_data_dir(target).shard_paths() for name in stream_names(path)}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_directory(tmp_path / "data", {"a": spread(100), "b/c%d": spread(50), LONG: spread(20), "empty": []})
    return tmp_path / "data"


@pytest.mark.thorough
def test_a_directory_in_a_bucket_is_rolled_up_as_a_folder(data: Path, bucket: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main.run(["rollup", upload(data, bucket), str(out), "--day", str(DAY), "--verify"]) == OK
    assert read_tables(out, DAY) == reference.roll_up(data, DAY_START_US)
    last = ["--catch-up", "--day", str(DAY + timedelta(days=2))]
    assert main.run(["rollup", bucket, str(out), *last, "--no-report"]) == OK
    assert read_tables(out, DAY) == reference.roll_up(data, DAY_START_US)


@pytest.mark.thorough
def test_the_copy_is_gone_after_the_run(
    data: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    upload(data, bucket)
    assert main.run(["rollup", bucket, str(tmp_path / "out"), "--day", str(DAY)]) == OK
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [((), {"a", "b/c%d", LONG, "empty"}), (("a",), {"a", LONG}), (("b/*", "e*"), {"b/c%d", "empty", LONG})],
)
def test_only_the_chosen_streams_are_fetched(
    data: Path, tmp_path: Path, patterns: tuple[str, ...], expected: set[str]
) -> None:
    """And those whose names are not in the names of their files."""
    assert fetch(f"file://{data}", tmp_path / "copy", *patterns) == expected


def test_nothing_else_is_fetched(data: Path, tmp_path: Path) -> None:
    shard = open_data_dir(data).stream_directory("a")
    for name in ("a.producers", "a.torn", f"a.indx{NEW_SUFFIX}", "..", "evil"):
        if name != "..":
            (shard / name).write_bytes(b"x")
    (data / "shard-00" / "deeper").mkdir()
    (data / "shard-00" / "deeper" / "a.indx").write_bytes(b"x")
    (data / "shard-99").mkdir()
    (data / "shard-99" / "a.indx").write_bytes(b"x")
    (data / "clock.json").write_bytes(b"x")
    before = {file.relative_to(data): file.read_bytes() for file in data.rglob("*.content")}
    fetch(f"file://{data}", tmp_path / "copy")
    found = {file.relative_to(tmp_path / "copy") for file in (tmp_path / "copy").rglob("*") if file.is_file()}
    assert {file.suffix for file in found} <= {".indx", ".content", ".meta", ".json"}
    assert {file for file in found if file.suffix == ".json"} == {Path("node.json")}
    assert not [file for file in found if "deeper" in file.parts or "shard-99" in file.parts]
    assert {file: (tmp_path / "copy" / file).read_bytes() for file in found if file.suffix == ".content"} == before


def test_index_files_come_before_the_content(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that is being copied to its URL meanwhile: the content has what the index knows, or more."""
    order: list[str] = []
    copy = fs.copy_files

    def noted(source: str, *others: Any) -> None:
        order.append(Path(source).suffix)
        copy(source, *others)

    monkeypatch.setattr(fs, "copy_files", noted)
    fetch(f"file://{data}", tmp_path / "copy")
    assert order.count(".indx") == 4
    assert ".content" not in order[: len(order) - order[::-1].index(".indx")]


def test_a_stream_that_vanishes_meanwhile_is_left_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = fs.copy_files

    def removing(source: str, *others: Any) -> None:
        if Path(source).name == "a.content":
            Path(source).unlink()
        copy(source, *others)

    monkeypatch.setattr(fs, "copy_files", removing)
    fetch(f"file://{data}", tmp_path / "copy")
    assert not list((tmp_path / "copy").rglob("a.content"))
    assert list((tmp_path / "copy").rglob("empty.content"))


def test_a_directory_that_does_not_fit(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetched, "SPARE_BYTES", 1 << 60)
    with pytest.raises(OSError, match=r"bytes do not fit into .* let TMPDIR name a larger folder"):
        fetch(f"file://{data}", tmp_path / "copy")
    assert not list((tmp_path / "copy").rglob("*.content"))


@pytest.mark.parametrize("node", [b"", b"{", b"[]", b'{"shards": "x"}', b'{"shards": 5000}', b'{"shards": -1}'])
def test_a_node_file_that_is_no_node_file(data: Path, tmp_path: Path, capsys: Captured, node: bytes) -> None:
    (data / "node.json").write_bytes(node)
    assert main.run(["rollup", f"file://{data}", str(tmp_path / "out"), "--day", str(DAY)]) == NO_DIRECTORY
    assert "node.json" in capsys.readouterr().err


def test_no_data_directory_at_the_url(tmp_path: Path, bucket: str, capsys: Captured) -> None:
    assert main.run(["rollup", bucket, str(tmp_path / "out"), "--day", str(DAY)]) == REFUSED
    shown = bucket.partition("?")[0]
    assert f"{shown}: no data directory: it has no node.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ftp://host/data"], "DATA is 'ftp://host/data', which is not a URL of a known kind"),
        (["s3://key:secret@bucket/data"], "DATA is a URL with credentials; give them in the environment"),
    ],
)
def test_urls_that_cannot_be_used(tmp_path: Path, capsys: Captured, arguments: list[str], said: str) -> None:
    data, *options = arguments
    assert main.run(["rollup", data, str(tmp_path / "out"), "--day", str(DAY), *options]) == USAGE
    assert said in capsys.readouterr().err
    assert "secret" not in said


def test_a_node_of_several_that_cannot_be_fetched_is_missing(
    data: Path, bucket: str, tmp_path: Path, capsys: Captured
) -> None:
    """And is made up for by a later run."""
    out, arguments = tmp_path / "out", [f"north=file://{data}", f"south={bucket}"]
    assert main.run(["rollup", *arguments, str(out), "--day", str(DAY)]) == REFUSED
    assert "tailrace: node south: " in capsys.readouterr().err
    rows = read_nodes(Store(out).partition(NODES, DAY))
    assert [(row.name, row.state) for row in rows] == [("north", "whole"), ("south", "missing")]
    make_directory(tmp_path / "other", {"south": spread(10)})
    upload(tmp_path / "other", bucket)
    assert main.run(["rollup", *arguments, str(out), "--day", str(DAY)]) == OK
    rows = read_nodes(Store(out).partition(NODES, DAY))
    assert [(row.name, row.state) for row in rows] == [("north", "whole"), ("south", "whole")]
    minutes = ds.dataset(Store(out).partition("minutes", DAY), format="parquet").to_table()
    assert {"a", "south"} <= set(minutes["stream"].to_pylist())


@pytest.mark.few(1)
@pytest.mark.parametrize("verify", [False, True])
def test_tasks_of_a_cluster_copy_what_they_read(
    data: Path, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: bool
) -> None:
    """They write the same bytes as from the folder. Contents are copied only if frames are read, and once."""
    upload(data, bucket)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    copied: list[str] = []
    copy = fs.copy_files

    def noted(source: str, *others: Any) -> None:
        copied.append(Path(source).name)
        copy(source, *others)

    monkeypatch.setattr(fs, "copy_files", noted)
    with closing(open_source(SourceOptions(str(data)))) as source:
        plan = plan_day(source, DAY)
    work = Work(SourceOptions(str(data)), str(tmp_path), plan.node, verify)
    away = work._replace(source=SourceOptions(bucket))
    units = tuple(unit for task in plan.tasks for unit in task)
    halves = [unit._replace(slice=part) for unit in units for part in cut(unit.slice, 30)]
    here, there = (write_task(each, 0, tuple(halves)) for each in (work, away))
    assert here.notes == there.notes == [] and here.files.keys() == there.files.keys()
    for level, name in here.files.items():
        assert (tmp_path / name).read_bytes() == (tmp_path / there.files[level]).read_bytes()
    contents = [name for name in copied if name.endswith(".content")]
    assert len(contents) == len(set(contents)) == (len(units) if verify else 0)
    assert sum(name.endswith(".indx") for name in copied) == len(units), "only those of its streams"
    assert list(scratch.iterdir()) == []


def test_a_task_reads_frames_that_contradict_their_index(data: Path, tmp_path: Path) -> None:
    with closing(open_source(SourceOptions(str(data)))) as source:
        plan = plan_day(source, DAY)
    set_time(open_data_dir(data), "a", 50, DAY_START_US)
    work = Work(SourceOptions(str(data)), str(tmp_path), plan.node)
    here, there = (
        write_task(each, 0, plan.tasks[0]) for each in (work, work._replace(source=SourceOptions(f"file://{data}")))
    )
    assert "its frames were read instead" in here.notes[0].text
    assert [note._replace(text=note.text.replace("file://", "")) for note in there.notes] == here.notes
    for level, name in here.files.items():
        assert (tmp_path / name).read_bytes() == (tmp_path / there.files[level]).read_bytes()
