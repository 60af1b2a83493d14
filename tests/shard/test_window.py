"""Small batches through the mapped ends of the files: when, how much space they take, and that all else still holds."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tailrace.shard import window
from tailrace.shard.check import check_stream
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.reader import StreamReader
from tailrace.shard.window import (
    CONTENT_WINDOW_BYTES_MAX,
    CONTENT_WINDOW_BYTES_MIN,
    INDEX_WINDOW_BYTES_MAX,
    INDEX_WINDOW_BYTES_MIN,
    MAPPED_BYTES_MAX,
    SMALL_APPENDS_MIN,
    WINDOW_BATCH_BYTES_MAX,
    WINDOWS_MAX,
)
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, messages_of, open_log, payloads

LEAF = load("tailrace.shard.window_cy")
ROOT = Path(__file__).resolve().parents[2]
compiled_only = pytest.mark.skipif(not LEAF.is_compiled(), reason="nothing is mapped when interpreted")
# In a process of its own: faults end it if they are not handled.
FAULTS = """
import errno, os, sys
from pathlib import Path
from tailrace.shard import log as module
from tests.shard.helpers import append, open_log, payloads
log = open_log(Path(sys.argv[1]))
for number in range(20):
    append(log, b"message %d" % number)
assert log._ends.window._content is not None
broken = sys.argv[2]
os.truncate(log._pair.paths.content_file if broken == "content" else log._pair.paths.index_file, 4_096)
real = module._pwrite
def fail(*_args):
    raise OSError(errno.EIO, "broken disk")
module._pwrite = fail
try:
    append(log, b"refused")
except OSError as error:
    assert error.errno == errno.EIO
assert (log.next_seq, log._ends.window._content) == (20, None)
assert log._content_words[66] & (1 << 48) - 1 == log.end_offset
module._pwrite = real
for number in range(20):
    assert append(log, b"more") == 20 + number
assert log._ends.window._content is None
print("alive")
"""
# Appends until it is killed; each number it prints is of a message that it has appended.
OWNER = """
import os, sys
from pathlib import Path
from tests.shard.helpers import append, open_log
log = open_log(Path(sys.argv[1]))
while True:
    append(log, b"message %d " % log.next_seq * (log.next_seq % 9 + 1))
    os.write(1, b"%d\\n" % (log.next_seq - 1))
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StreamLog]:
    opened = open_log(tmp_path)
    yield opened
    opened.close()


def is_mapped(log: StreamLog) -> bool:
    return log._ends.window._content is not None


def fill(log: StreamLog, count: int, payload: bytes = b"x" * 68) -> None:
    for _ in range(count):
        append(log, payload)


def sizes(log: StreamLog) -> tuple[int, int]:
    return os.fstat(log._content_fd).st_size, os.fstat(log._index_fd).st_size


def mapped_lines() -> int:
    return Path("/proc/self/maps").read_text().count(".content") + Path("/proc/self/maps").read_text().count(".indx")


@compiled_only
def test_some_small_batches_come_before_anything_is_mapped(log: StreamLog) -> None:
    fill(log, SMALL_APPENDS_MIN - 1)
    assert not is_mapped(log)
    assert sizes(log) == (log.end_offset, HEADER_PAGE_BYTES + 24 * log.next_seq)
    fill(log, 1)
    assert is_mapped(log)
    assert sizes(log) == (HEADER_PAGE_BYTES + CONTENT_WINDOW_BYTES_MIN, HEADER_PAGE_BYTES + INDEX_WINDOW_BYTES_MIN)


