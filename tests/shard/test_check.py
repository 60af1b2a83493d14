"""The report of `check`. That it finds damage at any byte is in test_damage.py."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from shard import check as check_module
from shard.check import FAULTS_MAX, check_data, check_stream
from shard.directory import make_data_dir
from shard.header import INDEX_NEXT_SEQ, tagged
from shard.meta import StreamMeta, meta_path, write_meta
from shard.report import StreamReport
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, filled, flip, open_log, overwrite


def report_of(directory: Path, *, boot: str = BOOT) -> StreamReport:
    return check_stream(directory, NAME, boot_id=boot)


def test_a_whole_stream(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    log = open_log(tmp_path)
    log.sync()
    append(log, b"more")
    log.trim(2)
    log.close()
    assert report_of(tmp_path) == StreamReport(
        -1, NAME, messages=4, message_bytes=3 * 41 + 36, first_seq=2, next_seq=6, synced_seq=5
    )


def test_a_stream_without_messages_and_one_that_was_trimmed_whole(tmp_path: Path) -> None:
    filled(tmp_path, 0)
    assert report_of(tmp_path) == StreamReport(-1, NAME)
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 20)
    log.trim(20)
    log.punch(20)
    log.close()
    assert report_of(tmp_path) == StreamReport(-1, NAME, first_seq=20, next_seq=20, synced_seq=20)


def test_what_opening_takes_up_or_cuts_after_the_machine_was_down_is_no_fault(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one")
    log.sync()
    append(log, b"two")
    append(log, b"three")
    log.abandon()
    content = tmp_path / "stream.content"
    flip(content, content.stat().st_size - 1)
    report = report_of(tmp_path, boot=LATER_BOOT)
    assert report.ok
    assert (report.messages, report.unsynced_messages, report.torn_bytes) == (2, 1, 37)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.torn_bytes) == (2, 37)
    log.close()


def test_a_stream_that_was_never_born_has_a_note(tmp_path: Path) -> None:
    (tmp_path / "stream.content").write_bytes(bytes(5_000))
    for _ in range(2):
        report = report_of(tmp_path)
        assert report.ok
        assert report.notes == ("the stream was just being made; it has no message",)
        (tmp_path / "stream.indx").write_bytes(bytes(5_000))
    assert check_stream(tmp_path, "missing", boot_id=BOOT).ok


def test_no_more_faults_are_named_than_anybody_reads(tmp_path: Path) -> None:
    paths = filled(tmp_path, 100)
    for i in range(100):
        flip(paths.content_file, 4_096 + 41 * i + 35)
    assert len(report_of(tmp_path).faults) == FAULTS_MAX


def test_frames_are_counted_without_the_index_and_without_the_contents_header(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    flip(paths.index_file, 0)
    report = report_of(tmp_path)
    assert [fault.file.name for fault in report.faults] == ["stream.indx"]
    assert report.messages == 5
    flip(paths.index_file, 0)
    flip(paths.content_file, 0)
    report = report_of(tmp_path)
    assert [fault.file.name for fault in report.faults] == ["stream.content"]
    assert report.messages == 5
    flip(paths.index_file, 0)
    assert [fault.file.name for fault in report_of(tmp_path).faults] == ["stream.indx", "stream.content"]


def test_a_damaged_meta_is_a_fault(tmp_path: Path) -> None:
    filled(tmp_path, 1)
    write_meta(tmp_path, StreamMeta(NAME, epoch=3))
    flip(meta_path(tmp_path, NAME), 20)
    assert [fault.file.name for fault in report_of(tmp_path).faults] == ["stream.meta"]


def test_it_may_run_while_the_owner_appends_and_trims(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 1_000)
    stop = threading.Event()

    def owner() -> None:
        while not stop.is_set():
            append(log, *[b"y" * 1_000] * 50)
            log.trim(log.next_seq - 500)

    thread = threading.Thread(target=owner)
    thread.start()
    try:
        for _ in range(50):
            report = report_of(tmp_path)
            assert report.ok, report
            assert report.messages >= 500
    finally:
        stop.set()
        thread.join()
    assert report_of(tmp_path).ok
    log.close()


def test_a_fault_in_a_stream_that_changes_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 5)
    log = open_log(tmp_path)
    walk, looks = check_module._Checker._walk_trusted, []

    def trimmed_meanwhile(self: check_module._Checker, *args: object) -> int | None:
        looks.append(1)
        if len(looks) == 1:
            log.trim(3)
            self._fault(self._paths.content_file, 4_096, "zeros, as it was punched")
        return walk(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(check_module._Checker, "_walk_trusted", trimmed_meanwhile)
    report = report_of(tmp_path)
    assert report.ok
    assert (report.first_seq, report.messages, len(looks)) == (3, 2, 2)
    log.close()


def test_a_count_beyond_the_frames_is_a_fault(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    overwrite(paths.index_file, 8 * INDEX_NEXT_SEQ, tagged(6).to_bytes(8, "little"))
    causes = [fault.cause for fault in report_of(tmp_path).faults]
    assert causes == [
        "the file ends at 4216, what belongs into it at 4240",
        "message 5: the messages end here, the index has more",
    ]


def test_the_whole_data_directory(tmp_path: Path) -> None:
    data = make_data_dir(tmp_path / "data", 4)
    for i in range(8):
        filled(data.stream_directory(f"s{i}"), i, name=f"s{i}")
    assert [report.ok for report in check_data(data, boot_id=BOOT)] == [True] * 8
    flip(data.stream_directory("s3") / "s3.content", 4_100)
    (data.shard_path(0) / "notes.txt").touch()
    reports = {report.name: report for report in check_data(data, boot_id=BOOT)}
    assert [name for name, report in reports.items() if not report.ok] == ["s3"]
    assert reports["notes.txt"].notes[0].endswith("shard-00/notes.txt belongs to no stream")
    assert reports["s5"].messages == 5
    assert {report.shard for report in reports.values()} <= set(range(4))


def test_a_stream_in_the_wrong_shards_folder_is_a_fault(tmp_path: Path) -> None:
    data = make_data_dir(tmp_path / "data", 4)
    home = data.shard_of("s1")
    filled(data.shard_path((home + 1) % 4), 1, name="s1")
    (report,) = check_data(data, boot_id=BOOT)
    assert report.faults[0].cause == f"stream 's1' belongs into {data.shard_path(home)}"


def test_checking_changes_nothing_and_leaks_nothing(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    flip(paths.content_file, 4_100)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    descriptors = len(os.listdir("/proc/self/fd"))
    report_of(tmp_path)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
