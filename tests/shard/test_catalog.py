from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tailrace.shard.catalog import all_streams, count_streams, list_shard, stream_names
from tailrace.shard.directory import make_data_dir
from tailrace.shard.lock import ShardLock
from tailrace.shard.meta import Role, StreamMeta, write_meta
from tailrace.shard.names import file_stem
from tests.shard.helpers import filled

NAMES = ["25", "a/b", "..", "größe", "x.content", "x.indx", "x.torn", "LOCK", "ü" * 100, "$own", "%41"]


def test_names_are_told_from_files_alone(tmp_path: Path) -> None:
    for name in NAMES:
        filled(tmp_path, 1, name=name)
    write_meta(tmp_path, StreamMeta("25", Role.SLAVE))
    (tmp_path / "25.torn").touch()
    with ShardLock(tmp_path):
        listing = list_shard(tmp_path)
    assert sorted(listing.names) == sorted(NAMES)
    assert listing.strays == []
    assert sorted(stream_names(tmp_path)) == sorted(NAMES)


@pytest.mark.parametrize("suffix", [".content", ".indx"])
def test_half_a_stream_is_one(tmp_path: Path, suffix: str) -> None:
    filled(tmp_path, 1)
    (tmp_path / ("stream" + suffix)).unlink()
    assert list_shard(tmp_path) == (["stream"], [])


def test_what_no_stream_explains_is_a_stray(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    strays = ["notes.txt", "gone.meta", "gone.torn", "a b.content", "a b.indx", "stream.indx.new", "=abc.indx"]
    for file in strays:
        (tmp_path / file).touch()
    listing = list_shard(tmp_path)
    assert listing.names == ["stream"]
    assert sorted(listing.strays) == sorted(strays)


def test_a_hashed_name_is_told_without_its_meta(tmp_path: Path) -> None:
    name = "ü" * 100
    filled(tmp_path, 1, name=name)
    assert stream_names(tmp_path) == [name]
    (tmp_path / (file_stem(name) + ".meta")).write_bytes(b"damaged")
    assert stream_names(tmp_path) == [name]
    (tmp_path / (file_stem(name) + ".meta")).unlink()
    (tmp_path / (file_stem(name) + ".content")).unlink()
    assert stream_names(tmp_path) == [name]
    (tmp_path / (file_stem(name) + ".indx")).write_bytes(b"")
    assert list_shard(tmp_path) == ([], [file_stem(name) + ".indx"])


def test_all_streams_of_a_node(tmp_path: Path) -> None:
    data = make_data_dir(tmp_path / "data", 4)
    names = [f"s{i}" for i in range(20)]
    for name in names:
        filled(data.stream_directory(name), 0, name=name)
    assert count_streams(data) == 20
    found = list(all_streams(data))
    assert [shard for shard, _ in found] == sorted(shard for shard, _ in found)
    assert {name for _, name in found} == set(names)
    assert all(data.shard_of(name) == shard for shard, name in found)


def test_listing_opens_no_file(tmp_path: Path) -> None:
    """So that 100,000 streams are listed in much less than two seconds; here a tenth of them in a second of the
    processor.
    """
    data = make_data_dir(tmp_path / "data", 64)
    template = tmp_path / "empty"
    template.touch()
    for i in range(10_000):
        stem = f"{data.stream_directory(f'stream-{i}')}/stream-{i}"
        for suffix in (".content", ".indx"):
            os.link(template, stem + suffix)
    begun_s = time.process_time()
    assert count_streams(data) == 10_000
    assert time.process_time() - begun_s < 1
