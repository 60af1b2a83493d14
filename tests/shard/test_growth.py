from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tailrace.shard.growth import STEP_BYTES_MAX, STEP_BYTES_MIN, UNRESERVED_BYTES, Extent, limit_steps

Reserved = list[tuple[int, int]]


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Reserved:
    made: Reserved = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, start, size: made.append((start, size)))
    return made


def test_the_first_bytes_are_not_reserved(fd: int) -> None:
    extent = Extent(fd, 5_000)
    assert extent.limit == 5_000 + UNRESERVED_BYTES


def test_steps_double_up_to_the_greatest(fd: int, calls: Reserved) -> None:
    extent = Extent(fd, 0)
    end = 0
    for _ in range(14):
        used, end = end, extent.limit + 1
        extent.reserve(used, end)
    sizes = [size for _, size in calls]
    assert sizes[:3] == [STEP_BYTES_MIN + 4_096, 2 * STEP_BYTES_MIN, 4 * STEP_BYTES_MIN]
    assert sizes[-1] == sizes[-2] == STEP_BYTES_MAX
    assert all(start == before + size for (before, size), (start, _) in pairwise(calls))


def test_steps_are_short_where_space_is(fd: int, calls: Reserved) -> None:
    extent = Extent(fd, 0)
    limit_steps(100)
    try:
        for _ in range(3):
            extent.reserve(extent.limit, extent.limit + 1)
        extent.reserve(extent.limit, extent.limit + 5 * STEP_BYTES_MIN)
    finally:
        limit_steps(STEP_BYTES_MAX)
    extent.reserve(extent.limit, extent.limit + 1)
    sizes = [size for _, size in calls]
    assert sizes[:3] == [STEP_BYTES_MIN] * 3 and sizes[3] == 5 * STEP_BYTES_MIN and sizes[4] > STEP_BYTES_MIN


def test_a_large_batch_gets_what_it_needs(fd: int, calls: Reserved) -> None:
    Extent(fd, 0).reserve(100, 100 + 3 * STEP_BYTES_MAX + 1)
    assert calls == [(100, 3 * STEP_BYTES_MAX + 4_096)]


def test_a_step_that_does_not_fit_is_halved_down_to_what_is_needed(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 100_000
    tried: list[int] = []

    def fallocate(fd: int, start: int, size: int) -> None:
        tried.append(size)
        if start + size > room:
            os.ftruncate(fd, room)  # the part that fitted
            raise OSError(errno.ENOSPC, "no space")
        os.ftruncate(fd, start + size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    extent = Extent(fd, 60_000)
    extent.reserve(60_000, 65_000)
    assert tried == [STEP_BYTES_MIN, STEP_BYTES_MIN // 2]
    assert extent.limit == os.fstat(fd).st_size == 60_000 + STEP_BYTES_MIN // 2
    with pytest.raises(OSError, match="no space"):
        extent.reserve(92_000, 101_000)
    assert tried[2:] == [2 * STEP_BYTES_MIN, STEP_BYTES_MIN, 32_768, 16_384, 12_288]
    assert os.fstat(fd).st_size == 60_000 + STEP_BYTES_MIN // 2, "what was got in vain is given back"
    extent.reserve(92_000, 96_000)


def test_other_errors_are_raised_at_once(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fallocate(fd: int, start: int, size: int) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with pytest.raises(OSError, match="broken disk"):
        Extent(fd, 0).reserve(0, 100_000)


def test_a_file_that_is_kept_short_reserves_no_more_than_is_given_back(fd: int, calls: Reserved) -> None:
    extent = Extent(fd, 0)
    for _ in range(6):
        extent.reserve(0, extent.limit + 1)
    extent.keep_short(2 * STEP_BYTES_MIN)
    for _ in range(3):
        extent.reserve(0, extent.limit + 1)
    assert [size for _, size in calls[-3:]] == [2 * STEP_BYTES_MIN] * 3
    extent.keep_short(1)
    extent.reserve(0, extent.limit + 1)
    assert calls[-1][1] == STEP_BYTES_MIN, "and never so little that it reserves all the time"
    extent.keep_short(9 * STEP_BYTES_MAX)
    for _ in range(12):
        extent.reserve(0, extent.limit + 1)
    assert calls[-1][1] == STEP_BYTES_MAX


def test_what_is_held_for_a_mapping_is_reserved_once_and_never_cut(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    extent, tried = Extent(fd, 5_000), list[tuple[int, int]]()

    def fallocate(fd: int, start: int, size: int) -> None:
        tried.append((start, size))
        if start + size > 90_000:
            raise OSError(errno.ENOSPC, "no space")
        os.ftruncate(fd, max(os.fstat(fd).st_size, start + size))

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    extent.hold(5_000, 20_480)
    extent.hold(7_000, 20_480)
    extent.hold(20_000, 53_248)
    assert tried == [(5_000, 15_480), (20_480, 32_768)]
    with pytest.raises(OSError, match="no space"):
        extent.hold(53_000, 200_000)
    with pytest.raises(OSError, match="no space"):
        extent.reserve(30_000, 200_000)
    assert os.fstat(fd).st_size == 53_248


def test_what_is_held_beyond_the_first_bytes_is_reserved_in_steps(fd: int, calls: Reserved) -> None:
    extent = Extent(fd, 0)
    extent.hold(60_000, 70_000)
    assert calls == [(60_000, STEP_BYTES_MIN)]
    extent.hold(69_000, 60_000 + STEP_BYTES_MIN)
    assert len(calls) == 1
