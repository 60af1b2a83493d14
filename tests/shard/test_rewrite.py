from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from tailrace.shard import rewrite
from tailrace.shard.files import read_all
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.rewrite import PIECE_BYTES, require_on_disk, write_again
from tests.shard.helpers import append, open_log


def test_the_bytes_are_written_in_whole_pieces_and_the_header_page_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(2 * PIECE_BYTES + 5_000)
    written: list[tuple[int, int]] = []
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, data)

    def writing(to_fd: int, piece: bytes, place: int) -> None:
        assert os.pwrite(to_fd, piece, place) == len(piece)
        written.append((place, place + len(piece)))

    monkeypatch.setattr(rewrite, "write_all", writing)
    write_again(fd, 5_000, len(data), contextlib.nullcontext)
    pieces = [(HEADER_PAGE_BYTES, PIECE_BYTES), (PIECE_BYTES, 2 * PIECE_BYTES), (2 * PIECE_BYTES, len(data))]
    assert written == pieces
    assert (tmp_path / "file").read_bytes() == data
    os.fdatasync(fd)
    require_on_disk(fd, 5_000, len(data), contextlib.nullcontext)
    os.close(fd)


def test_bytes_that_differ_on_the_disk_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, os.urandom(3 * HEADER_PAGE_BYTES))
    monkeypatch.setattr(rewrite, "read_all", lambda fd, size, place: read_all(fd, size, place)[:: -1 if place else 1])
    with pytest.raises(OSError, match="are not on the disk"):
        require_on_disk(fd, HEADER_PAGE_BYTES, 3 * HEADER_PAGE_BYTES, contextlib.nullcontext)
    os.close(fd)


def test_a_file_system_without_direct_reads_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(os, "O_DIRECT", os.O_DIRECTORY | os.O_CREAT)  # EINVAL, as such a file system returns
    require_on_disk(fd, 0, 10, contextlib.nullcontext)
    os.close(fd)


def test_a_file_system_that_refuses_direct_reads_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose blocks are longer than a page."""

    def refuse(*_args: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(HEADER_PAGE_BYTES))
    monkeypatch.setattr(os, "preadv", refuse)
    require_on_disk(fd, 0, 10, contextlib.nullcontext)
    os.close(fd)


def test_nobody_stores_a_word_while_a_header_page_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is read and written whole: a word that came between the two would be undone."""
    log = open_log(tmp_path)
    append(log, b"a", b"b", b"c")
    held: list[bool] = []
    same, pwrite = rewrite._same, os.pwrite
    monkeypatch.setattr(rewrite, "_same", lambda *args: bool(held) and same(*args))  # it is not on the disk at first

    def writing(fd: int, data: memoryview, place: int) -> int:
        held.append(log._lock.locked())
        return pwrite(fd, data, place)

    monkeypatch.setattr(os, "pwrite", writing)
    begun = log.begin_sync()
    assert begun is not None
    begun.put()
    require_on_disk(begun.index_fd, 0, HEADER_PAGE_BYTES, lambda: log._writing(begun.generation))
    assert held == [True]
    log.close()
    held.clear()
    with pytest.raises(OSError, match="was closed or cut"):
        require_on_disk(begun.index_fd, 0, HEADER_PAGE_BYTES, lambda: log._writing(begun.generation))
    assert held == []
    begun.close()


def test_a_trim_waits_for_a_header_page_that_is_written_again(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"a", b"b", b"c")
    begun = log.begin_sync()
    assert begun is not None
    trimming = threading.Thread(target=log.trim, args=(2,))
    with log._writing(begun.generation):
        page = read_all(begun.index_fd, HEADER_PAGE_BYTES, 0)
        trimming.start()
        trimming.join(0.05)
        assert read_all(begun.index_fd, HEADER_PAGE_BYTES, 0) == page
    trimming.join()
    assert log.first_seq == 2
    assert read_all(begun.index_fd, HEADER_PAGE_BYTES, 0) != page
    begun.close()
    log.close()
