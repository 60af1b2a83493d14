"""A disk that is really full: a small tmpfs, mounted by root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.shard.check import check_stream
from tailrace.shard.errors import StorageFull, StreamCut
from tailrace.shard.log import StreamLog
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, batch, messages_of, open_log, payloads

DISK_BYTES = 2 * 1024 * 1024
BATCH = 50  # messages of 1,000 bytes


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB with a file of 512 KiB in it, "ballast"."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        (path / "ballast").write_bytes(bytes(512 * 1024))
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def fill(log: StreamLog, size: int = 1_000, count: int = BATCH) -> int:
    """Append until the disk is full; gives how many messages went in."""
    frames = batch([b"x" * size] * count)
    before = log.next_seq
    for _ in range(DISK_BYTES // (size * count) + 2):
        try:
            log.append(frames, count, 1_000, 1)
        except StorageFull:
            return log.next_seq - before
    raise AssertionError("the disk is larger than it should be")


def test_a_full_disk_is_an_error_readers_go_on_and_so_does_the_log_when_there_is_space(disk: Path) -> None:
    log = open_log(disk)
    reader = StreamReader.open(disk, NAME, boot_id=BOOT)
    written = fill(log)
    assert written > 1_000, "nearly all of the free space is used before it is an error"
    for _ in range(3):
        with pytest.raises(StorageFull, match=r"no space for .* bytes of stream 'stream'"):
            append(log, *[b"y" * 1_000] * BATCH)
    assert log.next_seq == reader.next_seq() == written
    assert len(messages_of(reader)) == written
    (disk / "ballast").unlink()
    assert append(log, *[b"y" * 1_000] * BATCH) == written
    assert len(messages_of(reader)) == written + BATCH
    log.close()
    reader.close()
    assert check_stream(disk, NAME, boot_id=BOOT).ok
    open_log(disk).close()


def test_the_last_pages_go_to_small_messages(disk: Path) -> None:
    log = open_log(disk)
    fill(log)
    fill(log, size=50, count=1)
    assert os.statvfs(disk).f_bavail <= 2
    log.close()
    assert check_stream(disk, NAME, boot_id=BOOT).ok


def test_a_stream_hands_back_what_it_reserved_in_vain(disk: Path) -> None:
    """Another stream gets the space that a step too large for the disk would have taken."""
    one, other = open_log(disk, "one"), open_log(disk, "other")
    append(one, *[b"x" * 1_000] * 500)
    append(other, b"first")
    with pytest.raises(StorageFull):
        append(one, b"x" * 1_200_000)
    assert append(other, b"x" * 300_000) == 1
    one.close()
    other.close()


def test_no_stream_is_made_on_a_full_disk_and_none_is_left_half_made(disk: Path) -> None:
    log = open_log(disk)
    fill(log)
    fill(log, size=50, count=1)
    with pytest.raises(StorageFull):
        for i in range(10):
            open_log(disk, f"new-{i}").close()
    for path in disk.glob("new-*"):
        assert path.stat().st_size == 4_096, "those that fitted are whole, and no others are there"
    log.close()


def test_a_process_that_dies_on_a_full_disk_leaves_a_stream_that_opens(disk: Path) -> None:
    log = open_log(disk)
    written = fill(log)
    log.abandon()
    log = open_log(disk)
    assert log.next_seq == written
    (disk / "ballast").unlink()
    append(log, b"after")
    log.close()
    assert payloads(disk)[-1] == b"after"


def test_a_tail_that_does_not_fit_twice_is_not_set_aside_and_one_that_does_is(disk: Path) -> None:
    log = open_log(disk)
    written = fill(log)
    reader = StreamReader.open(disk, NAME, boot_id=BOOT)
    for _ in range(3):
        with pytest.raises(StorageFull, match=r"more bytes of stream 'stream' in .*\.diverged"):
            log.set_aside(written - 200)
    assert (log.next_seq, reader.next_seq(), len(messages_of(reader))) == (written, written, written)
    assert (disk / "stream.diverged").stat().st_size == 0
    (disk / "ballast").unlink()
    kept = log.set_aside(written - 200)
    assert kept is not None
    assert kept.tail.nbytes == 200 * 1_032
    with pytest.raises(StreamCut):
        reader.next_seq()
    reader.close()
    append(log, *[b"y" * 1_000] * BATCH)
    log.close()
    assert len(payloads(disk)) == written - 200 + BATCH
    report = check_stream(disk, NAME, boot_id=BOOT)
    assert report.ok
    assert list(report.diverged) == [kept]


def fill_disk(disk: Path) -> Path:
    """Leave no space at all; gives the file that takes it."""
    path = disk / "more ballast"
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass
    return path


def test_what_is_torn_waits_in_its_place_until_there_is_space_for_it(disk: Path) -> None:
    log = open_log(disk)
    append(log, b"synced")
    log.sync()
    append(log, b"unsynced")
    log.abandon()
    content = disk / "stream.content"
    torn = b"torn " * 1_000
    with open(content, "ab") as file:
        file.write(torn)
    size = content.stat().st_size
    ballast = fill_disk(disk)
    for readable in (1, 2):
        log = open_log(disk, boot=LATER_BOOT)
        assert (log.next_seq, log.torn_bytes) == (2, 0)
        assert len(payloads(disk, boot=LATER_BOOT)) == readable, "what is synced"
        with pytest.raises(StorageFull):
            append(log, b"refused")
        with pytest.raises(StorageFull):
            log.set_aside(1)
        assert log.sync() == 2
        assert payloads(disk, boot=LATER_BOOT) == [b"synced", b"unsynced"]
        log.close()
        assert content.stat().st_size == size
    log = open_log(disk, boot=LATER_BOOT)
    ballast.unlink()
    assert append(log, b"after") == 2
    log.close()
    assert torn in (disk / "stream.torn").read_bytes()
    assert payloads(disk, boot=LATER_BOOT) == [b"synced", b"unsynced", b"after"]
    assert check_stream(disk, NAME, boot_id=LATER_BOOT).ok
    log = open_log(disk, boot=LATER_BOOT)
    assert not log.new_boot
    log.close()
