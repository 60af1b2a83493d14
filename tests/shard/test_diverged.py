from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.shard import diverged
from tailrace.shard.diverged import TITLE_BYTES, DivergedTail, SetAsideTail, diverged_path, keep_diverged
from tailrace.shard.epochs import EPOCH_MAX
from tailrace.shard.errors import TailsDamaged
from tailrace.shard.frame import MAX_FRAME_BYTES
from tailrace.shard.header import VALUE_MAX
from tailrace.shard.stream_files import stream_paths
from tests.shard.helpers import flip, list_tails

TAIL = SetAsideTail(5, 7, 1, 2, 1_000, 2_000, 8)


@pytest.fixture
def content(tmp_path: Path) -> Iterator[int]:
    """Bytes in the place of frames."""
    (tmp_path / "content").write_bytes(b"header, the frames, more")
    fd = os.open(tmp_path / "content", os.O_RDONLY)
    yield fd
    os.close(fd)


def keep(directory: Path, fd: int, offset: int = 8, tail: SetAsideTail = TAIL) -> DivergedTail:
    return keep_diverged(stream_paths(directory, "25"), fd, offset, tail)


def listed(directory: Path) -> list[DivergedTail]:
    return list_tails(diverged_path(directory, "25"), "25")


def test_tails_are_added_with_a_title_each(tmp_path: Path, content: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diverged, "PIECE_BYTES", 3)
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.5)
    first = keep(tmp_path, content)
    second = keep(tmp_path, content, 0, TAIL._replace(first_seq=3, nbytes=7))
    assert first == (1, TAIL, 1_700_000_000, TITLE_BYTES)
    assert second == (2, (3, 7, 1, 2, 1_000, 2_000, 7), 1_700_000_000, 2 * TITLE_BYTES + 9)
    assert listed(tmp_path) == [first, second]
    data = (tmp_path / "25.diverged").read_bytes()
    assert data[: TITLE_BYTES + 9].split(b" crc=")[0] == (
        b"diverged first_seq=5 next_seq=7 first_epoch=1 last_epoch=2 first_us=1000 last_us=2000 bytes=8 at=1700000000"
    )
    assert data[TITLE_BYTES - 1 : TITLE_BYTES + 9] == b"\nthe fram\n"
    assert data.endswith(b"\nheader,\n")


def test_no_file_has_no_tails(tmp_path: Path) -> None:
    assert listed(tmp_path) == []


def test_the_same_again_is_the_same(tmp_path: Path, content: int) -> None:
    first = keep(tmp_path, content)
    size = (tmp_path / "25.diverged").stat().st_size
    assert keep(tmp_path, content) == first
    assert (tmp_path / "25.diverged").stat().st_size == size
    other = keep(tmp_path, content, 9)
    assert other.number == 2, "as long, and other bytes"
    assert keep(tmp_path, content).number == 3, "only the last one is looked at"


def test_a_copy_that_was_not_finished_gives_way(tmp_path: Path, content: int) -> None:
    first = keep(tmp_path, content)
    with open(tmp_path / "25.diverged", "ab") as file:
        file.write(bytes(TITLE_BYTES) + b"many frames of a copy that the process did not finish")
    assert listed(tmp_path) == [first]
    second = keep(tmp_path, content, 9)
    assert listed(tmp_path) == [first, second]
    assert (tmp_path / "25.diverged").stat().st_size == second.end_offset
    with open(tmp_path / "25.diverged", "ab") as file:
        file.write(bytes(10))
    assert listed(tmp_path) == [first, second]


def test_every_flipped_byte_of_a_title_is_found(tmp_path: Path, content: int) -> None:
    keep(tmp_path, content)
    keep(tmp_path, content, 9)
    path = tmp_path / "25.diverged"
    for title in (0, TITLE_BYTES + 9):
        for place in range(title, title + TITLE_BYTES):
            flip(path, place, 0x01)
            with pytest.raises(TailsDamaged, match=rf"25\.diverged at byte {title}: the title of a tail is missing"):
                listed(tmp_path)
            flip(path, place, 0x01)
    assert len(listed(tmp_path)) == 2


def test_a_file_that_was_cut_is_damaged(tmp_path: Path, content: int) -> None:
    kept = keep(tmp_path, content)
    path = tmp_path / "25.diverged"
    os.truncate(path, kept.end_offset - 1)
    with pytest.raises(TailsDamaged, match=f"the file ends before its tail 1 does, at {kept.end_offset}"):
        listed(tmp_path)
    before = path.read_bytes()
    with pytest.raises(TailsDamaged):
        keep(tmp_path, content)
    assert path.read_bytes() == before


def test_the_largest_title_fits(tmp_path: Path) -> None:
    largest = SetAsideTail(VALUE_MAX, VALUE_MAX, EPOCH_MAX, EPOCH_MAX, 2**64 - 1, 2**64 - 1, VALUE_MAX)
    title = diverged._title(DivergedTail(1, largest, 2**40, 0))
    assert len(title) == TITLE_BYTES
    assert diverged._parse_title(title, 1, 0) == (1, largest, 2**40, TITLE_BYTES)
    assert largest.nbytes > MAX_FRAME_BYTES
