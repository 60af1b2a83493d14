from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tailrace.shard import rewrite
from tailrace.shard.files import read_all
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.rewrite import PIECE_BYTES, require_on_disk, write_again


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
    require_on_disk(fd, 5_000, len(data))
    os.close(fd)


def test_bytes_that_differ_on_the_disk_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, os.urandom(3 * HEADER_PAGE_BYTES))
    monkeypatch.setattr(rewrite, "read_all", lambda fd, size, place: read_all(fd, size, place)[:: -1 if place else 1])
    with pytest.raises(OSError, match="are not on the disk"):
        require_on_disk(fd, HEADER_PAGE_BYTES, 3 * HEADER_PAGE_BYTES)
    os.close(fd)


def test_a_file_system_without_direct_reads_is_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(os, "O_DIRECT", os.O_DIRECTORY | os.O_CREAT)  # EINVAL, as such a file system returns
    require_on_disk(fd, 0, 10)
    os.close(fd)
