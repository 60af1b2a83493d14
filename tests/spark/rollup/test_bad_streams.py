"""`tailrace rollup` over streams of which each has something else wrong: the night's tables are made, of all that can
be read, and the faults are reported.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tailrace.cli import main, rollup
from tailrace.cli.ending import OK, REFUSED
from tailrace.shard.directory import DataDirectory
from tailrace.shard.frame import INDEX_ENTRY_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tailrace.spark.rollup import job
from tailrace.spark.rollup.day_plan import plan_day
from tailrace.spark.rollup.engine import ChooseEngine, Engine
from tailrace.spark.rollup.nodes import read_nodes
from tailrace.spark.rollup.store import Store
from tests.shard.helpers import flip
from tests.spark.data import DAY_US, add_stream, make_directory, open_log, plain, trim
from tests.spark.rollup import reference
from tests.spark.rollup.directories import DAY, DAY_START_US, HOUR_US
from tests.spark.rollup.tables import left_over, read_tables
from tests.spark.rollup.test_frame_view import EDGES, set_time
from tests.system.node import running
from tests.thorough import only_thorough

pytestmark = [pytest.mark.slow, pytest.mark.system]

Captured = pytest.CaptureFixture[str]
Spoil = Callable[[DataDirectory, StreamPaths], None]
COUNT = 180
STEP_US = 1_000_000


def damage_entry(_data: DataDirectory, paths: StreamPaths) -> None:
    flip(paths.index_file, HEADER_PAGE_BYTES + INDEX_ENTRY_BYTES * 70 + 16)  # a length


def damage_frame(_data: DataDirectory, paths: StreamPaths) -> None:
    flip(paths.content_file, Path(paths.content_file).read_bytes().index(b"message 70"))


def damage_every_frame(_data: DataDirectory, paths: StreamPaths) -> None:
    content = Path(paths.content_file)
    content.write_bytes(content.read_bytes().replace(b"message", b"damages"))


def cut_index(_data: DataDirectory, paths: StreamPaths) -> None:
    os.truncate(paths.index_file, HEADER_PAGE_BYTES + INDEX_ENTRY_BYTES * 150)


def cut_content(_data: DataDirectory, paths: StreamPaths) -> None:
    os.truncate(paths.content_file, Path(paths.content_file).read_bytes().index(b"message 150"))


def fail_reads(_data: DataDirectory, paths: StreamPaths) -> None:
    """Reading the content fails with an error of the operating system."""
    Path(paths.content_file).unlink()
    Path(paths.content_file).mkdir()


def trim_part(data: DataDirectory, paths: StreamPaths) -> None:
    trim(data.path, paths.name, 70)


def trim_all(data: DataDirectory, paths: StreamPaths) -> None:
    trim(data.path, paths.name, COUNT)


def damage_and_trim(data: DataDirectory, paths: StreamPaths) -> None:
    trim(data.path, paths.name, 10)
    damage_frame(data, paths)


def set_tail_aside(data: DataDirectory, paths: StreamPaths) -> None:
    log = open_log(data, paths.name)
    log.set_aside(150)
    log.close()


def remove(_data: DataDirectory, paths: StreamPaths) -> None:
    Path(paths.index_file).unlink()
    Path(paths.content_file).unlink()


def make(folder: Path, *names: str) -> DataDirectory:
    return make_directory(folder / "data", {name: plain(COUNT, DAY_START_US, STEP_US) for name in names})


def spoil(data: DataDirectory, **streams: Spoil) -> None:
    for name, does in streams.items():
        does(data, stream_paths(data.stream_directory(name), name))


def rename(before: Path, after: Path) -> None:
    before.rename(after)


def days(out: Path) -> dict[str, tuple[int, int, int]]:
    """By stream of the day: messages, missing, damaged."""
    rows = read_tables(out, DAY)
    return {
        stream: (row["messages"], row["missing"], row["damaged"])
        for (level, stream, _start), row in rows.items()
        if level == "day"
    }


def run_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: ChooseEngine,
    *options: str,
    meanwhile: Callable[[], None] = lambda: None,
    report: bool = False,
    data: Sequence[str] = (),
) -> int:
    """The command, with one of the engines of the tests. `meanwhile` is done when the streams were looked at.

    Only with `report` does it draw one, which takes longer than all else.
    """

    def make_engine(*_arguments: Any) -> Engine:
        meanwhile()
        return engine(0)

    monkeypatch.setattr(rollup, "make_engine", make_engine)
    words = ["rollup", *(data or [str(tmp_path / "data")]), str(tmp_path / "out"), "--day", str(DAY), *options]
    return main.run(words if report else [*words, "--no-report"])


@pytest.fixture
def command(tmp_path: Path, local_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """By the engine that takes no seconds to start."""
    return partial(run_command, tmp_path, monkeypatch, local_engine)


@pytest.mark.parametrize("engine", ["local", *only_thorough("spark")], indirect=True)
def test_a_night_with_everything_wrong(
    tmp_path: Path,
    engine: ChooseEngine,
    local_engine: ChooseEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
) -> None:
    """The report is drawn from the tables, which both engines write alike: once."""
    before: dict[str, Spoil] = {"entry": damage_entry, "index": cut_index, "frame": damage_frame}
    meanwhile: dict[str, Spoil] = {
        "part": trim_part,
        "all": trim_all,
        "aside": set_tail_aside,
        "gone": remove,
        "unreadable": fail_reads,
    }
    data = make(tmp_path, "good", *before, *meanwhile)
    spoil(data, **before)
    spoil_more = partial(spoil, data, **meanwhile)
    ending = run_command(tmp_path, monkeypatch, engine, meanwhile=spoil_more, report=engine is local_engine)
    assert ending == REFUSED
    whole = (COUNT, 0, 0)
    assert days(tmp_path / "out") == {"good": whole, "entry": whole, "frame": whole, "part": (COUNT - 70, 70, 0)}
    said = capsys.readouterr().err
    for name in {*before, *meanwhile} - {"frame"}:
        assert f"tailrace: {name}: " in said, said
    assert not left_over(tmp_path / "out")


def test_a_verified_night(tmp_path: Path, command: Callable[..., int], capsys: Captured) -> None:
    before: dict[str, Spoil] = {
        "entry": damage_entry,
        "frame": damage_frame,
        "frames": damage_every_frame,
        "content": cut_content,
    }
    data = make(tmp_path, "good", "both", "part", *before)
    spoil(data, **before)
    assert command("--verify", meanwhile=lambda: spoil(data, both=damage_and_trim, part=trim_part)) == REFUSED
    assert days(tmp_path / "out") == {
        "good": (COUNT, 0, 0),
        "entry": (COUNT, 0, 0),
        "frame": (COUNT - 1, 0, 1),
        "both": (COUNT - 11, 10, 1),
        "part": (COUNT - 70, 70, 0),
    }
    said = capsys.readouterr().err
    for name in ("frame", "frames", "content", "both", "part"):
        assert f"tailrace: {name}: " in said, said


@pytest.mark.parametrize(("spoils", "ending"), [(trim_part, OK), (damage_and_trim, REFUSED)])
def test_only_a_trim_is_no_failure(tmp_path: Path, command: Callable[..., int], spoils: Spoil, ending: int) -> None:
    data = make(tmp_path, "a")
    assert command("--verify", meanwhile=lambda: spoil(data, a=spoils)) == ending


def rows_of(out: Path, table: str) -> list[tuple[str, str, int]]:
    """(node, stream, messages) of each row."""
    rows = pq.read_table(Store(out).partition(table, DAY)).to_pylist()
    return sorted((row["node"], row["stream"], row["messages"]) for row in rows)


def test_a_node_that_was_set_up_again_leaves_the_rows_of_its_former_life(
    tmp_path: Path, command: Callable[..., int], capsys: Captured
) -> None:
    """Each of its streams has another identity, with messages of the day or without."""
    first = make(tmp_path, "a", "b", "gone").node_id
    assert command() == OK
    (tmp_path / "data").rename(tmp_path / "before")
    second = make_directory(tmp_path / "data", {"a": plain(7, DAY_START_US + HOUR_US), "b": []}).node_id
    capsys.readouterr()
    for _ in range(2):
        assert command() == OK
        said = capsys.readouterr().out
        assert (
            "rows of another node, or of earlier streams of the same names, are kept (--replace removes them)" in said
        )
        assert ": a, b, gone\n" in said
        expected = [(first, name, COUNT) for name in ("a", "b", "gone")] + [(second, "a", 7)]
        assert rows_of(tmp_path / "out", "days") == sorted(expected)
        assert len(rows_of(tmp_path / "out", "minutes")) == 3 * COUNT // 60 + 1
    assert command("--replace") == OK
    assert rows_of(tmp_path / "out", "days") == [(second, "a", 7)]


def test_a_stream_that_was_made_anew_leaves_the_rows_of_the_former_one(
    tmp_path: Path, command: Callable[..., int], capsys: Captured
) -> None:
    data = make(tmp_path, "a", "b")
    assert command() == OK
    spoil(data, a=remove)
    add_stream(data, "a", plain(7, DAY_START_US))
    trim(data.path, "b", 70)
    capsys.readouterr()
    assert command() == OK
    said = capsys.readouterr().out
    assert "whose rows are kept: b\n" in said
    assert "(--replace removes them): a\n" in said
    expected = [(data.node_id, "a", 7), (data.node_id, "a", COUNT), (data.node_id, "b", COUNT)]
    assert rows_of(tmp_path / "out", "days") == rows_of(tmp_path / "out", "hours") == expected
    assert (
        len({row["stream_id"] for row in pq.read_table(Store(tmp_path / "out").partition("days", DAY)).to_pylist()})
        == 3
    )


def test_a_message_counts_once_however_often_it_is_read(
    tmp_path: Path, command: Callable[..., int], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_directory(tmp_path / "data", {"a": plain(COUNT, DAY_START_US, 90_000_000)})
    monkeypatch.setattr(job, "plan_day", partial(plan_day, whole_rows_max=60))
    assert command("--metrics", str(tmp_path / "metrics.prom")) == OK
    assert f"{DAY}: {COUNT} messages, 1 streams" in capsys.readouterr().out
    assert f"tailrace_rollup_messages {COUNT}.0" in (tmp_path / "metrics.prom").read_text()


@pytest.mark.parametrize(("options", "ending"), [((), REFUSED), (("--verify",), OK)])
def test_a_wrong_time_in_an_index_takes_nothing_from_the_day(
    tmp_path: Path, command: Callable[..., int], capsys: Captured, options: tuple[str, ...], ending: int
) -> None:
    """Also if the time is plausible, and the message the first or the last of its day."""
    wrong = {"middle": (2_000, 0), **EDGES}
    around = [plain(500, DAY_START_US - DAY_US), plain(3_500, DAY_START_US, STEP_US), plain(500, DAY_START_US + DAY_US)]
    data = make_directory(tmp_path / "data", {name: [*chain(*around)] for name in wrong})
    expected = reference.roll_up(data.path, DAY_START_US)
    for name, (seq, timestamp_us) in wrong.items():
        set_time(data, name, seq, timestamp_us)
    assert command(*options) == ending
    assert days(tmp_path / "out") == dict.fromkeys(wrong, (3_500, 0, 0))
    assert read_tables(tmp_path / "out", DAY) == expected
    said = capsys.readouterr().err
    assert [name for name in wrong if f"tailrace: {name}: " in said] == ([] if options else [*wrong])
    assert said.count("its frames were read instead") == (0 if options else len(wrong))


def test_a_failure_of_spark_says_what_python_said_and_where(
    tmp_path: Path, spark_engine: ChooseEngine, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """The data directory is gone when the tasks begin, as on a node of a cluster that does not have it."""
    make(tmp_path, "a")
    command = partial(run_command, tmp_path, monkeypatch, spark_engine)
    assert command(meanwhile=lambda: rename(tmp_path / "data", tmp_path / "elsewhere")) == REFUSED
    said = capsys.readouterr().err
    cause = f"tailrace: Spark: tailrace.shard.errors.DirectoryError: {tmp_path}/data: is not a tailrace data directory"
    assert said.startswith(cause), said
    assert said.endswith(f" (on {socket.gethostname()})\n")
    assert len(said.splitlines()) == 1, said
    assert not left_over(tmp_path / "out")


@pytest.mark.parametrize("way", ["directory", "brokers"])
def test_a_name_that_no_stream_has(tmp_path: Path, command: Callable[..., int], capsys: Captured, way: str) -> None:
    """Over a connection it once counted as a stream, and nobody was told. Rows of one that is gone stay."""
    data = make(tmp_path, "a", "gone")
    assert command() == OK
    spoil(data, gone=remove)
    capsys.readouterr()
    with running(tmp_path / "data", workers=1) as node:
        place = ["--brokers", f"127.0.0.1:{node.port}"] if way == "brokers" else ()
        assert command("--stream", "a", "--stream", "gone", data=place) == REFUSED
    said = capsys.readouterr()
    assert said.err == "tailrace: gone: no stream has this name, or matches this pattern\n"
    assert f"{COUNT} messages, 1 streams" in said.out
    assert rows_of(tmp_path / "out", "days") == [(data.node_id, "a", COUNT), (data.node_id, "gone", COUNT)]


def test_a_stream_of_master_and_slave_counts_once(
    tmp_path: Path, command: Callable[..., int], capsys: Captured
) -> None:
    """Whichever node is read last, under the one that has more; a stream that only has the same name counts beside."""
    whole = plain(COUNT, DAY_START_US, 7 * STEP_US)
    master = make_directory(tmp_path / "master", {"a": whole, "b": plain(9, DAY_START_US)})
    lagging = make_directory(tmp_path / "slave", {"a": whole[:100], "b": plain(9, DAY_START_US, 2_000)})
    trim(lagging.path, "a", 30)
    both = {(master.node_id, "b", 9), (lagging.node_id, "b", 9)}
    for name in ("master", "slave", "master", "slave", "slave"):
        (tmp_path / "data").unlink(missing_ok=True)
        (tmp_path / "data").symlink_to(tmp_path / name)
        capsys.readouterr()
        assert command() == OK
        days_of_both = rows_of(tmp_path / "out", "days")
        assert [row for row in days_of_both if row[1] == "a"] == [(master.node_id, "a", COUNT)]
        assert sum(count for _, stream, count in rows_of(tmp_path / "out", "minutes") if stream == "a") == COUNT
    assert {row for row in days_of_both if row[1] == "b"} == both
    said = capsys.readouterr().out
    assert "also held by another node, and counted once: a\n" in said
    assert "(--replace removes them): b\n" in said


def test_a_night_of_several_nodes_of_which_one_is_missing_and_comes_later(
    tmp_path: Path, command: Callable[..., int], capsys: Captured
) -> None:
    north = make(tmp_path / "n", "a")
    south = make_directory(tmp_path / "away", {"b": plain(5, DAY_START_US)})
    nodes = [f"north={north.path}", f"south={tmp_path / 'south'}"]
    assert command(data=nodes) == REFUSED
    said = capsys.readouterr()
    assert "tailrace: south: this node is missing in the tables: " in said.err
    assert rows_of(tmp_path / "out", "days") == [(north.node_id, "a", COUNT)]
    assert states(tmp_path / "out") == {"north": (north.node_id, "whole", 1), "south": (None, "missing", 0)}
    (tmp_path / "away").rename(tmp_path / "south")
    assert command(data=nodes[1:]) == OK
    assert set(rows_of(tmp_path / "out", "days")) == {(north.node_id, "a", COUNT), (south.node_id, "b", 5)}
    whole = {"north": (north.node_id, "whole", 1), "south": (south.node_id, "whole", 1)}
    assert states(tmp_path / "out") == whole
    (tmp_path / "south").rename(tmp_path / "away")
    assert command(data=nodes) == REFUSED
    assert states(tmp_path / "out") == whole, "its rows are still there"
    assert set(rows_of(tmp_path / "out", "days")) == {(north.node_id, "a", COUNT), (south.node_id, "b", 5)}


def states(out: Path) -> dict[str, tuple[str | None, str, int]]:
    """By node: its id, whether it was read whole, and its streams."""
    rows = read_nodes(Store(out).partition("nodes", DAY))
    return {row.name: (row.node, row.state, row.streams) for row in rows}
