"""Deleting files: a process that is killed at any step leaves the stream, or a deletion that the next one finishes."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from tailrace.shard import deletion
from tailrace.shard.catalog import list_shard
from tailrace.shard.deletion import (
    FORGOTTEN_FILE,
    DeletedStream,
    delete_stream,
    deleted_path,
    finish_deletion,
    forget_record,
    read_deleted,
    read_forgotten,
)
from tailrace.shard.epochs import EpochStart
from tailrace.shard.errors import MetaDamaged, StreamCut, StreamMissing
from tailrace.shard.frame import pack_frame
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import read_meta
from tailrace.shard.names import file_stem
from tailrace.shard.reader import StreamReader

NAMES = ("s", "$cursor/s", "s/$dead", "other")
TERMS = (EpochStart(1, 0, "node-1"), EpochStart(3, 7, "node-2"))
GONE = DeletedStream("s", 4, "node-1", tuple(map(file_stem, NAMES[:3])), TERMS)


def make(path: Path) -> None:
    for name in NAMES:
        with_messages = StreamLog.open(path, name, create=True, boot_id="boot")
        with_messages.append(bytearray(pack_frame(b"x")), 1, 1, 1)
        with_messages.close()
    (path / f"{file_stem('s')}.producers").write_bytes(b"whatever")


def stays(path: Path) -> list[str]:
    listing = list_shard(path)
    assert listing.strays == []
    return sorted(listing.names)


def killed_at(path: Path, step: int) -> bool:
    """Deletes in another process, which is killed after `step` steps; returns whether it was."""
    child = os.fork()
    if not child:
        left = itertools.count(step, -1)
        deletion.step = lambda: None if next(left) else os.kill(os.getpid(), signal.SIGKILL)
        delete_stream(path, GONE)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_kill_at_any_step_leaves_the_stream_or_nothing(tmp_path: Path) -> None:
    for step in itertools.count():
        path = tmp_path / str(step)
        path.mkdir()
        make(path)
        killed = killed_at(path, step)
        assert stays(path) == ["other"], "from the first step on"
        found = read_deleted(deleted_path(path, "s"))
        if found.stems:
            finish_deletion(path, found)
        assert stays(path) == ["other"]
        assert {file.name for file in path.iterdir()} == {"other.content", "other.indx", "s.deleted", "s.meta"}
        assert read_deleted(deleted_path(path, "s")) == GONE._replace(stems=())
        assert (read_meta(path, "s").epoch, read_meta(path, "s").history) == (
            4,
            ((4, 0, "node-1"),),
        )
        if not killed:
            assert step > 15
            return


def test_one_that_cannot_begin_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path)

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(deletion, "replace_file", full)
    with pytest.raises(OSError, match="No space"):
        delete_stream(tmp_path, GONE)
    assert stays(tmp_path) == sorted(NAMES)


def test_readers_find_that_it_is_gone(tmp_path: Path) -> None:
    make(tmp_path)
    with StreamReader.open(tmp_path, "s", boot_id="boot") as reader:
        assert reader.next_seq() == 1
        delete_stream(tmp_path, GONE)
        assert not reader.is_current
        with pytest.raises(StreamCut):
            reader.next_seq()
    with pytest.raises(StreamMissing):
        StreamReader.open(tmp_path, "s", boot_id="boot")


def test_of_a_copy_nothing_is_remembered(tmp_path: Path) -> None:
    make(tmp_path)
    delete_stream(tmp_path, GONE._replace(epoch=0, master=""))
    assert {file.name for file in tmp_path.iterdir()} == {"other.content", "other.indx"}


@pytest.mark.parametrize("data", [b"", b"x" * 40])
def test_what_is_damaged_deletes_nothing(tmp_path: Path, data: bytes) -> None:
    make(tmp_path)
    deleted_path(tmp_path, "s").write_bytes(data)
    with pytest.raises(MetaDamaged):
        read_deleted(deleted_path(tmp_path, "s"))
    assert stays(tmp_path) == sorted(NAMES)


def record(path: Path, name: str, epoch: int, master: str = "node-1") -> DeletedStream:
    deleted = DeletedStream(name, epoch, master, ())
    delete_stream(path, deleted)
    return deleted


def forgets_until(path: Path, step: int, *forgotten: DeletedStream) -> bool:
    """Forgets records in another process, which is killed after `step` steps; returns whether it was."""
    child = os.fork()
    if not child:
        left = itertools.count(step, -1)
        deletion.step = lambda: None if next(left) else os.kill(os.getpid(), signal.SIGKILL)
        for each in forgotten:
            forget_record(path, each)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_forgotten_record_leaves_its_term_also_if_it_is_cut_short(tmp_path: Path) -> None:
    for step in itertools.count():
        path = tmp_path / str(step)
        path.mkdir()
        killed = forgets_until(path, step, record(path, "early", 7), record(path, "late", 5))
        assert read_forgotten(path) == 7, "it is written first"
        assert stays(path) == []
        if not killed:
            assert [file.name for file in path.iterdir()] == [FORGOTTEN_FILE] and step > 2
            return


def test_a_record_of_a_name_that_is_used_again_takes_nothing_of_the_stream(tmp_path: Path) -> None:
    forgotten = record(tmp_path, "s", 4)
    make(tmp_path)
    forget_record(tmp_path, forgotten)
    assert read_meta(tmp_path, "s").epoch == 4 and stays(tmp_path) == sorted(NAMES)


def test_what_is_known_of_forgotten_streams_may_be_damaged(tmp_path: Path) -> None:
    assert read_forgotten(tmp_path) == 0
    (tmp_path / FORGOTTEN_FILE).write_bytes(b"something else")
    assert read_forgotten(tmp_path) == 0
    forget_record(tmp_path, record(tmp_path, "s", 3))
    assert read_forgotten(tmp_path) == 3
