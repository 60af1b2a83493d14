from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.shard.journal import (
    HALF_STARTS,
    JOURNAL_BYTES,
    JOURNAL_MAGIC,
    JOURNAL_PAGE_BYTES,
    JournalRecord,
    journal_files,
    journal_path,
    pack_block,
    read_journal,
)


def record(number: int, size: int = 100) -> JournalRecord:
    return JournalRecord(f"stream.{number}", 7 * number, 2, number, 4_096 + number, bytes([number % 256]) * size)


def written(path: Path, *blocks: tuple[int, bytes]) -> Path:
    """A journal with these blocks at these places."""
    data = bytearray(JOURNAL_BYTES)
    data[: len(JOURNAL_MAGIC)] = JOURNAL_MAGIC
    for place, block in blocks:
        data[place : place + len(block)] = block
    path.write_bytes(data)
    return path


def test_records_come_back_in_the_order_they_were_written_whichever_half_they_are_in(tmp_path: Path) -> None:
    first, second, third = (pack_block(number, [record(number), record(10 * number)]) for number in (1, 2, 3))
    low, high = HALF_STARTS
    path = written(tmp_path / "journal-00", (high, first), (high + len(first), second), (low, third))
    assert read_journal(path) == [record(number) for number in (1, 10, 2, 20, 3, 30)]


def test_a_block_fills_whole_pages(tmp_path: Path) -> None:
    for size in (0, 100, 4_096, 5_000):
        assert len(pack_block(1, [record(1, size)])) % JOURNAL_PAGE_BYTES == 0
    path = written(tmp_path / "journal-00", (HALF_STARTS[0], pack_block(1, [record(1, 9_000)])))
    assert read_journal(path) == [record(1, 9_000)]


@pytest.mark.parametrize("place", [0, 8, 16, 20, 24, 30, 400])
def test_a_torn_block_ends_its_half_and_what_is_behind_it_does_not_count(tmp_path: Path, place: int) -> None:
    blocks = [pack_block(number, [record(number, 500)]) for number in (4, 5, 6)]
    start = HALF_STARTS[0]
    path = written(tmp_path / "journal-00", *((start + i * len(block), block) for i, block in enumerate(blocks)))
    data = bytearray(path.read_bytes())
    data[start + len(blocks[0]) + place] ^= 1
    path.write_bytes(data)
    assert read_journal(path) == [record(4, 500)]


def test_blocks_of_an_earlier_use_of_the_half_do_not_count(tmp_path: Path) -> None:
    old = [pack_block(number, [record(number)]) for number in (1, 2, 3)]
    new = pack_block(9, [record(9)])
    start = HALF_STARTS[1]
    places = [(start + i * JOURNAL_PAGE_BYTES, block) for i, block in enumerate(old)]
    path = written(tmp_path / "journal-00", *places, (start, new))
    assert read_journal(path) == [record(9)]


@pytest.mark.parametrize("content", [b"", bytes(JOURNAL_BYTES), b"something else", JOURNAL_MAGIC])
def test_a_file_that_was_not_made_whole_holds_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "journal-00").write_bytes(content)
    assert read_journal(tmp_path / "journal-00") == []


def test_only_journals_are_found(tmp_path: Path) -> None:
    for name in ("journal-00", "journal-11", "journal-00.new", "journal-", "node.json", "LOCK"):
        (tmp_path / name).write_bytes(b"")
    assert journal_files(tmp_path) == [journal_path(tmp_path, 0), journal_path(tmp_path, 11)]
