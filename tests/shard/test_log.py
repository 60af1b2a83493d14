from __future__ import annotations

import errno
import gc
import os
import threading
import weakref
from pathlib import Path

import pytest

from tailrace.shard import log as log_module
from tailrace.shard.check import check_stream
from tailrace.shard.errors import StorageFull, StreamMissing
from tailrace.shard.frame import IndexEntry, pack_frame
from tailrace.shard.growth import UNRESERVED_BYTES
from tailrace.shard.header import CONTENT_END_OFFSET, INDEX_NEXT_SEQ
from tailrace.shard.holes import FOLIO_MAX_BYTES
from tailrace.shard.log import StreamLog
from tailrace.shard.mend import rebuild_index
from tailrace.shard.names import InvalidName, file_stem
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import (
    BOOT,
    LATER_BOOT,
    NAME,
    append,
    batch,
    filled,
    open_log,
    overwrite,
    payloads,
    read_messages,
)


def size(directory: Path, suffix: str) -> int:
    return (directory / (NAME + suffix)).stat().st_size


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert append(log, b"one", at=1_000, epoch=1) == 0
    assert append(log, b"two", b"three", at=2_000, epoch=2) == 1
    assert (log.first_seq, log.next_seq, log.last_timestamp_us, log.end_offset) == (0, 3, 2_000, 4_096 + 107)
    assert read_messages(tmp_path) == [(0, 1_000, 1, b"one"), (1, 2_000, 2, b"two"), (2, 2_000, 2, b"three")]
    log.close()
    assert payloads(tmp_path) == [b"one", b"two", b"three"]


def test_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    log = open_log(tmp_path, create=False)
    assert append(log, b"more", at=5_000) == 3
    log.close()
    assert payloads(tmp_path) == [b"message 0", b"message 1", b"message 2", b"more"]


def test_timestamps_never_go_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one", at=2_000)
    append(log, b"two", at=1_000)
    log.close()
    log = open_log(tmp_path)
    append(log, b"three", at=500)
    log.close()
    assert [message.timestamp_us for message in read_messages(tmp_path)] == [2_000, 2_000, 2_000]


def test_timestamps_do_not_go_back_after_everything_was_trimmed_and_punched(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 300, at=7_000)
    log.trim(300)
    log.punch(300)
    log.close()
    log = open_log(tmp_path)
    assert (log.first_seq, log.next_seq, log.last_timestamp_us) == (300, 300, 7_000)
    append(log, b"after", at=1)
    log.close()
    assert read_messages(tmp_path) == [(300, 7_000, 1, b"after")]


def test_a_missing_stream_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StreamMissing, match="no stream 'stream'"):
        open_log(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []
    open_log(tmp_path).close()
    open_log(tmp_path, create=False).close()


def test_a_name_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidName):
        open_log(tmp_path, "a b")


def test_frames_that_are_not_whole_or_not_so_many_are_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(ValueError, match="2 frames for stream 'stream', where 3 were announced"):
        log.append(batch([b"one", b"two"]), 3, 1_000, 1)
    with pytest.raises(ValueError, match="the frame at byte 0"):
        log.append(batch([b"one"])[:-1], 1, 1_000, 1)
    assert append(log, b"good") == 0
    assert payloads(tmp_path) == [b"good"]
    log.close()


def test_a_batch_of_none_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(ValueError, match="0 frames"):
        log.append(bytearray(), 0, 1_000, 1)
    assert (log.next_seq, log.last_timestamp_us) == (0, 0)
    log.close()


def test_entries_and_times_of_the_open_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one", b"two", at=1_000)
    append(log, b"three", at=2_000)
    assert log.entry(1) == IndexEntry(1_000, 4_096 + 35, 35, 1)
    assert [log.seq_at(at) for at in (0, 1_000, 1_001, 2_000, 2_001)] == [0, 0, 2, 2, 3]
    assert [log.seq_at(1_000, skip) for skip in (1, 2, 9)] == [1, 2, 2]
    log.trim(1)
    with pytest.raises(ValueError, match="has messages 1 to 2, not 0"):
        log.entry(0)
    with pytest.raises(ValueError, match="not 3"):
        log.entry(3)
    assert log.seq_at(0) == 1
    log.close()


def test_a_batch_is_committed_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    pwrite, steps = os.pwrite, []

    class Words:
        """Stands in for a mapped header page."""

        def __init__(self, name: str, words: memoryview) -> None:
            self.name, self.words = name, words

        def __setitem__(self, place: int, word: int) -> None:
            steps.append(f"{self.name} word {place}")
            self.words[place] = word

    def written(fd: int, data: bytes, offset: int) -> int:
        steps.append("frames" if len(data) > 24 else "entries")
        return pwrite(fd, data, offset)

    monkeypatch.setattr(log_module, "_pwrite", written)
    monkeypatch.setattr(log, "_content_words", Words("content", log._content_words))
    monkeypatch.setattr(log, "_index_words", Words("index", log._index_words))
    append(log, b"one")
    assert steps == ["frames", "entries", f"content word {CONTENT_END_OFFSET}", f"index word {INDEX_NEXT_SEQ}"]
    log.close()


