from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from unittest.mock import Mock

import pytest

from tailrace.shard import files
from tailrace.shard.catalog import stream_names
from tailrace.shard.errors import StorageFull, StreamDamaged, StreamMissing
from tailrace.shard.files import write_all
from tailrace.shard.header import HEADER_PAGE_BYTES, STATE_OPEN, boot_word
from tailrace.shard.mapping import Mapping
from tailrace.shard.names import file_stem
from tailrace.shard.place import place_word
from tailrace.shard.stream_files import create_pair, open_pair, stream_paths
from tests.shard.helpers import BOOT, NAME, cut, filled, open_log

LONG = "ü" * 100


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_pair_holds_two_descriptors_and_gives_them_back(tmp_path: Path) -> None:
    before = descriptors()
    pair = create_pair(stream_paths(tmp_path, NAME), 1)
    assert descriptors() == before + 2
    pair.close()
    assert descriptors() == before


@pytest.mark.parametrize("refused", [1, 2])
def test_a_mapping_that_is_refused_gives_everything_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    paths = stream_paths(tmp_path, NAME)
    create_pair(paths, 1).close()
    before, made = descriptors(), list[Mapping]()

    def refuse(fd: int, offset: int, size: int, *, writable: bool) -> Mapping:
        if len(made) == refused - 1:
            raise OSError(errno.ENOMEM, "no more mappings")
        made.append(Mapping(fd, offset, size, writable=writable))
        return made[-1]

    monkeypatch.setattr("tailrace.shard.header.Mapping", refuse)
    with pytest.raises(OSError, match="no more mappings"):
        open_pair(paths)
    assert descriptors() == before
    assert all(mapping.address == 0 for mapping in made)


@pytest.mark.parametrize("left", [0, 1])
def test_none_is_left_when_there_are_no_more(tmp_path: Path, left: int) -> None:
    """Both files take one each: whichever is refused, the one before it is given back."""
    paths = stream_paths(tmp_path, NAME)
    create_pair(paths, 1).close()
    before = descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    spare = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 1 - before + left + 4)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(spare) + 1, hard))
    try:
        for fd in spare[len(spare) - left :]:
            os.close(fd)
        held = spare[: len(spare) - left]
        with pytest.raises(OSError, match="Too many open files"):
            open_pair(paths)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)
    assert descriptors() == before


def test_a_new_stream_is_two_header_pages(tmp_path: Path) -> None:
    pair = create_pair(stream_paths(tmp_path, "a/b"), boot_word(BOOT), base_seq=7)
    headers, place = pair.headers(), place_word(pair.index_fd)
    pair.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a%2Fb.content", "a%2Fb.indx"]
    assert all(path.stat().st_size == HEADER_PAGE_BYTES for path in tmp_path.iterdir())
    assert headers.content_words == (7, HEADER_PAGE_BYTES, HEADER_PAGE_BYTES)
    assert headers.index_words == (7, 7, 7, boot_word(BOOT), STATE_OPEN, 0, 0, 0, place)
    assert headers.content_fixed == headers.index_fixed
    assert (headers.content_fixed.name, headers.content_fixed.base_seq) == ("a/b", 7)


def test_a_stream_with_a_long_name_waits_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, which cannot be derived from its file names, is in the header pages, that are on the disk with the
    first sync."""
    monkeypatch.setattr("os.fsync", Mock(side_effect=AssertionError))
    create_pair(stream_paths(tmp_path, LONG), 1).close()
    stem = file_stem(LONG)
    assert sorted(path.name for path in tmp_path.iterdir()) == [stem + ".content", stem + ".indx"]
    assert stream_names(tmp_path) == [LONG]


def test_files_of_another_stream_are_refused(tmp_path: Path) -> None:
    filled(tmp_path, name="one")
    filled(tmp_path, name="two")
    os.replace(tmp_path / "one.indx", tmp_path / "two.indx")
    with pytest.raises(StreamDamaged, match="a file of the stream 'one'"):
        open_log(tmp_path, "two")


def test_an_index_of_an_earlier_content_is_refused(tmp_path: Path) -> None:
    paths = filled(tmp_path)
    old = Path(paths.index_file).read_bytes()
    for path in tmp_path.iterdir():
        path.unlink()
    filled(tmp_path)
    Path(paths.index_file).write_bytes(old)
    with pytest.raises(StreamDamaged, match="not the index of this content"):
        open_log(tmp_path)


def test_missing_and_short_files(tmp_path: Path) -> None:
    paths = stream_paths(tmp_path, NAME)
    with pytest.raises(StreamMissing, match="no stream 'stream'"):
        open_pair(paths)
    filled(tmp_path)
    before = descriptors()
    cut(paths.index_file, 4_095)
    with pytest.raises(StreamDamaged, match=r"stream.indx at byte 4095: the file ends within"):
        open_pair(paths)
    os.unlink(paths.index_file)
    with pytest.raises(StreamDamaged, match=r"stream.indx at byte 0: the file is missing"):
        open_pair(paths)
    assert descriptors() == before


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_leaves_no_half_of_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int) -> None:
    calls: list[int] = []

    def full(fd: int, data: bytes, offset: int) -> None:
        calls.append(offset)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "no space")
        write_all(fd, data, offset)

    monkeypatch.setattr(files, "write_all", full)
    before = descriptors()
    with pytest.raises(StorageFull):
        open_log(tmp_path)
    assert descriptors() == before
    assert os.listdir(tmp_path) == [], "what was made is taken back"
    open_log(tmp_path).close()
