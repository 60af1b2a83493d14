from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from tailrace.shard.files import FileSystem
from tailrace.shard.journal import JOURNAL_BYTES, JOURNAL_HALF_BYTES, JournalRecord, journal_path, read_journal
from tailrace.shard.journal_writer import JournalWriter


def record(name: str = "s", size: int = 100) -> JournalRecord:
    return JournalRecord(name, 1, 0, 0, 4_096, b"x" * size)


@pytest.fixture
def journal(tmp_path: Path) -> JournalWriter:
    made = JournalWriter(journal_path(tmp_path, 0), 4)
    made.open(FileSystem(tmp_path))
    return made


def test_before_it_is_open_it_takes_nothing_and_says_that_it_is_wanted(tmp_path: Path) -> None:
    journal = JournalWriter(journal_path(tmp_path, 0))
    assert [journal.wanted] == [False]
    assert not journal.write([record()], {"s": 1})
    assert (journal.is_open, journal.wanted) == (False, True)
    journal.open(FileSystem(tmp_path))
    assert (journal.is_open, journal.wanted) == (True, False)
    assert journal.path.stat().st_size == JOURNAL_BYTES
    assert journal.write([record()], {"s": 1})
    assert read_journal(journal.path) == [record()]
    journal.close()


def test_an_older_file_is_removed_when_it_is_opened(tmp_path: Path, journal: JournalWriter) -> None:
    assert journal.write([record()], {"s": 1})
    journal.close()
    later = JournalWriter(journal.path)
    later.open(FileSystem(tmp_path))
    assert read_journal(journal.path) == []
    later.close()


def test_a_half_is_written_again_only_when_all_that_it_holds_was_synced(journal: JournalWriter) -> None:
    large = JOURNAL_HALF_BYTES - 8_192
    assert journal.write([record("a", large)], {"a": 1})
    assert journal.pending() == {}
    assert journal.write([record("b", large)], {"b": 2}), "in the other half"
    assert journal.pending() == {"a": 1}
    assert not journal.write([record("c", large)], {"c": 3})
    journal.synced("a", 0)
    assert not journal.write([record("c", large)], {"c": 3}), "not all of it is synced"
    journal.synced("a", 1)
    assert journal.write([record("c", large)], {"c": 3})
    assert [each.name for each in read_journal(journal.path)] == ["b", "c"]
    assert not journal.write([record("d", JOURNAL_HALF_BYTES)], {"d": 1})
    journal.close()


def test_a_half_is_turned_over_in_time(journal: JournalWriter) -> None:
    journal.turn_over()
    assert journal.write([record("a")], {"a": 1})
    assert (journal.is_empty, journal.pending()) == (False, {})
    journal.turn_over()
    assert journal.pending() == {"a": 1}
    assert journal.write([record("b")], {"b": 1})
    journal.turn_over()
    assert journal.pending() == {"a": 1}, "the other half is not free"
    journal.synced("a", 5)
    assert journal.pending() == {}
    journal.turn_over()
    journal.synced("b", 1)
    assert journal.is_empty
    journal.close()


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_after_an_error_it_takes_nothing_any_more(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def failing(*_args: object) -> int:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with pytest.raises(OSError, match="broken"):
            journal.write([record()], {"s": 1})
    assert not journal.write([record()], {"s": 1})
    assert not journal.wanted
    journal.close()


def test_an_error_in_one_thread_keeps_others_from_taking_theirs_for_synced(
    journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later block is behind the one that may not be on the disk, and would not be found."""
    real, first, outcomes = os.fdatasync, threading.Event(), []

    def failing(fd: int) -> None:
        if threading.current_thread() is threading.main_thread():
            first.set()
            other.join(30)
            real(fd)
        else:
            raise OSError(errno.EIO, "broken")

    def write() -> None:
        first.wait(30)
        with pytest.raises(OSError, match="broken"):
            journal.write([record("b")], {"b": 1})

    other = threading.Thread(target=write)
    other.start()
    monkeypatch.setattr(os, "fdatasync", failing)
    outcomes.append(journal.write([record("a")], {"a": 1}))
    assert outcomes == [False]
    journal.close()


def test_many_threads_write_blocks_that_are_all_found(journal: JournalWriter) -> None:
    names = [f"s{number}" for number in range(40)]

    def write(mine: list[str]) -> None:
        for name in mine:
            assert journal.write([record(name)], {name: 1})

    threads = [threading.Thread(target=write, args=(names[first::4],)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(each.name for each in read_journal(journal.path)) == sorted(names)
    journal.close()
