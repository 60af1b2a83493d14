"""The folder of streams in memory: made whole, of one user, in memory, with a later term each time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tailrace.shard import memory_directory as module
from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import DirectoryError
from tailrace.shard.memory_directory import (
    is_in_memory,
    make_memory_directory,
    memory_path,
    open_memory_directory,
    remove_memory_directory,
)


@pytest.fixture
def path() -> Iterator[Path]:
    path = memory_path(f"test-{secrets.token_hex(8)}")
    yield path
    remove_memory_directory(path)


def is_live(name: bytes) -> bool:
    return name == b"live"


def test_it_is_made_once_and_is_for_its_user(path: Path) -> None:
    make_memory_directory(path, 3)
    (path / "shard-02" / "file").write_text("kept")
    first = open_memory_directory(path, is_live)
    make_memory_directory(path, 3)
    assert open_memory_directory(path, is_live) == first
    assert (path / "shard-02" / "file").exists() and path.stat().st_mode & 0o777 == 0o700
    remove_memory_directory(path)
    remove_memory_directory(path)
    assert not path.exists()


def test_each_one_has_a_later_term(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, terms = 1_795_000_000.0, []
    for _ in range(3):
        monkeypatch.setattr("time.time", partial(float, now_s))
        make_memory_directory(path, 1)
        terms.append(open_memory_directory(path, is_live).term)
        remove_memory_directory(path)
        now_s += 1 / module.TERMS_A_SECOND
    assert terms == sorted(set(terms)) and terms[-1] < 2**32


def test_one_that_was_cut_short_is_finished(path: Path) -> None:
    path.mkdir()
    (path / "shard-00").mkdir()
    with pytest.raises(DirectoryError, match="is no folder of streams in memory"):
        open_memory_directory(path, is_live)
    make_memory_directory(path, 2)
    assert open_memory_directory(path, is_live).shard_path(1).is_dir()


def test_it_is_never_on_a_disk_nor_behind_a_link(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_in_memory(path.parent) and not is_in_memory(Path("/proc"))
    os.symlink(tmp_path, path)
    with pytest.raises(DirectoryError, match=r"belongs to another user|cannot be made"):
        make_memory_directory(path, 1)
    path.unlink()
    monkeypatch.setattr(module, "KIND", "no such kind")
    with pytest.raises(DirectoryError, match="needs a file system"):
        make_memory_directory(path, 1)
    assert not path.exists() and not list(tmp_path.iterdir())


def test_only_the_streams_it_holds_are_there(path: Path, tmp_path: Path) -> None:
    make_memory_directory(path, 4)
    plain = DataDirectory(tmp_path, 4, "n")
    both = DataDirectory(tmp_path, 4, "n", open_memory_directory(path, is_live))
    assert both.is_in_memory(b"live") and not both.is_in_memory(b"other") and not plain.is_in_memory(b"live")
    assert both.stream_path(b"live").parent == path
    assert both.stream_path(b"other") == plain.stream_path(b"other") == plain.stream_directory("other")
