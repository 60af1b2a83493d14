from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path

import pytest

from tailrace.shard.files import FileSystem
from tailrace.shard.group_sync import sync_together
from tailrace.shard.log import StreamLog
from tests.shard.helpers import append, open_log


class Broken(FileSystem):
    def sync(self) -> None:
        self.errors += 1
        raise OSError(errno.EIO, "somebody's file could not be written")


@pytest.fixture
def logs(tmp_path: Path) -> list[StreamLog]:
    """Three streams, each with a message that is not synced."""
    made = [open_log(tmp_path, f"s{number}") for number in range(3)]
    for log in made:
        append(log, b"message")
    return made


def close(logs: list[StreamLog]) -> None:
    for log in logs:
        log.close()


def test_all_are_synced_and_closed_ones_are_left_alone(tmp_path: Path, logs: list[StreamLog]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    file_system = FileSystem(tmp_path)
    assert sync_together(logs, file_system) == [None] * 3
    assert [log.synced_seq for log in logs] == [1] * 3
    append(logs[0], b"more")
    close(logs[:1])
    assert sync_together(logs, file_system) == [None] * 3
    file_system.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    close(logs)


@pytest.mark.parametrize("together", [1, 3])
def test_a_group_begins_to_write_before_it_is_synced(
    tmp_path: Path, logs: list[StreamLog], monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    calls: list[object] = []
    real, file_system = FileSystem.sync, FileSystem(tmp_path)
    monkeypatch.setattr("tailrace.shard.log.start_writing", calls.append)

    def sync(self: FileSystem) -> None:
        calls.append("sync")
        real(self)

    monkeypatch.setattr(FileSystem, "sync", sync)
    assert sync_together(logs[:together], file_system) == [None] * together
    files = [fd for log in logs for fd in (log._content_fd, log._index_fd)]
    assert calls == ([*files, "sync"] if together > 1 else ["sync"])
    file_system.close()
    close(logs)


def test_a_log_that_is_closed_meanwhile_writes_nothing(logs: list[StreamLog]) -> None:
    close(logs)
    logs[0].start_writing()


def test_after_an_error_of_the_file_system_each_stream_is_asked_once(
    tmp_path: Path, logs: list[StreamLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another group has had the error, which may have been meant for these."""
    file_system = FileSystem(tmp_path)
    file_system.errors = 1
    fdatasync, synced = os.fdatasync, []

    def watched(fd: int) -> None:
        synced.append(fd)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", watched)
    assert sync_together(logs, file_system) == [None] * 3
    assert len(synced) == 6
    for log in logs:
        append(log, b"more")
    assert sync_together(logs, file_system) == [None] * 3
    assert len(synced) == (6 if file_system.flushes_always else 7)
    assert [log.synced_seq for log in logs] == [2] * 3
    close(logs)


@pytest.mark.parametrize("flushes", [True, False])
def test_a_file_system_that_may_not_flush_the_disk_is_helped(
    tmp_path: Path, logs: list[StreamLog], monkeypatch: pytest.MonkeyPatch, flushes: bool
) -> None:
    monkeypatch.setattr(FileSystem, "flushes_always", flushes)
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    assert sync_together(logs, FileSystem(tmp_path)) == [None] * 3
    assert len(synced) == (0 if flushes else 1)
    assert [log.synced_seq for log in logs] == [1] * 3
    close(logs)


@pytest.mark.parametrize("flushes", [True, False])
def test_a_single_stream_takes_one_sync_of_the_file_system_or_two_of_its_files(
    tmp_path: Path, logs: list[StreamLog], monkeypatch: pytest.MonkeyPatch, flushes: bool
) -> None:
    monkeypatch.setattr(FileSystem, "flushes_always", flushes)
    fdatasync, synced = os.fdatasync, []

    def watched(fd: int) -> None:
        synced.append(fd)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", watched)
    assert sync_together(logs[:1], FileSystem(tmp_path)) == [None]
    assert len(synced) == (0 if flushes else 2)
    assert [log.synced_seq for log in logs] == [1, 0, 0]
    close(logs)


def test_a_disk_that_cannot_write_its_cache_is_the_error_of_one_and_the_others_are_synced_by_themselves(
    tmp_path: Path, logs: list[StreamLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "flushes_always", False)
    fdatasync, calls = os.fdatasync, count()

    def fails_once(fd: int) -> None:
        if next(calls) == 0:
            raise OSError(errno.EIO, "broken disk")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", fails_once)
    outcomes = sync_together(logs, FileSystem(tmp_path))
    assert [outcome is None for outcome in outcomes] == [False, True, True]
    assert [log.sync_failed_seq for log in logs] == [0, None, None]
    assert [log.synced_seq for log in logs] == [0, 1, 1]
    close(logs)


def test_a_log_that_is_closed_meanwhile_does_not_stand_for_the_disk(
    tmp_path: Path, logs: list[StreamLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSystem, "flushes_always", False)

    class Closing(FileSystem):
        def sync(self) -> None:
            super().sync()
            logs[0].close()

    fdatasync, synced = os.fdatasync, []

    def watched(fd: int) -> None:
        synced.append(os.fstat(fd).st_ino)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", watched)
    assert sync_together(logs, Closing(tmp_path)) == [None] * 3
    assert synced == [os.stat(tmp_path / "s1.content").st_ino]
    assert [log.synced_seq for log in logs] == [0, 1, 1]
    close(logs[1:])


def test_an_error_of_the_file_system_is_looked_for_in_each_stream(
    tmp_path: Path, logs: list[StreamLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    fdatasync, bad = os.fdatasync, os.stat(tmp_path / "s2.content").st_ino

    def fails(fd: int) -> None:
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, "broken disk")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", fails)
    outcomes = sync_together(logs, Broken(tmp_path))
    assert [outcome is None for outcome in outcomes] == [True, True, False]
    monkeypatch.undo()
    assert sync_together(logs, FileSystem(tmp_path)) == [None] * 3, "the marked one is written again by itself"
    assert [log.synced_seq for log in logs] == [1] * 3
    close(logs)
