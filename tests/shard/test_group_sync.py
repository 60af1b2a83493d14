from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shard.files import FileSystem
from shard.group_sync import sync_together
from shard.log import StreamLog
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
    assert len(os.listdir("/proc/self/fd")) == descriptors - 4
    close(logs)


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
    assert len(synced) == (6 if file_system.flushes_always else 8)
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
    assert len(synced) == (0 if flushes else 2)
    assert [log.synced_seq for log in logs] == [1] * 3
    close(logs)


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
