"""Cutting the tail off a stream: the messages are kept, readers are notified, and no crash loses both."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.shard.check import check_stream
from tailrace.shard.diverged import DivergedTail, SetAsideTail, keep_diverged
from tailrace.shard.errors import StorageFull, StreamCut, StreamMissing, TailsDamaged
from tailrace.shard.frame import HEADER_BYTES, unpack_header
from tailrace.shard.header import HEADER_PAGE_BYTES, INDEX_CUTS, INDEX_NEXT_SEQ, tagged
from tailrace.shard.index import IndexRun
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import StreamPaths
from tests.shard.disk import Disk, Killed
from tests.shard.helpers import (
    BOOT,
    LATER_BOOT,
    NAME,
    append,
    batch,
    flip,
    list_tails,
    messages_of,
    open_log,
    overwrite,
    payloads,
    read_messages,
)
from tests.thorough import only_thorough

stamp = load("tailrace.shard.frame_cy").stamp
OLD = [b"message %d" % i for i in range(10)]
NEW = [b"another %d" % i for i in range(10)]
DIVERGED = f"{NAME}.diverged"


def begun(directory: Path, *, synced: int = 10, trimmed: int = 0) -> StreamLog:
    """A log of ten messages, open, `synced` of them known to be on the disk."""
    log = open_log(directory)
    for i, payload in enumerate(OLD):
        append(log, payload, at=1_000 + i, epoch=1 + i // 8)
        if i + 1 == synced:
            log.sync()
            os.fdatasync(log._index_fd)  # and with it its word
    log.trim(trimmed)
    return log


def others(seq: int) -> bytearray:
    """What another master has from `seq` on; each frame as long as the one whose place it takes."""
    frames = batch(NEW[seq:])
    stamp(frames, seq, 2_000, 3, 0)
    return frames


def tails(directory: Path) -> list[DivergedTail]:
    return list_tails(directory / DIVERGED, NAME)


def payloads_in(directory: Path, kept: DivergedTail) -> list[bytes]:
    """The payloads of a tail, its frames verified."""
    data = (directory / DIVERGED).read_bytes()[kept.offset : kept.offset + kept.tail.nbytes]
    frames = load("tailrace.shard.frame_cy").parse(data, 0, len(data), True)
    assert [frame[0] for frame in frames] == list(range(kept.tail.first_seq, kept.tail.next_seq))
    return [frame[5] for frame in frames]


def open_reader(directory: Path) -> StreamReader:
    return StreamReader.open(directory, NAME, boot_id=BOOT)


def test_a_tail_is_set_aside_and_the_stream_goes_on_without_it(tmp_path: Path) -> None:
    log = begun(tmp_path)
    kept = log.set_aside(6)
    assert kept == tails(tmp_path)[0]
    assert kept.tail == SetAsideTail(6, 10, 1, 2, 1_006, 1_009, 4 * 41)
    assert payloads_in(tmp_path, kept) == OLD[6:]
    assert (log.first_seq, log.next_seq, log.synced_seq) == (0, 6, 6)
    assert (log.last_timestamp_us, log.last_epoch) == (1_005, 1)
    assert (tmp_path / f"{NAME}.content").stat().st_size == log.end_offset == HEADER_PAGE_BYTES + 6 * 41
    assert payloads(tmp_path) == OLD[:6]
    assert log.take(others(6)) == 4
    log.close()
    assert payloads(tmp_path) == OLD[:6] + NEW[6:]
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok
    log = open_log(tmp_path)
    assert (log.next_seq, log.last_epoch) == (10, 3)
    log.close()


def test_several_tails_are_kept(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.set_aside(8)
    log.take(others(8))
    log.set_aside(9)
    log.set_aside(2)
    log.close()
    assert [(kept.number, kept.tail.first_seq, kept.tail.next_seq) for kept in tails(tmp_path)] == [
        (1, 8, 10),
        (2, 9, 10),
        (3, 2, 9),
    ]
    assert [payloads_in(tmp_path, kept) for kept in tails(tmp_path)] == [OLD[8:], NEW[9:], [*OLD[2:8], NEW[8]]]
    assert payloads(tmp_path) == OLD[:2]


def test_nothing_is_done_where_there_is_nothing(tmp_path: Path) -> None:
    log = begun(tmp_path)
    reader = open_reader(tmp_path)
    assert log.set_aside(10) is None
    assert reader.is_current
    for seq in (11, -1):
        with pytest.raises(ValueError, match=f"cannot end before {seq}: its next message is 10"):
            log.set_aside(seq)
    log.close()
    with pytest.raises(ValueError, match="cannot end before 5"):
        log.set_aside(5)
    reader.close()
    assert not (tmp_path / DIVERGED).exists()


@pytest.mark.parametrize(("trimmed", "seq"), [(0, 0), (4, 4), (4, 1), (4, 0)])
def test_all_that_is_kept_may_be_set_aside(tmp_path: Path, trimmed: int, seq: int) -> None:
    """No remaining message shows the next seq: the stream is made anew, beginning there."""
    log = begun(tmp_path, trimmed=trimmed)
    log.punch(trimmed)
    kept = log.set_aside(seq)
    assert kept is not None
    assert payloads_in(tmp_path, kept) == OLD[trimmed:]
    assert (log.first_seq, log.next_seq, log.last_timestamp_us, log.last_epoch) == (seq, seq, 0, 0)
    log.close()
    log = open_log(tmp_path)
    assert (log.first_seq, log.next_seq) == (seq, seq)
    assert log.take(others(seq)) == 10 - seq
    log.close()
    assert payloads(tmp_path) == NEW[seq:]
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok
    assert not list(tmp_path.glob("*.new"))


def test_a_stream_without_messages_may_begin_anywhere(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    reader = open_reader(tmp_path)
    log.begin_at(0)
    assert reader.is_current, "it does begin there"
    log.begin_at(7)
    with pytest.raises(StreamCut):
        reader.next_seq()
    reader.close()
    assert (log.first_seq, log.next_seq) == (7, 7)
    assert log.take(others(7)) == 3
    with pytest.raises(ValueError, match="cannot begin at 20: it keeps messages from 7"):
        log.begin_at(20)
    log.trim(10)
    log.begin_at(20)
    log.close()
    log = open_log(tmp_path)
    assert (log.first_seq, log.next_seq) == (20, 20)
    log.begin_at(5)
    assert log.take(others(5)) == 5
    log.close()
    for seq in (-1, 2**48):
        with pytest.raises(ValueError, match="cannot begin at"):
            log.begin_at(seq)
    assert payloads(tmp_path) == NEW[5:]
    assert not (tmp_path / DIVERGED).exists()
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


def test_the_cut_log_grows_as_any_other(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 500)
    log.set_aside(3)
    for _ in range(4):
        append(log, *[b"y" * 1_000] * 100)
    log.set_aside(300)
    append(log, b"z")
    log.close()
    assert payloads(tmp_path) == [b"x" * 1_000] * 3 + [b"y" * 1_000] * 297 + [b"z"]
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


# --- other threads


def test_a_sync_that_began_before_the_cut_says_nothing_of_what_came_after(tmp_path: Path) -> None:
    log = begun(tmp_path, synced=0)
    sync = log.begin_sync()
    assert sync is not None
    log.set_aside(2)
    log.take(others(2))
    log.finish_sync(sync)
    sync.close()
    assert (log.synced_seq, log.next_seq) == (2, 10)
    log.close()
    assert check_stream(tmp_path, NAME, boot_id=BOOT).synced_seq == 2


@pytest.mark.parametrize("change", [lambda log: append(log, b"more"), lambda log: log.close()], ids=["append", "close"])
def test_a_log_that_changed_meanwhile_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[StreamLog], None]
) -> None:
    log = begun(tmp_path)

    def changing(paths: StreamPaths, content_fd: int, offset: int, tail: SetAsideTail) -> DivergedTail:
        change(log)
        return keep_diverged(paths, content_fd, offset, tail)

    monkeypatch.setattr("tailrace.shard.diverged.keep_diverged", changing)
    with pytest.raises(ValueError, match="was changed while its tail was set aside: it is not cut"):
        log.set_aside(6)
    log.close()
    assert payloads(tmp_path)[:10] == OLD


def test_a_punch_that_began_before_the_files_were_replaced_makes_no_hole_in_the_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 300)
    log.trim(250)
    flush = StreamLog._flush_header

    def replaced(self: StreamLog) -> bool:
        flushed = flush(self)
        self.set_aside(100)
        append(self, *[b"y" * 1_000] * 300)
        return flushed

    monkeypatch.setattr(StreamLog, "_flush_header", replaced)
    assert log.punch(250) == 0
    log.close()
    assert payloads(tmp_path) == [b"y" * 1_000] * 300


# --- readers


def test_a_reader_that_was_open_gives_nothing_any_more_and_a_new_one_gives_what_is_there(tmp_path: Path) -> None:
    log = begun(tmp_path)
    reader = open_reader(tmp_path)
    assert (reader.next_seq(), reader.is_current) == (10, True)
    log.set_aside(6)
    log.take(others(6))
    assert not reader.is_current
    run = IndexRun(0, HEADER_PAGE_BYTES, 10, HEADER_PAGE_BYTES + 410)
    for call in (
        reader.next_seq,
        lambda: reader.entry(2),
        lambda: reader.entry(8),
        lambda: reader.offset_of(8),
        lambda: reader.offset_of(10),
        lambda: reader.seq_at(1_005),
        lambda: reader.cut(run, 100),
        lambda: reader.read_into(memoryview(bytearray(10)), HEADER_PAGE_BYTES),
        lambda: reader.frame_crc(2),
        lambda: reader.epochs(),
    ):
        with pytest.raises(StreamCut, match="from message 6 on") as cut:
            call()
        assert cut.value.seq == 6
    reader.close()
    reader = open_reader(tmp_path)
    assert [message.payload for message in messages_of(reader)] == OLD[:6] + NEW[6:]
    assert reader.epochs() == ((1, 0, ""), (3, 6, ""))
    assert reader.frame_crc(6) == log.frame_crc(6) == unpack_header(others(6)).crc32c
    reader.close()
    log.close()


def test_a_reader_that_missed_two_cuts_knows_nothing_of_where(tmp_path: Path) -> None:
    log = begun(tmp_path)
    reader = open_reader(tmp_path)
    log.set_aside(6)
    log.set_aside(5)
    with pytest.raises(StreamCut) as cut:
        reader.next_seq()
    assert cut.value.seq == 0
    reader.close()
    log.close()


def test_a_reader_of_files_that_were_replaced_is_told_too(tmp_path: Path) -> None:
    log = begun(tmp_path, trimmed=4)
    reader = open_reader(tmp_path)
    log.set_aside(4)
    log.take(others(4))
    with pytest.raises(StreamCut) as cut:
        reader.next_seq()
    assert cut.value.seq == 4
    reader.close()
    log.trim(10)
    reader = open_reader(tmp_path)
    log.begin_at(50)
    with pytest.raises(StreamCut) as cut:
        reader.next_seq()
    assert cut.value.seq == 10, "who waited at the end has missed nothing but what was never there"
    reader.close()
    log.close()


class Moments(Disk):
    """Calls `look` before every store of a word and every system call that changes a file."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
        super().__init__(directory, patch)
        self.look = look

    def step(self, what: str) -> None:
        super().step(what)
        self.look()


