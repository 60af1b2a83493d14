from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.durable_end import RECENT_BYTES_MAX, DurableEnd
from tailrace.shard.files import FileSystem
from tailrace.shard.group_journal import JOURNAL_STREAMS_MIN, journal_together
from tailrace.shard.group_sync import sync_together
from tailrace.shard.journal import JOURNALED_BYTES_MAX, journal_path, read_journal
from tailrace.shard.journal_writer import JournalWriter
from tailrace.shard.log import StreamLog
from tailrace.shard.walk import check
from tailrace.shard.window import SMALL_APPENDS_MIN
from tests.shard.helpers import append, open_log

COUNT = JOURNAL_STREAMS_MIN + 2


@pytest.fixture
def journal(tmp_path: Path) -> JournalWriter:
    made = JournalWriter(journal_path(tmp_path, 0))
    made.open(FileSystem(tmp_path))
    return made


@pytest.fixture
def logs(tmp_path: Path) -> list[StreamLog]:
    """Streams with a synced message and one that is not."""
    made = [open_log(tmp_path, f"s{number}") for number in range(COUNT)]
    for log in made:
        append(log, b"first")
        log.sync()
        append(log, b"second")
    return made


def close(logs: list[StreamLog], journal: JournalWriter) -> None:
    journal.close()
    for log in logs:
        log.close()


