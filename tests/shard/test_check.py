"""The report of `check`. That it finds damage at any byte is in test_damage.py."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest

from tailrace.shard import check as check_module
from tailrace.shard import walk
from tailrace.shard.check import FAULTS_MAX, check_data, check_stream
from tailrace.shard.directory import make_data_dir
from tailrace.shard.epochs import EpochStart
from tailrace.shard.header import INDEX_NEXT_SEQ, tagged
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role, StreamMeta, meta_path, write_meta
from tailrace.shard.names import cursor_name
from tailrace.shard.report import StreamReport
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


def test_a_stream_that_was_trimmed_up_to_a_message_that_the_machine_lost(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one")
    append(log, b"two")
    log.sync()
    append(log, b"three")
    size, end = (tmp_path / "stream.content").stat().st_size, log.end_offset
    log.trim(2)
    log.abandon()
    overwrite(tmp_path / "stream.content", end - len(b"three") - 32, bytes(size))
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.first_seq, log.next_seq) == (2, 2)
    log.close()
    assert report_of(tmp_path, boot=LATER_BOOT) == StreamReport(-1, NAME, first_seq=2, next_seq=2, synced_seq=2)


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
        assert report.notes == ("the stream was being created; it has no message",)
        (tmp_path / "stream.indx").write_bytes(bytes(5_000))
    assert check_stream(tmp_path, "missing", boot_id=BOOT).ok


def stamped_at(log: StreamLog, at: int, epoch: int, count: int = 1) -> None:
    """Append what no log of ours does."""
    log.last_timestamp_us = 0
    append(log, *[b"x"] * count, at=at, epoch=epoch)


@pytest.mark.parametrize("pieces", [100, 1 << 20])
def test_times_and_epochs_that_go_back_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    monkeypatch.setattr(walk, "WALK_BYTES", pieces)
    log = open_log(tmp_path)
    for at, epoch in ((5_000, 2), (5_000, 2), (4_999, 3), (4_999, 3), (6_000, 1), (7_000, 1), (8_000, 4)):
        stamped_at(log, at, epoch)
    log.close()
    assert [(fault.offset, fault.cause) for fault in report_of(tmp_path).faults] == [
        (4_096 + 2 * 33, "message 2: the frame's timestamp goes back"),
        (4_096 + 4 * 33, "message 4: the frame's epoch goes back, or is 0"),
    ]


def test_epoch_zero_is_a_fault(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    stamped_at(log, 1, 0)
    log.close()
    (fault,) = report_of(tmp_path).faults
    assert fault.cause == "message 0: the frame's epoch goes back, or is 0"


RIGHT = [((1, 0), (3, 2), (4, 5)), ((1, 0), (2, 2), (3, 2), (4, 5), (6, 7)), ((1, 0),), ((3, 4),)]
LATE, EARLY = ((1, 0), (3, 2), (4, 6)), ((1, 0), (2, 2), (4, 5))


@pytest.mark.parametrize(
    ("starts", "trimmed", "told"),
    [
        *((starts, trimmed, []) for starts in RIGHT for trimmed in (0, 3, 7)),
        (LATE, 0, ["message 5 has epoch 4 in its frame, 3 here"]),
        (LATE, 5, ["message 5 has epoch 4 in its frame, 3 here"]),
        (LATE, 6, []),
        (EARLY, 0, ["message 2 has epoch 3 in its frame, 2 here"]),
        (EARLY, 4, ["message 4 has epoch 3 in its frame, 2 here"]),
        (EARLY, 7, []),
    ],
)
def test_the_epochs_written_down_are_compared_with_the_messages(
    tmp_path: Path, starts: tuple[tuple[int, int], ...], trimmed: int, told: list[str]
) -> None:
    log = open_log(tmp_path)
    for epoch in (1, 1, 3, 3, 3, 4, 4):
        append(log, b"x", epoch=epoch)
    log.trim(trimmed)
    log.close()
    write_meta(tmp_path, StreamMeta(NAME, Role.SLAVE, 6, history=tuple(EpochStart(*start) for start in starts)))
    report = report_of(tmp_path)
    assert [fault.cause for fault in report.faults] == told
    assert report.notes == ()


def test_a_master_whose_epoch_is_behind_its_messages_has_a_note(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"x", epoch=5)
    log.close()
    assert report_of(tmp_path).notes == ("its last message has epoch 5, but its master here epoch 1",)


def test_a_companion_has_the_epoch_of_its_stream(tmp_path: Path) -> None:
    name = cursor_name(NAME.encode()).decode()
    log = open_log(tmp_path, name)
    append(log, b"x", epoch=5)
    log.close()
    write_meta(tmp_path, StreamMeta(NAME, epoch=5, history=(EpochStart(5, 0, ""),)))
    assert check_stream(tmp_path, name, boot_id=BOOT).notes == ()
    write_meta(tmp_path, StreamMeta(NAME, epoch=4, history=(EpochStart(4, 0, ""),)))
    (note,) = check_stream(tmp_path, name, boot_id=BOOT).notes
    assert note == "its last message has epoch 5, but its master here epoch 4"


def test_tails_that_were_set_aside_are_listed_and_verified(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    log = open_log(tmp_path)
    kept = [log.set_aside(8), log.set_aside(3)]
    log.close()
    report = report_of(tmp_path)
    assert (report.ok, report.notes, report.messages) == (True, (), 3)
    assert list(report.diverged) == kept
    assert report.diverged_file == tmp_path / "stream.diverged"
    second = kept[1]
    assert second is not None
    flip(tmp_path / "stream.diverged", second.offset + 41 * 2 + 35)
    with open(tmp_path / "stream.diverged", "ab") as file:
        file.write(bytes(300))
    report = report_of(tmp_path)
    assert [(fault.file, fault.offset, fault.cause) for fault in report.faults] == [
        (tmp_path / "stream.diverged", second.offset + 41 * 2, "tail 2, message 5: the frame's checksum does not fit")
    ]
    assert report.notes == (f"{report.diverged_file} has 300 bytes of a tail that is, or is still, incomplete",)
    flip(tmp_path / "stream.diverged", 5)
    assert [fault.cause for fault in report_of(tmp_path).faults] == ["the title of a tail is missing"]


def test_a_tail_that_was_kept_and_not_cut_off_is_noted(tmp_path: Path) -> None:
    filled(tmp_path, 10)
    shutil.copy(tmp_path / "stream.content", tmp_path / "content")
    shutil.copy(tmp_path / "stream.indx", tmp_path / "indx")
    log = open_log(tmp_path)
    log.set_aside(6)
    log.close()
    os.rename(tmp_path / "content", tmp_path / "stream.content")
    os.rename(tmp_path / "indx", tmp_path / "stream.indx")
    report = report_of(tmp_path)
    assert report.ok
    assert report.notes == ("tail 1 was set aside and then not cut off: the stream has it as well",)


def test_no_more_tails_are_listed_than_anybody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_module, "TAILS_MAX", 2)
    filled(tmp_path, 10)
    log = open_log(tmp_path)
    for seq in (9, 8, 7, 6):
        log.set_aside(seq)
    log.close()
    report = report_of(tmp_path)
    assert [kept.number for kept in report.diverged] == [1, 2]
    assert report.notes == ("2 more tails were set aside",)


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
        "the file ends at 4216, its contents at 4240",
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
    assert reports["notes.txt"].notes[0].endswith("shard-00/notes.txt does not belong to a stream")
    assert reports["s5"].messages == 5
    assert {report.shard for report in reports.values()} <= set(range(4))


def test_a_stream_in_the_wrong_shards_folder_is_a_fault(tmp_path: Path) -> None:
    data = make_data_dir(tmp_path / "data", 4)
    home = data.shard_of("s1")
    filled(data.shard_path((home + 1) % 4), 1, name="s1")
    (report,) = check_data(data, boot_id=BOOT)
    assert report.faults[0].cause == f"stream 's1' belongs in {data.shard_path(home)}"


def test_checking_changes_nothing_and_leaks_nothing(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    flip(paths.content_file, 4_100)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()}
    descriptors = len(os.listdir("/proc/self/fd"))
    report_of(tmp_path)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.iterdir()} == before
    assert len(os.listdir("/proc/self/fd")) == descriptors
