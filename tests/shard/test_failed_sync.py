"""A failed sync is remembered, across openings of the stream, until its messages were written again."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tailrace.shard import rewrite
from tailrace.shard.check import check_stream
from tailrace.shard.errors import MessagesLost, StreamCut
from tailrace.shard.index import entry_offset
from tailrace.shard.log import StreamLog
from tailrace.shard.mend import rebuild_index
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.sync_marks import is_sync_failed, mark_closed_synced, mark_unsynced_failed
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, filled, flip, open_log, read_messages


def broken_disk(fd: int) -> None:
    raise OSError(errno.EIO, "broken disk")


def failed(directory: Path, *payloads: bytes) -> StreamLog:
    """A log with messages, the first of them synced, whose last sync has failed."""
    log = open_log(directory)
    append(log, b"synced")
    log.sync()
    append(log, *payloads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fdatasync", broken_disk)
        with pytest.raises(OSError, match="broken disk"):
            log.sync()
    return log


def test_a_failed_sync_is_remembered_until_the_messages_were_written_again(tmp_path: Path) -> None:
    log = failed(tmp_path, b"one", b"two")
    assert (log.synced_seq, log.sync_failed_seq) == (1, 1)
    descriptors = len(os.listdir("/proc/self/fd"))
    log.close()
    assert is_sync_failed(tmp_path, NAME)
    assert not mark_closed_synced(tmp_path, NAME, boot_id=BOOT), "a later sync of all tells nothing of these pages"
    log = open_log(tmp_path)
    assert (log.synced_seq, log.next_seq, log.sync_failed_seq) == (1, 3, 1)
    written: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewrite, "write_again", lambda _fd, start, end, _writing: written.append((start, end)))
        assert log.sync() == 3
    assert not is_sync_failed(tmp_path, NAME)
    assert written == [(log.entry(1).offset, log.end_offset), (entry_offset(1, 0), entry_offset(3, 0))]
    assert len(os.listdir("/proc/self/fd")) == descriptors
    log.close()
    assert [message.payload for message in read_messages(tmp_path)] == [b"synced", b"one", b"two"]


def test_a_sync_that_fails_again_stays_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = failed(tmp_path, b"one")
    append(log, b"two")
    monkeypatch.setattr(os, "fdatasync", broken_disk)
    with pytest.raises(OSError, match="broken disk"):
        log.sync()
    assert (log.synced_seq, log.sync_failed_seq) == (1, 1)
    log.close()


def test_a_sync_that_fails_after_the_log_was_closed_is_remembered(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one")
    sync = log.begin_sync()
    assert sync is not None
    log.close()
    successor = open_log(tmp_path)
    log.mark_sync_failed(sync)
    sync.close()
    assert successor.sync_failed_seq == 0
    assert successor.sync() == 1
    successor.close()
    assert not is_sync_failed(tmp_path, NAME), "it has seen the mark"


def test_messages_that_a_failed_sync_left_unreadable_are_cut_and_kept(tmp_path: Path) -> None:
    log = failed(tmp_path, b"one", b"two", b"three")
    reader = StreamReader.open(tmp_path, NAME, boot_id=BOOT)
    lost = log.entry(2).offset
    flip(stream_paths(tmp_path, NAME).content_file, lost + 33)
    with pytest.raises(MessagesLost, match="messages from 2 on"):
        log.sync()
    log.close()
    log = open_log(tmp_path)
    assert (log.next_seq, log.lost_messages, log.new_boot, log.sync_failed_seq) == (2, 2, True, 1)
    with pytest.raises(StreamCut) as cut:
        reader.next_seq()
    assert cut.value.seq == 2
    reader.close()
    assert log.torn_bytes > 0
    append(log, b"instead")
    log.sync()
    log.close()
    assert [message.payload for message in read_messages(tmp_path)] == [b"synced", b"one", b"instead"]
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


def test_a_cut_of_a_marked_stream_syncs_it_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = failed(tmp_path, b"one", b"two")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken_disk)
        with pytest.raises(OSError, match="broken disk"):
            log.set_aside(2)
    assert (log.next_seq, log.synced_seq, log.sync_failed_seq) == (3, 1, 1)
    log.set_aside(2)
    assert (log.next_seq, log.synced_seq, log.sync_failed_seq) == (2, 2, None)
    log.close()


def test_a_cut_that_cannot_be_synced_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    append(log, b"one", b"two")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken_disk)
        with pytest.raises(OSError, match="broken disk"):
            log.set_aside(1)
    log = open_log(tmp_path)
    assert log.sync_failed_seq == 0
    assert log.sync() == log.next_seq
    log.close()


def test_a_rebuilt_index_does_not_forget_it(tmp_path: Path) -> None:
    failed(tmp_path, b"one", b"two").close()
    rebuild_index(tmp_path, NAME, boot_id=BOOT)
    log = open_log(tmp_path)
    assert (log.synced_seq, log.next_seq, log.sync_failed_seq) == (1, 3, 1)
    log.close()


def test_a_failed_sync_of_all_marks_what_was_not_synced(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    assert mark_unsynced_failed(tmp_path, NAME, boot_id=BOOT)
    assert not mark_unsynced_failed(tmp_path, NAME, boot_id=LATER_BOOT), "its owner looks at every frame then"
    log = open_log(tmp_path)
    assert log.sync_failed_seq == 0
    log.sync()
    assert not mark_unsynced_failed(tmp_path, NAME, boot_id=BOOT)
    assert not mark_unsynced_failed(tmp_path, "gone", boot_id=BOOT)
    log.close()


def test_a_punch_leaves_a_marked_stream_to_its_next_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages may be appended while a punch runs, which would disturb messages that are written again."""
    log = failed(tmp_path, *[b"x" * 5_000] * 100)
    log.trim(90)
    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "write_again", broken_disk)
        assert log.punch(90) == 0
    assert log.sync_failed_seq == 1
    log.sync()
    assert log.punch(90) > 400_000
    log.close()