@pytest.mark.parametrize("seq", [6, 0])
def test_a_reader_never_gets_anything_mixed_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seq: int
) -> None:
    """Readers that were opened before, and at every moment of, a cut and later appends."""
    log = begun(tmp_path)
    readers = [open_reader(tmp_path)]
    whole = (OLD, OLD[:seq], OLD[:seq] + NEW[seq:])

    def look() -> None:
        try:
            readers.append(open_reader(tmp_path))
        except StreamMissing:
            assert seq == 0, "only while files are replaced"
        for reader in readers:
            try:
                assert [message.payload for message in messages_of(reader)] in whole
            except StreamCut as cut:
                assert cut.seq <= seq
                assert not reader.is_current

    with monkeypatch.context() as patch:
        moments = Moments(tmp_path, patch, look)
        moments.watch(log)
        log.set_aside(seq)
        look()
        log.take(others(seq))
        look()
        log.close()
        assert len(moments.steps) > 10
    assert readers[-1].is_current
    assert [message.payload for message in messages_of(readers[-1])] == OLD[:seq] + NEW[seq:]
    assert not readers[0].is_current
    for reader in readers:
        reader.close()


READS: dict[str, Callable[[StreamReader], object]] = {
    "read_into": lambda reader: reader.read_into(memoryview(bytearray(41)), HEADER_PAGE_BYTES + 8 * 41),
    "entry": lambda reader: reader.entry(8),
    "offset_of": lambda reader: reader.offset_of(8),
    "offset_of the end": lambda reader: reader.offset_of(10),
    "seq_at": lambda reader: reader.seq_at(1_008),
    "cut": lambda reader: reader.cut(IndexRun(7, HEADER_PAGE_BYTES + 7 * 41, 10, HEADER_PAGE_BYTES + 410), 50),
    "frame_crc": lambda reader: reader.frame_crc(8),
}


