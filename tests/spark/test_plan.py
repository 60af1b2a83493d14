from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tailrace.errors import ConnectFailed
from tailrace.shard.directory import open_data_dir
from tailrace.shard.stream_files import stream_paths
from tailrace.spark.directory_source import DirectorySource
from tailrace.spark.places import Place, Range
from tailrace.spark.plan import make_plan, resolve
from tailrace.spark.source import Source, SourceOptions, StreamRef, open_source
from tests.spark.data import START_US, add_stream, make_directory, plain, trim

MADE = 150


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """Streams of 100 messages, one a second, the second beginning a minute later; and an empty one."""
    streams = {
        "a": plain(100, step_us=1_000_000),
        "b": plain(100, START_US + 60_000_000, step_us=1_000_000),
        "empty": [],
    }
    make_directory(tmp_path / "data", streams)
    return open_source(SourceOptions(str(tmp_path / "data")))


def ranges(source: Source, range_: Range, *patterns: str) -> dict[str, tuple[int, int]]:
    plan = make_plan(source, patterns, range_)
    assert not plan.bad
    return {slice_.stream: (slice_.first_seq, slice_.end_seq) for task in plan.tasks for slice_ in task}


def time(seconds: int) -> Place:
    return Place("time", START_US + seconds * 1_000_000)


def test_everything_is_one_small_task(source: Source) -> None:
    plan = make_plan(source, ())
    assert plan.messages == 200
    assert len(plan.tasks) == 1
    assert ranges(source, Range()) == {"a": (0, 100), "b": (0, 100)}


def test_a_time_range_is_found_in_each_stream(source: Source) -> None:
    assert ranges(source, Range(time(70), time(80))) == {"a": (70, 80), "b": (10, 20)}
    assert ranges(source, Range(time(0), time(60))) == {"a": (0, 60)}
    assert ranges(source, Range(time(99), None)) == {"a": (99, 100), "b": (39, 100)}
    assert ranges(source, Range(time(1000), None)) == {}
    assert ranges(source, Range(time(80), time(70))) == {}


def test_seqs_are_the_same_in_all_streams(source: Source) -> None:
    assert ranges(source, Range(Place("seq", 10), Place("seq", 20))) == {"a": (10, 20), "b": (10, 20)}
    assert ranges(source, Range(Place("seq", 90), Place("seq", 2**50)), "b") == {"b": (90, 100)}


def test_what_is_trimmed_is_not_planned(source: Source, tmp_path: Path) -> None:
    trim(tmp_path / "data", "a", 40)
    trim(tmp_path / "data", "b", 100)
    assert ranges(source, Range()) == {"a": (40, 100)}
    assert ranges(source, Range(Place("seq", 10), Place("seq", 50))) == {"a": (40, 50)}


def test_large_streams_are_cut_and_minutes_are_not(source: Source) -> None:
    plan = make_plan(source, ("a",), rows_per_task=30)
    assert [task[0].messages for task in plan.tasks] == [25, 25, 25, 25]
    plan = make_plan(source, ("a",), rows_per_task=30, align_us=60_000_000)
    bounds = [task[0].first_seq for task in plan.tasks]
    assert len(bounds) > 1
    assert all((START_US // 1_000_000 + seq) % 60 == 0 for seq in bounds[1:])


def test_bad_streams_are_named_and_others_are_planned(source: Source, tmp_path: Path) -> None:
    data = tmp_path / "data"
    directory = next(data.glob("shard-*/b.indx")).parent
    Path(stream_paths(directory, "b").index_file).write_bytes(b"nonsense" * 1_000)
    plan = make_plan(source, ("a", "b", "nowhere"))
    assert [slice_.stream for task in plan.tasks for slice_ in task] == ["a"]
    assert [bad.stream for bad in plan.bad] == ["b", "nowhere"]
    assert "stream 'b' is damaged" in plan.bad[0].cause
    assert "no stream 'nowhere'" in plan.bad[1].cause


def test_a_stream_that_is_only_being_made_is_bad_where_it_was_named(source: Source, tmp_path: Path) -> None:
    next((tmp_path / "data").glob("shard-*/empty.indx")).unlink()
    assert make_plan(source, ()).bad == []
    assert [bad.stream for bad in make_plan(source, ("empty",)).bad] == ["empty"]


def test_streams_that_are_made_while_one_looks_are_never_bad(source: Source, tmp_path: Path) -> None:
    data = open_data_dir(tmp_path / "data")

    def make() -> None:
        for i in range(MADE):
            add_stream(data, f"made-{i}", plain(1))

    making = threading.Thread(target=make)
    making.start()
    seen = 0
    while making.is_alive() or seen < MADE + 3:
        assert make_plan(source, ()).bad == []
        seen = len(source.streams(()))
    making.join()


def test_a_broker_that_is_away_makes_no_stream_bad(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_source: DirectorySource, _ref: StreamRef) -> None:
        raise ConnectFailed("nobody there")

    monkeypatch.setattr(DirectorySource, "view", away)
    with pytest.raises(ConnectFailed):
        make_plan(source, ())


def test_a_range_is_never_negative(source: Source) -> None:
    with source.view(source.ref("a")) as view:
        assert resolve(view, Range(Place("seq", 50), Place("seq", 10))).messages == 0
