"""Which streams may have changed, seen from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.directory import DataDirectory
from tailrace.shard.names import stem_is_hashed
from tailrace.shard.stream_files import stream_paths
from tailrace.spark.scan import SETTLE_NS, IndexScan, is_settled
from tests.spark.data import add_stream, append, make_directory, open_log, plain

LONG = "l" + "ü" * 90


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return make_directory(tmp_path / "data", {"a": plain(3), "b/ü": plain(1), "other": plain(1), LONG: plain(1)})


def index_file(data: DataDirectory, name: str) -> Path:
    return Path(stream_paths(data.stream_directory(name), name).index_file)


def test_what_grows_looks_different(data: DataDirectory) -> None:
    scan = IndexScan(data.shard_paths(), ())
    first = scan.scan()
    assert set(first) == {"a", "b/ü", "other", LONG}
    assert first["a"][0] == data.shard_of("a")
    log = open_log(data, "a")
    before = scan.scan()  # opening may write
    append(log, plain(1, 10**16))
    after = scan.scan()
    log.close()
    assert [name for name in after if after[name] != before[name]] == ["a"]
    add_stream(data, "new", plain(1))
    index_file(data, "other").unlink()
    Path(stream_paths(data.stream_directory("other"), "other").content_file).unlink()
    assert set(scan.scan()) == {"a", "b/ü", "new", LONG}


def test_streams_whose_files_do_not_say_enough_have_no_signature(data: DataDirectory) -> None:
    assert stem_is_hashed(index_file(data, LONG).stem)
    index_file(data, "a").unlink()  # damage, which a look reports
    found = IndexScan(data.shard_paths(), ()).scan()
    assert {name for name, (_, signature) in found.items() if signature is None} == {LONG, "a"}


def test_only_wanted_streams(data: DataDirectory) -> None:
    assert set(IndexScan(data.shard_paths(), ("b*", "l*")).scan()) == {"b/ü", LONG}


def test_what_was_written_a_moment_ago_has_not_settled(data: DataDirectory) -> None:
    path = index_file(data, "a")
    os.utime(path, ns=(0, 10**18))
    signature = IndexScan(data.shard_paths(), ("a*",)).scan()["a"][1]
    assert signature == (path.stat().st_ino, path.stat().st_size, 10**18)
    assert not is_settled(signature, 10**18 + SETTLE_NS)
    assert is_settled(signature, 10**18 + SETTLE_NS + 1)