@pytest.mark.parametrize("call", READS.values(), ids=READS.keys())
def test_what_changes_while_it_is_read_is_not_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[StreamReader], object]
) -> None:
    log = begun(tmp_path)
    reader = open_reader(tmp_path)
    pread, preadv = os.pread, os.preadv

    def cut_then(read: Callable[..., object]) -> Callable[..., object]:
        def reading(fd: int, *args: object) -> object:
            if fd in (reader.content_fd, reader._index_fd) and log.next_seq == 10 and log.last_epoch == 2:
                log.set_aside(6)
                log.take(others(6))
            return read(fd, *args)

        return reading

    monkeypatch.setattr(os, "pread", cut_then(pread))
    monkeypatch.setattr(os, "preadv", cut_then(preadv))
    with pytest.raises(StreamCut):
        call(reader)
    assert log.last_epoch == 3
    reader.close()
    log.close()


# --- impossible requests


def test_a_full_disk_leaves_the_stream_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = begun(tmp_path)
    log.set_aside(9)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reader = open_reader(tmp_path)
    pwrite = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if b"message 5" in bytes(data):
            pwrite(fd, data[:50], offset)
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(fd, data, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StorageFull, match=r"no space for 461 more bytes of stream 'stream' in .*\.diverged"):
            log.set_aside(4)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert reader.is_current
    reader.close()
    log.set_aside(4)
    assert log.next_seq == 4
    log.close()
    assert len(tails(tmp_path)) == 2


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_full_disk_lets_no_files_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    log = begun(tmp_path)
    pwrite, fsync = os.pwrite, os.fsync

    def is_new(fd: int) -> bool:
        return os.readlink(f"/proc/self/fd/{fd}").endswith(".indx.new")

    def full_write(fd: int, data: bytes, offset: int) -> int:
        if is_new(fd):
            raise OSError(errno.ENOSPC, "no space")
        return pwrite(fd, data, offset)

    def full_sync(fd: int) -> None:
        if is_new(fd):
            raise OSError(errno.ENOSPC, "no space")
        fsync(fd)

    with monkeypatch.context() as patch:
        if failing == "write":
            patch.setattr(os, "pwrite", full_write)
        else:
            patch.setattr(os, "fsync", full_sync)
        with pytest.raises(StorageFull):
            log.set_aside(0)
    assert payloads(tmp_path) == OLD
    assert not list(tmp_path.glob("*.new"))
    log.set_aside(0)
    assert append(log, b"first") == 0
    log.close()
    assert [kept.tail[:2] for kept in tails(tmp_path)] == [(0, 10)], "what was kept in vain was not kept twice"


