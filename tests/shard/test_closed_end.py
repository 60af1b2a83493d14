"""The end of a closed stream by its index alone is the one that opening it finds, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.closed_end import StreamEnd, read_closed_end
from tailrace.shard.header import INDEX_CUTS, INDEX_NEXT_SEQ, INDEX_PLACE, INDEX_SYNC_FAILED, tagged
from tailrace.shard.index import entry_offset
from tailrace.shard.stream_files import stream_paths
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, cut, filled, flip, open_log


def found(directory: Path, name: str = NAME, boot: str = BOOT) -> StreamEnd | None:
    return read_closed_end(stream_paths(directory, name), boot)


def store(path: str, word: int, value: int) -> None:
    with open(path, "r+b") as file:
        file.seek(8 * word)
        file.write(tagged(value).to_bytes(8, "little"))


def test_it_is_the_end_that_opening_finds(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    log = open_log(tmp_path)
    stream_id = log.stream_id
    log.close()
    assert stream_id and found(tmp_path) == StreamEnd(stream_id, 0, 0, 5, 1_040, 1)
    log = open_log(tmp_path)
    append(log, b"more", at=9_000, epoch=3)
    log.trim(2)
    log.close()
    assert found(tmp_path) == StreamEnd(stream_id, 0, 2, 6, 9_000, 3)
    log = open_log(tmp_path)
    log.trim(6)
    log.close()
    assert found(tmp_path) == StreamEnd(stream_id, 0, 6, 6)
    filled(tmp_path, 0, name="empty")
    empty = found(tmp_path, "empty")
    assert empty is not None and empty[1:] == (0, 0, 0, 0, 0)


def test_it_changes_nothing_and_keeps_no_descriptor(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    before = Path(paths.index_file).read_bytes(), len(os.listdir("/proc/self/fd"))
    found(tmp_path)
    found(tmp_path, boot=LATER_BOOT)
    assert (Path(paths.index_file).read_bytes(), len(os.listdir("/proc/self/fd"))) == before


def test_a_stream_that_is_open_or_was_left_so_has_none(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    log = open_log(tmp_path)
    assert found(tmp_path) is None
    log.abandon()
    assert found(tmp_path) is None
    assert found(tmp_path, "gone") is None


def test_after_a_crash_of_the_machine_there_is_none(tmp_path: Path) -> None:
    """It may have lost what was not synced; and what was is checked when the stream is opened."""
    filled(tmp_path, 5, synced=True)
    assert found(tmp_path) is not None
    assert found(tmp_path, boot=LATER_BOOT) is None


@pytest.mark.parametrize(
    ("word", "value"), [(INDEX_SYNC_FAILED, 3), (INDEX_CUTS, 1), (INDEX_PLACE, 12345)], ids=["sync", "cut", "place"]
)
def test_a_stream_that_must_be_mended_or_checked_has_none(tmp_path: Path, word: int, value: int) -> None:
    paths = filled(tmp_path, 5)
    store(paths.index_file, word, value)
    assert found(tmp_path) is None


def test_a_damaged_index_has_none(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    flip(paths.index_file, 8 * INDEX_NEXT_SEQ)
    assert found(tmp_path) is None
    flip(paths.index_file, 8 * INDEX_NEXT_SEQ)
    assert found(tmp_path) is not None
    cut(paths.index_file, entry_offset(4, 0) + 8)
    assert found(tmp_path) is None
    cut(paths.index_file, 100)
    assert found(tmp_path) is None


def test_the_file_of_another_stream_has_none(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    os.rename(paths.index_file, stream_paths(tmp_path, "other").index_file)
    assert found(tmp_path, "other") is None