def test_what_was_appended_since_is_on_the_disk_with_one_sync(
    logs: list[StreamLog], journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fdatasync, []

    def watched(fd: int) -> None:
        synced.append(fd)
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", watched)
        assert journal_together(logs, journal) == set(logs)
    assert len(synced) == 1
    assert [(log.synced_seq, log.durable.seq) for log in logs] == [(1, 2)] * COUNT
    for log in logs:
        append(log, b"third", b"fourth")
    assert journal_together(logs, journal) == set(logs)
    assert [log.durable.seq for log in logs] == [4] * COUNT
    found = [each for each in read_journal(journal.path) if each.name == "s0"]
    assert [each.first_seq for each in found] == [1, 2]
    with open(logs[0]._pair.paths.content_file, "rb") as content:
        for each in found:
            content.seek(each.offset)
            assert content.read(len(each.frames)) == each.frames
    close(logs, journal)


def test_what_is_on_the_disk_already_needs_no_record(logs: list[StreamLog], journal: JournalWriter) -> None:
    for log in logs:
        log.sync()
    assert journal_together(logs, journal) == set(logs)
    assert read_journal(journal.path) == []
    close(logs, journal)


@pytest.mark.parametrize("more", [0, SMALL_APPENDS_MIN])
def test_the_last_small_append_is_not_read_from_the_file(
    logs: list[StreamLog], journal: JournalWriter, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """Neither one that was written nor one that went through a window."""
    for log in logs * more:
        append(log, b"more")
    assert journal_together(logs, journal) == set(logs)
    for log in logs:
        append(log, b"third")
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: pytest.fail("it is at hand"))
        assert journal_together(logs, journal) == set(logs)
    append(logs[0], b"fourth")
    append(logs[0], b"fifth")
    append(logs[1], bytes(RECENT_BYTES_MAX))
    append(logs[2], b"fourth")
    logs[2].set_aside(3 + more)
    append(logs[2], b"FOURTH")
    assert logs[1].durable.recent == b"" == logs[2].durable.recent
    assert journal_together(logs, journal) >= {*logs[:2]}
    assert [log.durable.seq for log in logs] == [5 + more, 4 + more, 4 + more, 3 + more]
    for each in read_journal(journal.path):
        with open(logs[int(each.name[1:])]._pair.paths.content_file, "rb") as content:
            content.seek(each.offset)
            assert content.read(len(each.frames)) == each.frames or each.cuts < logs[2].cuts
    close(logs, journal)


@pytest.mark.parametrize("is_synced", [False, True])
def test_what_is_appended_while_the_frames_are_read_is_not_taken_for_written(
    logs: list[StreamLog], journal: JournalWriter, *, is_synced: bool
) -> None:
    """The owner appends in its own thread, at any moment."""
    for log in logs:
        if is_synced:
            log.sync()
        log.durable = AppendedTo(log)
    journaled = journal_together(logs, journal)
    records = read_journal(journal.path)
    found = {each.name: each.first_seq + check(each.frames, 0, len(each.frames), each.first_seq)[0] for each in records}
    assert [log.next_seq for log in logs] == [3] * COUNT
    for log in journaled:
        assert log.durable.seq <= found.get(log.name, log.synced_seq)
        assert log.durable.offset <= log.entry(log.durable.seq).offset
    close(logs, journal)


class AppendedTo(DurableEnd):
    """A message is appended to the log when its end is looked at first."""

    def __init__(self, log: StreamLog) -> None:
        self._log: StreamLog | None = None
        super().__init__(log.durable.seq, log.durable.offset)
        self._log = log

    @property
    def offset(self) -> int:
        if self._log is not None:
            log, self._log = self._log, None
            append(log, b"meanwhile")
        return self._offset

    @offset.setter
    def offset(self, offset: int) -> None:
        self._offset = offset


def test_two_streams_need_no_sync_of_the_file_system(logs: list[StreamLog], journal: JournalWriter) -> None:
    assert journal_together(logs[:2], journal) == set(logs[:2])
    assert [each.name for each in read_journal(journal.path)] == ["s0", "s1"]
    close(logs, journal)


def test_a_single_stream_is_synced(logs: list[StreamLog], journal: JournalWriter) -> None:
    assert journal_together(logs[:1], journal) == set()
    assert read_journal(journal.path) == []
    close(logs, journal)


def test_a_stream_that_must_go_to_its_own_files_is_left_to_a_sync(
    tmp_path: Path, logs: list[StreamLog], journal: JournalWriter
) -> None:
    new, large, closed, marked, damaged = (open_log(tmp_path, name) for name in ("new", "large", "shut", "bad", "torn"))
    for log in (large, closed, marked, damaged):
        append(log, b"first")
        log.sync()
        append(log, b"second")
    append(new, b"first")
    append(large, bytes(JOURNALED_BYTES_MAX))
    begun = marked.begin_sync()
    assert begun is not None
    marked.mark_sync_failed(begun)
    begun.close()
    with open(damaged._pair.paths.content_file, "r+b") as content:
        content.seek(damaged.end_offset - 1)
        content.write(b"?")
    closed.close()
    others = [new, large, closed, marked, damaged]
    assert journal_together([*others, *logs], journal) == set(logs)
    assert {each.name for each in read_journal(journal.path)} == {log.name for log in logs}
    for log in (new, large, marked, damaged):
        log.abandon()
    close(logs, journal)


def test_a_cut_in_between_is_respected(logs: list[StreamLog], journal: JournalWriter) -> None:
    begun = logs[0].begin_journaling()
    assert begun is not None
    logs[0].set_aside(1)
    assert logs[0].durable.seq == 1
    logs[0].finish_journaling(begun)
    assert logs[0].durable.seq == 1
    append(logs[0], b"other")
    assert journal_together(logs, journal) == set(logs)
    (found,) = [each for each in read_journal(journal.path) if each.name == "s0"]
    assert (found.first_seq, found.cuts) == (1, 2)
    close(logs, journal)


def test_a_cut_puts_what_only_the_journal_had_into_the_files_first(
    logs: list[StreamLog], journal: JournalWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert journal_together(logs, journal) == set(logs)
    append(logs[0], b"third")
    calls: list[str] = []
    real_sync, real_cut = StreamLog.sync, StreamLog._cut

    def sync(self: StreamLog) -> int:
        calls.append("sync")
        return real_sync(self)

    def cut(self: StreamLog, seq: int) -> None:
        calls.append("cut")
        real_cut(self, seq)

    monkeypatch.setattr(StreamLog, "sync", sync)
    monkeypatch.setattr(StreamLog, "_cut", cut)
    logs[0].set_aside(2)
    assert calls == ["sync", "cut"]
    close(logs, journal)


def test_without_room_or_after_an_error_nothing_is_taken(
    logs: list[StreamLog], journal: JournalWriter, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, "_has_room", lambda _self, _size: False)
        assert journal_together(logs, journal) == set()

    def failing(_fd: int) -> None:
        raise OSError(5, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing)
        assert journal_together(logs, journal) == set()
    assert "cannot write the journal" in caplog.text
    assert [log.durable.seq for log in logs] == [1] * COUNT
    assert journal_together(logs, journal) == set()
    close(logs, journal)


def test_streams_in_the_journal_are_synced_to_their_files_later_and_marked_ones_are_left_alone(
    tmp_path: Path, logs: list[StreamLog], journal: JournalWriter
) -> None:
    assert journal_together(logs, journal) == set(logs)
    begun = logs[0].begin_sync()
    assert begun is not None
    logs[0].mark_sync_failed(begun)
    begun.close()
    assert sync_together(logs, FileSystem(tmp_path), mends=False) == [None] * COUNT
    assert [log.synced_seq for log in logs] == [1] + [2] * (COUNT - 1)
    close(logs, journal)