@pytest.mark.parametrize(("failing", "seq"), [("fdatasync", 6), ("ftruncate", 6), ("rename", 0)])
def test_a_disk_that_gives_up_in_the_middle_closes_the_log_and_opening_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, seq: int
) -> None:
    log = begun(tmp_path)
    call, calls = getattr(os, failing), []

    def broken(what: object, *args: object) -> None:
        calls.append(what)
        first = len(calls) == 1 if failing == "rename" else "diverged" in os.readlink(f"/proc/self/fd/{what}")
        if not first:
            raise OSError(errno.EIO, "broken disk")
        call(what, *args)

    descriptors = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, failing, broken)
        with pytest.raises(OSError, match="broken disk"):
            log.set_aside(seq)
    assert log.closed
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    with pytest.raises((OSError, ValueError)):
        append(log, b"late")
    log = open_log(tmp_path)
    assert log.next_seq == seq
    log.take(others(seq))
    log.close()
    assert payloads(tmp_path) == OLD[:seq] + NEW[seq:]
    assert payloads_in(tmp_path, tails(tmp_path)[0]) == OLD[seq:]


def test_nothing_is_cut_while_the_file_of_tails_cannot_be_read(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.set_aside(8)
    flip(tmp_path / DIVERGED, 30)
    with pytest.raises(TailsDamaged, match=r"stream\.diverged at byte 0: the title of a tail is missing"):
        log.set_aside(6)
    assert log.next_seq == 8
    (tmp_path / DIVERGED).rename(tmp_path / "elsewhere")
    log.set_aside(6)
    log.close()
    assert payloads(tmp_path) == OLD[:6]


# --- crashes


def outcome(directory: Path, seq: int, *, boot: str, synced: int = 10) -> int:
    """Open what a crash left: all that was on the disk is in the stream, or was set aside. Gives next_seq."""
    log = open_log(directory, boot=boot, create=False)
    next_seq = log.next_seq
    log.close()
    found = payloads(directory, boot=boot)
    assert found == OLD[log.first_seq : next_seq]
    if next_seq < synced:
        assert next_seq == seq
        assert payloads_in(directory, tails(directory)[-1])[: synced - seq] == OLD[seq:synced]
    report = check_stream(directory, NAME, boot_id=boot)
    assert report.ok, report.faults
    return next_seq


def redone(directory: Path, seq: int, *, boot: str) -> None:
    """After the crash it is done again, and then it is as if it had been done once."""
    log = open_log(directory, boot=boot, create=False)
    messages = log.next_seq
    log.set_aside(seq)
    log.take(others(seq))
    log.close()
    assert payloads(directory, boot=boot) == OLD[:seq] + NEW[seq:]
    ends = [kept.tail[:2] for kept in tails(directory)]
    assert ends[0] == (seq, 10) or messages < 10, ends
    assert len(ends) == 1 or messages < 10, ends


def steps_of(tmp_path: Path, patch: pytest.MonkeyPatch, seq: int, *, synced: int, die_before: int) -> Disk:
    """Set aside from `seq` on, dying before that step; the descriptors go, as the process does."""
    tmp_path.mkdir(exist_ok=True)
    disk = Disk(tmp_path, patch)
    log = begun(tmp_path, synced=synced)
    disk.watch(log)
    disk.steps.clear()
    disk.die_before = die_before
    try:
        log.set_aside(seq)
        disk.finished = True
    except Killed:
        pass
    patch.undo()
    log.abandon()
    return disk


@pytest.mark.parametrize("seq", [6, 0])
@pytest.mark.parametrize("boot", [BOOT, LATER_BOOT])
def test_a_process_killed_at_any_step(tmp_path: Path, seq: int, boot: str) -> None:
    ends, step = [], 0
    while True:
        directory = tmp_path / str(step)
        directory.mkdir()
        open_log(directory).close()
        with open_reader(directory) as reader, pytest.MonkeyPatch.context() as patch:
            disk = steps_of(directory, patch, seq, synced=10, die_before=step)
            ends.append(outcome(directory, seq, boot=boot))
            redone(directory, seq, boot=boot)
            with pytest.raises(StreamCut):
                reader.next_seq()
        if disk.finished:
            break
        step += 1
    assert step > 15
    assert set(ends) == {10, seq}
    assert ends == sorted(ends, reverse=True), "whole until it is cut"


@pytest.mark.few(1)
@pytest.mark.parametrize(("synced", "seq"), [(3, 6), (8, 0), *only_thorough((3, 0), (8, 6), (10, 0), (10, 6))])
def test_a_machine_that_goes_down_at_any_step(tmp_path: Path, seq: int, synced: int) -> None:
    step, count, done = 0, 0, False
    while not done:
        with pytest.MonkeyPatch.context() as patch:
            disk = steps_of(tmp_path / str(step), patch, seq, synced=synced, die_before=step)
        done = disk.finished
        for left in disk.left_by_the_machine():
            count += 1
            directory = tmp_path / f"{step}-{count}"
            directory.mkdir()
            for name, data in left.items():
                (directory / name).write_bytes(data)
            next_seq = outcome(directory, seq, boot=LATER_BOOT, synced=synced)
            assert next_seq == seq or not done, "what was promised is on the disk"
        step += 1
    assert count > 30


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("seq", [6, 0])
def test_after_the_cut_no_crash_brings_the_old_tail_back(tmp_path: Path, seq: int, synced: bool) -> None:
    """The other master's frames are appended, and not all of them may reach the disk."""
    (tmp_path / "made").mkdir()
    log = begun(tmp_path / "made", synced=10)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(tmp_path / "made", patch)
        disk.sync_all()
        log.set_aside(seq)
        log.take(others(seq))
        if synced:
            log.sync()
        left = list(disk.left_by_the_machine())
    log.abandon()
    for i, files in enumerate(left):
        directory = tmp_path / str(i)
        directory.mkdir()
        for name, data in files.items():
            (directory / name).write_bytes(data)
        log = open_log(directory, boot=LATER_BOOT, create=False)
        next_seq = log.next_seq
        log.close()
        assert payloads(directory, boot=LATER_BOOT) == (OLD[:seq] + NEW[seq:])[:next_seq]
        assert next_seq >= (10 if synced else seq)


def test_a_cut_that_a_kill_left_undone_is_marked_as_done(tmp_path: Path) -> None:
    """The first word was stored, no other: earlier readers are notified, and the stream is whole."""
    log = begun(tmp_path)
    log.abandon()
    reader = open_reader(tmp_path)
    overwrite(tmp_path / f"{NAME}.indx", 8 * INDEX_CUTS, tagged(1).to_bytes(8, "little"))
    meanwhile = open_reader(tmp_path)
    with pytest.raises(StreamCut) as cut:
        reader.next_seq()
    assert cut.value.seq == 0, "nobody knows yet"
    assert meanwhile.next_seq() == 10
    log = open_log(tmp_path)
    assert log.next_seq == 10
    for old in (reader, meanwhile):
        with pytest.raises(StreamCut):
            old.next_seq()
        old.close()
    assert int.from_bytes((tmp_path / f"{NAME}.indx").read_bytes()[8 * INDEX_CUTS :][:8], "little") == tagged(2)
    log.close()


def test_a_cut_that_a_kill_left_in_the_files_is_finished_at_opening(tmp_path: Path) -> None:
    log = begun(tmp_path)
    log.abandon()
    overwrite(tmp_path / f"{NAME}.indx", 8 * INDEX_CUTS, tagged(1).to_bytes(8, "little"))
    overwrite(tmp_path / f"{NAME}.indx", 8 * (INDEX_NEXT_SEQ + 1), tagged(6).to_bytes(8, "little"))
    overwrite(tmp_path / f"{NAME}.indx", 8 * INDEX_NEXT_SEQ, tagged(6).to_bytes(8, "little"))
    log = open_log(tmp_path)
    assert (log.next_seq, log.last_epoch) == (6, 1)
    assert (tmp_path / f"{NAME}.content").stat().st_size == HEADER_PAGE_BYTES + 6 * 41
    log.close()


def test_files_that_were_half_replaced_are_a_stream_that_its_owner_finishes(tmp_path: Path) -> None:
    log = begun(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", half_of(os.rename))
        with pytest.raises(Killed):
            log.set_aside(0)
    log.abandon()
    with pytest.raises(StreamMissing):
        open_reader(tmp_path)
    report = check_stream(tmp_path, NAME, boot_id=BOOT)
    assert report.ok
    assert report.notes == ("its messages were just set aside; it has none until its owner opens it",)
    log = open_log(tmp_path, create=False)
    assert (log.first_seq, log.next_seq) == (0, 0)
    append(log, b"first")
    log.close()
    assert payloads(tmp_path) == [b"first"]
    assert read_messages(tmp_path)[0].seq == 0


def half_of(rename: Callable[[str, str], None]) -> Callable[[str, str], None]:
    def renamed(old: str, new: str) -> None:
        if new.endswith(".indx"):
            raise Killed
        rename(old, new)

    return renamed


def test_frames_keep_their_size() -> None:
    """What the tests above count with."""
    assert {len(frame) + HEADER_BYTES for frame in OLD + NEW} == {41}