# --- space


def test_a_small_stream_reserves_nothing_and_a_closed_one_is_as_long_as_its_messages(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one")
    assert (size(tmp_path, ".content"), size(tmp_path, ".indx")) == (4_096 + 35, 4_096 + 24)
    append(log, b"x" * UNRESERVED_BYTES)
    assert size(tmp_path, ".content") > log.end_offset
    log.close()
    assert size(tmp_path, ".content") == log.end_offset
    assert size(tmp_path, ".indx") == 4_096 + 48
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stream.content", "stream.indx"]


@pytest.mark.parametrize("failing", ["content", "index", "reserve", "short"])
def test_a_full_disk_commits_nothing_and_the_log_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    log = open_log(tmp_path)
    append(log, b"before")
    pwrite, calls = os.pwrite, []

    def full(fd: int, data: bytes, offset: int) -> int:
        calls.append(fd)
        if failing == "short" and len(calls) == 1:
            return pwrite(fd, data[:10], offset)
        if len(calls) > (failing == "index"):
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(fd, data, offset)

    def no_room(fd: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        if failing == "reserve":
            patch.setattr(os, "posix_fallocate", no_room)
        else:
            patch.setattr(log_module, "_pwrite", full)
            patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageFull, match="no space for"):
            append(log, b"x" * 100_000)
    assert log.next_seq == 1
    assert payloads(tmp_path) == [b"before"]
    assert append(log, b"after") == 1
    log.close()
    assert payloads(tmp_path) == [b"before", b"after"]
    open_log(tmp_path).close()


def test_an_error_of_the_disk_is_raised_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)

    def broken(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.EIO, "broken disk")

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "_pwrite", broken)
        with pytest.raises(OSError, match="broken disk"):
            append(log, b"lost")
    assert append(log, b"kept") == 0
    log.close()
    assert payloads(tmp_path) == [b"kept"]


# --- trim and punch


def test_trim_moves_the_beginning(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    log = open_log(tmp_path)
    log.trim(4)
    log.trim(2)
    assert log.first_seq == 4
    with pytest.raises(ValueError, match="cannot trim stream 'stream' to 11"):
        log.trim(11)
    assert [message.seq for message in read_messages(tmp_path)] == [4, 5, 6, 7, 8, 9]
    log.trim(10)
    assert read_messages(tmp_path) == []
    log.close()
    log = open_log(tmp_path)
    assert (log.first_seq, log.next_seq) == (10, 10)
    log.close()


def test_punch_gives_whole_pages_back_and_offsets_stay(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(20):
        append(log, *[b"x" * 1_000] * 50)
    before = (tmp_path / "stream.content").stat().st_blocks
    entry = log.entry(900)
    assert log.punch(900) == 0, "nothing is trimmed"
    log.trim(900)
    freed = log.punch(500)
    assert 500_000 < freed < 600_000
    assert log.punch(500) == 0, "all of it is given back already"
    assert log.punch(1_000) > 350_000
    assert (tmp_path / "stream.content").stat().st_blocks < before / 2
    assert log.entry(900) == entry
    assert log.synced_seq == 1_000, "a hole needs what lies behind it on the disk"
    assert [message.seq for message in read_messages(tmp_path)] == list(range(900, 1_000))
    log.close()
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.first_seq, log.next_seq) == (900, 1_000)
    log.close()


def test_what_sockets_may_hold_of_a_stream_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hole ends within a piece of the kernel's cache; once nobody has it, the rest is given back too."""
    ends: list[tuple[bool, int]] = []
    log = open_log(tmp_path)
    content = os.stat(tmp_path / "stream.content").st_ino

    def punched(fd: int, _start: int, end: int) -> bool:
        ends.append((os.fstat(fd).st_ino == content, end))
        return True

    monkeypatch.setattr(log_module, "punch_hole", punched)
    for _ in range(70):
        append(log, *[b"x" * 1_000] * 100)
    log.trim(6_900)
    assert log.punch(1_000, sent=True) > 0 and [is_content for is_content, _end in ends] == [False]
    log.punch(6_900, sent=True)
    log.punch(6_900)
    whole, part = [end for is_content, end in ends if is_content]
    assert whole == 3 * FOLIO_MAX_BYTES
    assert part == log.entry(6_900).offset // 4_096 * 4_096 > whole
    log.close()


def test_the_message_that_stayed_when_all_was_trimmed_stays_until_the_next_trim(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 5_000] * 30)
    log.trim(30)
    append(log, b"y" * 9_000)
    assert log.punch(30) > 100_000
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok
    log.close()
    os.unlink(tmp_path / "stream.indx")
    assert rebuild_index(tmp_path, NAME, boot_id=BOOT).next_seq == 31
    log = open_log(tmp_path)
    append(log, b"z")
    log.trim(31)
    assert log.punch(31) > 0
    log.close()
    assert payloads(tmp_path) == [b"z"]
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