@compiled_only
def test_a_mapped_append_makes_no_call(log: StreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(log, SMALL_APPENDS_MIN)
    calls: list[object] = []
    monkeypatch.setattr("tailrace.shard.log._pwrite", lambda *args: calls.append(args))
    fill(log, 100)
    append(log, b"y" * (WINDOW_BATCH_BYTES_MAX - 32))
    assert not calls
    append(log, b"y" * (WINDOW_BATCH_BYTES_MAX - 31))
    assert len(calls) == 2


def test_a_closed_stream_is_as_long_as_its_messages_and_nothing_stays_mapped(tmp_path: Path) -> None:
    before = mapped_lines(), len(window._mapped)
    log = open_log(tmp_path)
    fill(log, 1_000)
    end, index_end = log.end_offset, HEADER_PAGE_BYTES + 24_000
    log.close()
    assert (tmp_path / f"{NAME}.content").stat().st_size == end
    assert (tmp_path / f"{NAME}.indx").stat().st_size == index_end
    assert (mapped_lines(), len(window._mapped)) == before
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok
    assert payloads(tmp_path) == [b"x" * 68] * 1_000


def test_a_log_that_is_left_open_by_mistake_gives_its_window_back(tmp_path: Path) -> None:
    before = len(window._mapped)
    log = open_log(tmp_path)
    fill(log, 50)
    assert len(window._mapped) == before + LEAF.is_compiled()
    del log
    assert len(window._mapped) == before


@compiled_only
def test_a_window_follows_the_end_and_grows_with_use(log: StreamLog) -> None:
    seen: list[int] = []
    while len(seen) < 6:
        fill(log, 1)
        mapping = log._ends.window._content
        if mapping is not None and mapping.address and (not seen or mapping.size != seen[-1] or len(seen) >= 4):
            seen.append(mapping.size)
            while log._ends.window._content is mapping:
                fill(log, 1)
    assert seen[:4] == [CONTENT_WINDOW_BYTES_MIN * 2**step for step in range(4)]
    assert max(seen) == CONTENT_WINDOW_BYTES_MAX
    index = log._ends.window._index
    assert index is not None and index.size <= INDEX_WINDOW_BYTES_MAX
    assert MAPPED_BYTES_MAX == WINDOWS_MAX * (CONTENT_WINDOW_BYTES_MAX + INDEX_WINDOW_BYTES_MAX)


@compiled_only
def test_a_reader_sees_mapped_messages_at_once(tmp_path: Path, log: StreamLog) -> None:
    reader = StreamReader.open(tmp_path, NAME, boot_id=BOOT)
    for number in range(3 * SMALL_APPENDS_MIN):
        append(log, b"%d" % number)
        assert [message.payload for message in messages_of(reader)] == [b"%d" % i for i in range(number + 1)]
    reader.close()


@compiled_only
def test_a_stream_that_gets_one_now_and_then_takes_no_space(log: StreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 0

    def slow_clock() -> int:
        nonlocal now_ns
        now_ns += 2 * 10**9
        return now_ns

    monkeypatch.setattr(window, "_leaf", _Leaf(slow_clock))
    fill(log, 5 * SMALL_APPENDS_MIN)
    assert not is_mapped(log)
    assert sizes(log)[0] == log.end_offset


class _Leaf:
    """The leaf with another clock."""

    def __init__(self, clock: object) -> None:
        self.file_clock_ns = clock
        self.install_guard = LEAF.install_guard


@compiled_only
def test_large_batches_put_it_off(log: StreamLog) -> None:
    for _ in range(3):
        fill(log, SMALL_APPENDS_MIN - 1)
        append(log, b"y" * WINDOW_BATCH_BYTES_MAX)
    assert not is_mapped(log)
    fill(log, SMALL_APPENDS_MIN)
    assert is_mapped(log)


def test_the_time_of_a_file_shows_appends_and_a_sync_sets_it(log: StreamLog) -> None:
    """Who looks for changed files, as Spark's source of a directory and rsync do, finds every append."""
    fill(log, 2 * SMALL_APPENDS_MIN)
    old_ns = time.time_ns() - 60 * 10**9
    for fd in (log._content_fd, log._index_fd):
        os.utime(fd, ns=(old_ns, old_ns))
    fill(log, 1)
    log.sync()
    for fd in (log._content_fd, log._index_fd):
        assert os.fstat(fd).st_mtime_ns > time.time_ns() - 30 * 10**9


@pytest.fixture(params=["disk", "memory"])
def synced_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamLog]:
    """A stream with a window, all of it synced, and with old files; on the disk, and where nothing is written back."""
    with TemporaryDirectory(dir="/dev/shm") as memory:
        opened = open_log(tmp_path if request.param == "disk" else Path(memory))
        if (window._file_system(opened._content_fd) == window._TMPFS) == (request.param == "disk"):
            pytest.skip(f"{tmp_path} is not on a disk, or /dev/shm not in memory")
        fill(opened, 2 * SMALL_APPENDS_MIN)
        opened.sync()
        make_old(opened)
        yield opened
        opened.close()


def make_old(log: StreamLog) -> None:
    for fd in (log._content_fd, log._index_fd):
        os.utime(fd, ns=(0, 0))


def has_fresh_times(log: StreamLog) -> bool:
    return all(os.fstat(fd).st_mtime > time.time() - 30 for fd in (log._content_fd, log._index_fd))


@compiled_only
@pytest.mark.parametrize("appends", [1, 2])
def test_a_sync_leaves_the_times_to_the_kernel_if_it_has_set_them(
    synced_log: StreamLog, monkeypatch: pytest.MonkeyPatch, appends: int
) -> None:
    """Under `always` a stream often has one message for a sync, and hundreds of streams are synced at once."""
    set_for: list[int] = []
    real = os.utime

    def watched(fd: int) -> None:
        set_for.append(fd)
        real(fd)

    monkeypatch.setattr(os, "utime", watched)
    for _ in range(3):
        fill(synced_log, appends)
        synced_log.sync()
        assert has_fresh_times(synced_log)
    is_on_disk = window._file_system(synced_log._content_fd) != window._TMPFS
    assert len(set_for) == (0 if appends == 1 and is_on_disk else 6)


@compiled_only
def test_a_page_that_was_stored_into_during_a_sync_shows_nothing_by_itself(
    synced_log: StreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(synced_log, 1)
    real, next_seq = os.fdatasync, synced_log.next_seq

    def sync_and_append(fd: int) -> None:
        real(fd)
        if synced_log.next_seq == next_seq:
            fill(synced_log, 1)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", sync_and_append)
        synced_log.sync()
    make_old(synced_log)
    synced_log.sync()
    assert has_fresh_times(synced_log)


@compiled_only
def test_an_append_after_a_second_sets_the_time_by_itself(log: StreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_FRESH_NS", 50_000_000)
    fill(log, 2 * SMALL_APPENDS_MIN)
    assert is_mapped(log)
    behind_s: list[float] = []
    deadline_s = time.monotonic() + 0.5
    while time.monotonic() < deadline_s:
        fill(log, 1)
        now_s = time.time()
        behind_s += [now_s - os.fstat(fd).st_mtime for fd in (log._content_fd, log._index_fd)]
    assert sorted(behind_s)[-len(behind_s) // 100] < 0.08  # the kernel's own clock has ticks of up to 10 ms


@compiled_only
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_without_space_to_reserve_the_appends_go_on_by_pwrite(
    log: StreamLog, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    tried: list[tuple[int, ...]] = []

    def refuse(*where: int) -> None:
        tried.append(where)
        raise OSError(code, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        fill(log, 500)
        assert len(tried) == 1
    assert not is_mapped(log)
    assert log.next_seq == 500
    fill(log, window.RETRY_APPENDS)
    assert is_mapped(log)


@compiled_only
@pytest.mark.parametrize("why", ["other file system", "enough windows", "interpreted"])
def test_nothing_is_mapped(log: StreamLog, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "other file system":
        monkeypatch.setattr(window, "_RESERVING", frozenset({0x9123683E}))
    elif why == "enough windows":
        monkeypatch.setattr(window, "WINDOWS_MAX", 0)
    else:
        monkeypatch.setattr(window, "MAPS", False)
    fill(log, 3 * SMALL_APPENDS_MIN)
    assert not is_mapped(log)
    assert sizes(log)[0] == log.end_offset


@compiled_only
@pytest.mark.parametrize("broken", ["content", "index"])
def test_a_fault_is_an_error_of_the_append_and_not_the_end_of_the_process(tmp_path: Path, broken: str) -> None:
    """A file that was truncated under its mapping answers a store as a failing device does."""
    command = [sys.executable, "-c", FAULTS, str(tmp_path), broken]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("alive\n", 0), done.stderr


@compiled_only
def test_an_append_to_a_log_that_was_closed_touches_nothing(tmp_path: Path) -> None:
    """The stream may be another process's by then."""
    log = open_log(tmp_path)
    fill(log, 50)
    log.close()
    before = (tmp_path / f"{NAME}.content").read_bytes()
    with pytest.raises(OSError, match="Bad file descriptor"):
        append(log, b"late")
    assert (tmp_path / f"{NAME}.content").read_bytes() == before


@compiled_only
def test_closing_unmaps_before_it_truncates_and_abandoning_only_unmaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    fill(log, 40)
    log.abandon()
    assert not is_mapped(log)
    with pytest.raises(OSError, match="Bad file descriptor"):
        append(log, b"late")
    log = open_log(tmp_path)
    fill(log, 40)
    real, mapped = os.ftruncate, list[bool]()

    def watched(fd: int, size: int) -> None:
        mapped.append(is_mapped(log))
        real(fd, size)

    monkeypatch.setattr(os, "ftruncate", watched)
    log.close()
    assert mapped == [False, False]


@compiled_only
@pytest.mark.parametrize("seq", [30, 0])
def test_a_cut_closes_the_window_before_the_files_change(
    log: StreamLog, monkeypatch: pytest.MonkeyPatch, seq: int
) -> None:
    fill(log, 40)
    changing = "ftruncate" if seq else "rename"
    real = getattr(os, changing)
    mapped: list[bool] = []

    def watched(*args: object) -> None:
        if args[0] in (log._content_fd, log._index_fd) or changing == "rename":
            mapped.append(is_mapped(log))
        real(*args)

    monkeypatch.setattr(os, changing, watched)
    log.set_aside(seq)
    assert mapped and not any(mapped)
    fill(log, 40)
    assert is_mapped(log)
    assert log.next_seq == seq + 40


@compiled_only
def test_a_repair_after_a_failed_sync_closes_the_window(
    tmp_path: Path, log: StreamLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is mapped does not leave the cache, so that writing it again would not help."""
    fill(log, 40)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="broken"):
        patch.setattr(os, "fdatasync", _broken)
        log.sync()
    fill(log, 1)
    assert is_mapped(log)
    real, mapped = os.pwrite, list[bool]()

    def watched(fd: int, data: bytes, offset: int) -> int:
        mapped.append(is_mapped(log))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", watched)
    assert log.sync() == 41
    assert mapped and not any(mapped)
    assert payloads(tmp_path) == [b"x" * 68] * 41


def _broken(fd: int) -> None:
    raise OSError(errno.EIO, "broken")


def test_what_is_behind_the_end_after_a_kill_is_cut(tmp_path: Path) -> None:
    """At any moment: all that was acknowledged is there, whole, and the next owner gives the space back."""
    acknowledged = 0
    for reads in (1, 40, 3_000, 9_000):
        owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
        assert owner.stdout is not None
        lines = [owner.stdout.readline() for _ in range(reads)]
        owner.kill()
        lines += owner.stdout.readlines()
        owner.wait()
        owner.stdout.close()
        acknowledged = int([line for line in lines if line.endswith(b"\n")][-1])
        log = open_log(tmp_path)
        assert acknowledged + 1 <= log.next_seq <= acknowledged + 2
        assert sizes(log) == (log.end_offset, HEADER_PAGE_BYTES + 24 * log.next_seq)
        log.close()
    assert (
        payloads(tmp_path) == [b"message %d " % seq * (seq % 9 + 1) for seq in range(acknowledged + 2)][: log.next_seq]
    )
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


@pytest.mark.parametrize("left", [0, 5_000, 9_000])
def test_a_torn_window_ends_at_its_last_whole_message(tmp_path: Path, left: int) -> None:
    """The machine went down: some pages of the window are on the disk, others read as zeros."""
    log = open_log(tmp_path)
    fill(log, 10)
    log.sync()
    fill(log, 90)
    end = log.end_offset
    log.abandon()
    content = tmp_path / f"{NAME}.content"
    kept = HEADER_PAGE_BYTES + left if left else HEADER_PAGE_BYTES + 1_000
    with open(content, "r+b") as file:
        file.seek(kept)
        file.write(bytes(end - kept))
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert log.next_seq == max(10, left // 100)
    assert sizes(log)[0] == log.end_offset
    assert log.torn_bytes <= 100
    log.close()
    assert check_stream(tmp_path, NAME, boot_id=LATER_BOOT).ok
