from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tailrace.shard import torn
from tailrace.shard.errors import StorageFull
from tailrace.shard.torn import data_end, keep_torn


def opened(tmp_path: Path, data: bytes) -> int:
    (tmp_path / "content").write_bytes(data)
    return os.open(tmp_path / "content", os.O_RDONLY)


@pytest.mark.parametrize("piece", [1, 3, 1_000])
@pytest.mark.parametrize(
    ("data", "start", "end", "expected"),
    [(b"", 0, 0, 0), (b"\0\0\0", 0, 3, 0), (b"a\0b\0\0\0\0", 0, 7, 3), (b"ab\0\0", 2, 4, 2), (b"ab\0\0", 0, 1, 1)],
)
def test_data_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int, data: bytes, start: int, end: int, expected: int
) -> None:
    monkeypatch.setattr(torn, "PIECE_BYTES", piece)
    assert data_end(opened(tmp_path, data), start, end) == expected


def test_cuts_are_added_with_a_title_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torn, "PIECE_BYTES", 2)
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.5)
    fd = opened(tmp_path, b"head, torn\0\0\0")
    assert keep_torn(tmp_path, "25", fd, "content", 6, 13) == 4
    assert keep_torn(tmp_path, "25", fd, "content", 0, 4) == 4
    assert (tmp_path / "25.torn").read_bytes() == (
        b"torn content offset=6 bytes=4 at=1700000000\ntorn\ntorn content offset=0 bytes=4 at=1700000000\nhead\n"
    )


def test_zeros_are_not_kept(tmp_path: Path) -> None:
    assert keep_torn(tmp_path, "25", opened(tmp_path, bytes(100)), "content", 3, 100) == 0
    assert not (tmp_path / "25.torn").exists()


def test_a_full_disk_is_said_and_what_was_kept_before_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = opened(tmp_path, b"first second")
    keep_torn(tmp_path, "25", fd, "content", 0, 5)
    before = (tmp_path / "25.torn").read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFull, match="6 more bytes"):
        keep_torn(tmp_path, "25", fd, "content", 6, 12)
    assert (tmp_path / "25.torn").read_bytes() == before
