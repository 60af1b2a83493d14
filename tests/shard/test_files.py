from __future__ import annotations

import ctypes
import errno
import os
import threading
from pathlib import Path

import pytest

from tailrace.shard import files
from tailrace.shard.files import (
    PIECES_MAX,
    FileSystem,
    Replacements,
    copy_bytes,
    punch_hole,
    read_all,
    read_small,
    replace_file,
    start_writing,
    sync_directory,
    sync_file_system,
    write_all,
    write_row,
)

PATIENCE_S = 20.0


def test_small_files_are_read_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_small(tmp_path / "file", 5).content == b"12345"
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name, nbytes, why in (
        ("file", 4, "larger than 4 bytes"),
        ("fifo", 5, "not a regular file"),
        ("folder", 5, "Is a directory"),
        ("/dev/zero", 5, "not a regular file"),
        ("none", 5, "No such file"),
    ):
        with pytest.raises(OSError, match=why):
            read_small(tmp_path / name, nbytes)


def test_write_all_goes_on_after_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:3], offset))
    with open(tmp_path / "file", "w+b") as file:
        write_all(file.fileno(), b"0123456789", 2)
        assert file.read() == b"\0\x000123456789"


def test_write_all_ends_when_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: 0)
    with open(tmp_path / "file", "w+b") as file, pytest.raises(OSError, match="could not write 10 bytes at 2"):
        write_all(file.fileno(), b"0123456789", 2)


@pytest.mark.parametrize("written_bytes", [1, 3, 4, 5, 11, 100])
def test_write_row_goes_on_after_a_short_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_bytes: int
) -> None:
    pieces = [b"%03d" % number + b"." * (number % 3) for number in range(2 * PIECES_MAX + 5)]
    monkeypatch.setattr(os, "pwritev", lambda fd, row, offset: os.pwrite(fd, b"".join(row)[:written_bytes], offset))
    with open(tmp_path / "file", "w+b") as file:
        write_row(file.fileno(), [*pieces, memoryview(b""), bytearray(b"end")], 2)
        assert file.read() == b"\0\0" + b"".join(pieces) + b"end"


def test_read_all_ends_where_the_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    pread = os.pread
    with open(tmp_path / "file", "rb") as file:
        assert read_all(file.fileno(), 4, 3) == b"3456"
        assert read_all(file.fileno(), 100, 3) == b"3456789"
        assert read_all(file.fileno(), 1, 10) == b""
        monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 2), offset))
        assert read_all(file.fileno(), 5, 3) == b"34567"


@pytest.mark.parametrize("piece_bytes", [1, 3, 100])
def test_bytes_are_copied_in_pieces(tmp_path: Path, piece_bytes: int) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")
    with open(tmp_path / "source", "rb") as source, open(tmp_path / "target", "w+b") as target:
        copy_bytes(source.fileno(), 2, 9, target.fileno(), 1, piece_bytes)
        assert target.read() == b"\x002345678"
        with pytest.raises(OSError, match="the file ends at 10, 2 bytes early"):
            copy_bytes(source.fileno(), 2, 12, target.fileno(), 0, piece_bytes)


def test_replace_file_leaves_the_old_one_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_hole_reads_as_zeros_and_keeps_the_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 40_960)
    with open(path, "r+b") as file:
        if not punch_hole(file.fileno(), 4_096, 36_864):
            pytest.skip("this file system cannot punch holes")
    data = path.read_bytes()
    assert data == b"x" * 4_096 + bytes(32_768) + b"x" * 4_096
    assert path.stat().st_blocks * 512 < 40_960


def test_to_begin_writing_promises_nothing(tmp_path: Path) -> None:
    """A log may be closed meanwhile, and its number be another file's."""
    with open(tmp_path / "file", "wb") as file:
        file.write(b"x" * 40_960)
        file.flush()
        start_writing(file.fileno())
    start_writing(-1)
    ends = os.pipe()
    for fd in ends:
        start_writing(fd)
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"x" * 40_960


def test_errors_of_the_system_are_raised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        punch_hole(-1, 0, 4_096)
    with pytest.raises(FileNotFoundError):
        sync_file_system(tmp_path / "missing")
    with pytest.raises(NotADirectoryError):
        (tmp_path / "file").touch()
        sync_directory(tmp_path / "file")
    sync_directory(tmp_path)
    sync_file_system(tmp_path)


def test_many_files_are_replaced_together(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"f{number}").write_bytes(b"old")
    replacements = Replacements()
    replacements.replace(tmp_path / "f0", b"new")
    replacements.replace(tmp_path / "f9", b"made")
    replacements.remove(tmp_path / "f1")
    replacements.remove(tmp_path / "never there")
    assert (tmp_path / "f0").read_bytes() == b"old", "not before all are on the disk"
    replacements.finish(tmp_path)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"f0": b"new", "f2": b"old", "f9": b"made"}


class SlowSyncs:
    """In the place of libc: a sync lasts until all that are to be under way are. Each descriptor has one error."""

    def __init__(self, at_once: int) -> None:
        self.under_way = threading.Barrier(at_once)
        self.failed: list[int] = []

    def syncfs(self, fd: int) -> int:
        self.under_way.wait(PATIENCE_S)
        if fd in self.failed:
            return 0
        self.failed.append(fd)
        ctypes.set_errno(errno.EIO)
        return -1


def test_so_many_syncs_of_a_file_system_run_at_once_and_each_hears_of_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports an error once to each open description."""
    file_system = FileSystem(tmp_path, 3)
    monkeypatch.setattr(files, "_libc", SlowSyncs(3))
    heard: list[int | None] = []

    def sync() -> None:
        try:
            file_system.sync()
        except OSError as error:
            heard.append(error.errno)

    for errors in (3, 3):
        threads = [threading.Thread(target=sync) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert heard == [errno.EIO] * 3
        assert file_system.errors == errors
    monkeypatch.undo()
    file_system.close()
    file_system.close()
