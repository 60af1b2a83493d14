"""Which streams may have changed, seen from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tailrace.shard.directory import DataDirectory
from tailrace.shard.names import stem_is_hashed
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.window import FRESH_S
from tailrace.spark.scan import SETTLE_NS, SETTLE_S, IndexScan
from tailrace.spark.source import StreamRef
from tests.spark.data import add_stream, append, make_directory, open_log, plain

LONG = "l" + "ü" * 90


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return make_directory(tmp_path / "data", {"a": plain(3), "b/ü": plain(1), "other": plain(1), LONG: plain(1)})


def index_file(data: DataDirectory, name: str) -> Path:
    return Path(stream_paths(data.stream_directory(name), name).index_file)


@pytest.fixture
def settled(data: DataDirectory) -> None:
    """All files were written long ago."""
    for shard in data.shard_paths():
        for path in [*shard.iterdir(), shard]:
            os.utime(path, ns=(0, 10**18))


@pytest.mark.usefixtures("settled")
def test_what_grows_has_changed(data: DataDirectory) -> None:
    streams = IndexScan(data.shard_paths(), ())
    first = streams.scan()
    assert list(first.refs) == sorted(["a", "b/ü", "other", LONG])
    assert first.refs["a"] == StreamRef(data.shard_of("a"), "a")
    assert (first.changed, first.unsettled) == ({"a", "b/ü", "other"}, {LONG})
    log = open_log(data, "a")
    streams.scan()  # opening may write
    assert streams.scan().changed == set()
    append(log, plain(1, 10**16))
    log.close()
    found = streams.scan()
    assert found.changed == {"a"}
    assert found.refs is first.refs
    assert streams.scan().changed == set()
    add_stream(data, "new", plain(1))
    index_file(data, "other").unlink()
    Path(stream_paths(data.stream_directory("other"), "other").content_file).unlink()
    found = streams.scan()
    assert (set(found.refs), found.changed) == ({"a", "b/ü", "new", LONG}, {"new"})


@pytest.mark.usefixtures("settled")
def test_a_directory_is_listed_again_only_if_files_came_or_went(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[Path] = []
    listdir = os.listdir

    def note(path: Path) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", note)
    streams = IndexScan(data.shard_paths(), ("[abo]*",))
    streams.scan()
    assert len(listed) >= len(data.shard_paths())
    listed.clear()
    streams.scan()
    assert listed == []
    add_stream(data, "a.new", plain(1))
    assert "a.new" in streams.scan().refs
    assert set(listed) == {data.stream_directory("a.new")}


def test_a_file_settles_only_when_no_message_can_hide_behind_its_time() -> None:
    assert SETTLE_S >= 2 * FRESH_S


def test_a_directory_that_was_written_a_moment_ago_is_listed_again(
    data: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time may be the same after another file came."""
    streams = IndexScan(data.shard_paths(), ())
    streams.scan()
    path = data.stream_directory("a.new")
    before = path.stat()
    add_stream(data, "a.new", plain(1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "a.new" in streams.scan().refs


@pytest.mark.usefixtures("settled")
def test_streams_whose_files_do_not_say_enough_may_change_unseen(data: DataDirectory) -> None:
    assert stem_is_hashed(index_file(data, LONG).stem)
    streams, named = IndexScan(data.shard_paths(), ()), [StreamRef(0, "missing"), StreamRef(0, "other")]
    assert streams.scan(named).unsettled == {LONG, "missing"}
    index_file(data, "a").unlink()  # damage, which a look reports
    assert streams.scan(named).unsettled == {LONG, "a", "missing"}


@pytest.mark.usefixtures("settled")
def test_a_file_that_goes_after_the_directory_was_listed(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = IndexScan(data.shard_paths(), ())
    streams.scan()
    path = index_file(data, "a")
    before = path.parent.stat()
    path.unlink()
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = streams.scan()
    assert (found.changed, found.unsettled) == ({"a"}, {"a", LONG})


def test_only_wanted_streams(data: DataDirectory) -> None:
    assert set(IndexScan(data.shard_paths(), ("b*", "l*")).scan().refs) == {"b/ü", LONG}


def test_what_was_written_a_moment_ago_has_not_settled(data: DataDirectory) -> None:
    for name, ago_ns in (("a", 2 * SETTLE_NS), ("b/ü", SETTLE_NS // 2), ("other", -SETTLE_NS)):
        os.utime(index_file(data, name), ns=(0, time.time_ns() - ago_ns))
    assert IndexScan(data.shard_paths(), ()).scan().unsettled == {"b/ü", "other", LONG}