def test_a_hole_comes_after_what_recovery_needs_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames, entries, the new beginning, then the synced seq beyond the hole: the machine may go down at any point."""
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 300)
    log.trim(300)
    calls: list[str] = []
    files = {os.stat(tmp_path / f"stream{suffix}").st_ino: suffix for suffix in (".content", ".indx")}

    def file_of(fd: int) -> str:
        return files[os.fstat(fd).st_ino]

    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append(f"sync {file_of(fd)} with {log.synced_seq} synced"))

    def punched(fd: int, start: int, end: int) -> bool:
        calls.append(f"punch {file_of(fd)}")
        return True

    monkeypatch.setattr(log_module, "punch_hole", punched)
    assert log.punch(300) > 0
    assert calls == [
        "sync .content with 0 synced",
        "sync .indx with 0 synced",
        "sync .indx with 300 synced",
        "punch .content",
        "punch .indx",
    ]
    log.close()


def test_a_damaged_entry_keeps_the_space_and_ends_no_thread(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 300)
    log.trim(200)
    overwrite(tmp_path / "stream.indx", 4_096 + 24 * 200, bytes(24))
    assert log.punch(200) == 0
    log.close()


def test_what_is_trimmed_and_not_yet_punched_can_still_be_read(tmp_path: Path) -> None:
    """A reader that is behind the cut has the grace period to notice."""
    filled(tmp_path, 10)
    log = open_log(tmp_path)
    reader = StreamReader.open(tmp_path, NAME, boot_id=BOOT)
    offset = reader.entry(0).offset
    log.trim(9)
    buffer = bytearray(41)
    assert reader.read_into(memoryview(buffer), offset) == 41
    assert buffer[32:] == b"message 0"
    reader.close()
    log.close()


# --- sync


def test_sync_publishes_what_was_committed_before_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    append(log, b"one")
    fdatasync = os.fdatasync

    def appending(fd: int) -> None:
        append(log, b"meanwhile")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", appending)
    assert log.sync() == 1
    assert (log.synced_seq, log.next_seq) == (1, 3)
    log.close()


def test_sync_tolerates_a_close_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another thread, as the worker's helper does it; the descriptors are its own."""
    log = open_log(tmp_path)
    append(log, b"one")
    begun, closed = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def waiting(fd: int) -> None:
        begun.set()
        assert closed.wait(60)
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", waiting)
    thread = threading.Thread(target=log.sync)
    thread.start()
    assert begun.wait(60)
    log.close()
    closed.set()
    thread.join(60)
    assert not thread.is_alive()
    again = open_log(tmp_path)
    assert again.synced_seq == 0, "another owner may have cut the stream meanwhile: it syncs again"
    again.close()
    assert log.sync() == 0, "a closed log has nothing to sync"


def test_the_first_sync_puts_the_names_on_the_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(log_module, "sync_directory", synced.append)
    log = open_log(tmp_path)
    append(log, b"one")
    log.sync()
    append(log, b"two")
    log.sync()
    assert synced == [tmp_path]
    log.close()
    log = open_log(tmp_path)
    append(log, b"three")
    log.sync()
    assert synced == [tmp_path]
    log.close()


def test_closing_gives_everything_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    log = open_log(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    log.close()
    log.close()
    log.abandon()
    assert log.closed
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_log_is_in_no_reference_cycle(tmp_path: Path) -> None:
    class Watched(StreamLog):
        __slots__ = ("__weakref__",)

    gc.disable()
    try:
        log = Watched.open(tmp_path, NAME, create=True, boot_id=BOOT)
        append(log, b"one")
        log.close()
        watch = weakref.ref(log)
        del log
        assert watch() is None
    finally:
        gc.enable()


def test_an_append_after_closing_is_an_error_and_harms_no_file(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    with pytest.raises((OSError, ValueError)):
        append(log, b"late")
    assert payloads(tmp_path) == []


def test_a_stream_with_a_long_name(tmp_path: Path) -> None:
    name = "ü" * 100
    log = open_log(tmp_path, name)
    append(log, b"one")
    log.close()
    assert payloads(tmp_path, name) == [b"one"]
    assert (tmp_path / (file_stem(name) + ".content")).exists()


def test_the_largest_frame(tmp_path: Path) -> None:
    frame = bytearray(pack_frame(bytes(20 * 1024 * 1024)))
    log = open_log(tmp_path)
    log.append(frame, 1, 1_000, 1)
    log.close()
    log = open_log(tmp_path)
    assert log.next_seq == 1
    log.close()
