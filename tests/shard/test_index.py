from __future__ import annotations

import os
import random
from bisect import bisect_left
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.frame import INDEX_ENTRY, IndexEntry
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.index import IndexRun, cut, entry_offset, read_entry, seq_at

BASE = 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    fd = os.open(tmp_path_factory.mktemp("index") / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def write(fd: int, timestamps: list[int]) -> None:
    entries = [INDEX_ENTRY.pack(timestamp, 4_096 + 40 * i, 40, 1) for i, timestamp in enumerate(timestamps)]
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"".join(entries), HEADER_PAGE_BYTES)


def test_an_entry_is_found_by_its_seq(file: int) -> None:
    write(file, [5, 6])
    assert entry_offset(BASE + 1, BASE) == 4_120
    assert read_entry(file, BASE + 1, BASE) == IndexEntry(6, 4_136, 40, 1)


def test_beyond_the_file_or_in_a_hole_there_is_none(file: int) -> None:
    write(file, [5, 6])
    assert read_entry(file, BASE + 2, BASE) is None
    os.pwrite(file, bytes(24), HEADER_PAGE_BYTES)
    assert read_entry(file, BASE, BASE) is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=600).map(sorted), st.data())
def test_seq_at_is_the_first_of_its_time(file: int, timestamps: list[int], data: st.DataObject) -> None:
    write(file, timestamps)
    first = data.draw(st.integers(0, len(timestamps)))
    asked = data.draw(st.integers(0, 51))
    skip = data.draw(st.integers(0, 20))
    expected = bisect_left(timestamps, asked, lo=first)
    assert seq_at(file, BASE, BASE + first, BASE + len(timestamps), asked) == BASE + expected
    same = timestamps[first:].count(asked)
    skipped = seq_at(file, BASE, BASE + first, BASE + len(timestamps), asked, skip)
    assert skipped == BASE + expected + min(skip, same)


def test_a_time_in_a_long_index_costs_few_reads(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, list(range(100_000)))
    pread, reads = os.pread, []

    def counted(fd: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    assert seq_at(file, BASE, BASE, BASE + 100_000, 77_777) == BASE + 77_777
    assert len(reads) <= 11
    assert sum(reads) < 5_000


sizes = st.lists(st.one_of(st.integers(32, 60), st.integers(32, 5_000)), min_size=1, max_size=2_000)


@given(sizes, st.data())
def test_a_cut_is_the_longest_part_that_fits(file: int, lengths: list[int], data: st.DataObject) -> None:
    offsets = [4_096]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    entries = [INDEX_ENTRY.pack(1, offset, length, 1) for offset, length in zip(offsets, lengths, strict=False)]
    os.ftruncate(file, 0)
    os.pwrite(file, b"".join(entries), HEADER_PAGE_BYTES)
    first = data.draw(st.integers(0, len(lengths) - 1))
    end = data.draw(st.integers(first + 1, len(lengths)))
    nbytes = data.draw(st.integers(0, offsets[-1]))
    run = IndexRun(BASE + first, offsets[first], BASE + end, offsets[end])
    fitting = [i for i in range(first, end + 1) if offsets[i] - offsets[first] <= nbytes]
    expected = max(fitting[-1], first + 1)
    assert cut(file, BASE, run, nbytes) == (BASE + expected, offsets[expected])


@given(st.integers(0, 1 << 32), st.integers(1, 400), st.integers(0, 1 << 50))
def test_a_cut_in_garbage_ends(file: int, seed: int, count: int, nbytes: int) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, random.Random(seed).randbytes(24 * 400), HEADER_PAGE_BYTES)
    run = IndexRun(BASE, 4_096, BASE + count, 1 << 40)
    end = cut(file, BASE, run, nbytes)
    assert end is None or (BASE < end[0] <= BASE + count and 4_096 < end[1] <= 1 << 40)


def test_a_cut_beyond_the_file_is_none(file: int) -> None:
    write(file, [1] * 10)
    assert cut(file, BASE, IndexRun(BASE, 4_096, BASE + 1_000, 1 << 20), 1_000) is None
