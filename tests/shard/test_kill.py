"""A real owner in a process of its own, killed in the middle of its work, while a reader here looks on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tailrace.shard.check import check_stream
from tailrace.shard.errors import StreamCut, StreamMissing, Trimmed
from tailrace.shard.leaves import load
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import BOOT, NAME, list_tails, messages_of, open_log, read_messages

OWNER = """
import sys
from pathlib import Path
from tests.shard.helpers import append, open_log
log = open_log(Path(sys.argv[1]))
while True:
    count = log.next_seq % 7 + 1
    first = append(log, *[b"message %d " % (log.next_seq + i) * 20 for i in range(count)])
    if log.next_seq > 5_000:
        log.trim(log.next_seq - 4_000)
    print(first + count, flush=True)
"""
CUTTING_OWNER = """
import sys
from pathlib import Path
from tests.shard.helpers import append, open_log
log = open_log(Path(sys.argv[1]))
epoch = int(sys.argv[2])
while True:
    count = log.next_seq % 5 + 1
    append(log, *[b"%d %d " % (log.next_seq + i, epoch) * 30 for i in range(count)], epoch=epoch)
    print(log.next_seq - 1, epoch, flush=True)
    if log.next_seq % 11 == 0:
        log.set_aside(log.next_seq - log.next_seq % 40 % 9 - 1)
        epoch += 1
"""
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 30
leaf = load("tailrace.shard.frame_cy")
check = leaf.check


def look_until(reader: StreamReader, seq: int) -> None:
    """Verifies the committed messages, from one commit to the next, until `seq` is."""
    deadline_s = time.monotonic() + DEADLINE_S
    done = reader.next_seq()
    while done < seq:
        assert time.monotonic() < deadline_s
        committed = reader.next_seq()
        try:
            start, end = reader.offset_of(done), reader.offset_of(committed)
        except Trimmed as trimmed:  # the owner has gone on for long, and this is not sooner there
            done = trimmed.first_seq
            continue
        content = bytearray(end - start)
        assert reader.read_into(memoryview(content), start) == len(content)
        assert check(content, 0, len(content), done) == (committed - done, len(content), "")
        done = committed


def opened_reader(directory: Path) -> StreamReader:
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return StreamReader.open(directory, NAME, boot_id=BOOT)
        except (StreamMissing, StreamCut):
            assert time.monotonic() < deadline_s
            time.sleep(0.001)


@pytest.mark.slow
def test_what_was_acknowledged_outlives_the_owner_and_a_reader_sees_only_whole_frames(tmp_path: Path) -> None:
    reader = None
    for _ in range(4):
        command = [sys.executable, "-c", OWNER, str(tmp_path)]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        reader = reader or opened_reader(tmp_path)
        look_until(reader, reader.next_seq() + 1_500)
        owner.send_signal(signal.SIGKILL)
        acknowledged = [int(line) for line in owner.communicate()[0].splitlines()]
        assert reader.next_seq() >= acknowledged[-1]
        assert check_stream(tmp_path, NAME, boot_id=BOOT).ok
    assert reader is not None
    committed = reader.next_seq()
    log = open_log(tmp_path)
    assert log.next_seq == reader.next_seq() == committed
    assert all(message.payload == b"message %d " % message.seq * 20 for message in messages_of(reader))
    log.close()
    reader.close()


def look_at_cuts_until(directory: Path, deadline_s: float, cuts: int) -> None:
    """Verifies the committed messages while tails are cut off: old and new are never in one piece.

    A cut may be seen twice: by who was there before, and by who came while it was made.
    """
    seen, done, reader = 0, 0, opened_reader(directory)
    while seen < cuts:
        assert time.monotonic() < deadline_s
        try:
            committed = reader.next_seq()
            start, end = reader.offset_of(done), reader.offset_of(committed)
            content = bytearray(end - start)
            assert reader.read_into(memoryview(content), start) == len(content)
        except StreamCut as cut:
            seen, done = seen + 1, min(done, cut.seq)
            reader.close()
            reader = opened_reader(directory)
            continue
        rows = leaf.parse(content, 0, len(content), True)
        assert [row[0] for row in rows] == list(range(done, committed))
        assert [row[5] for row in rows] == [b"%d %d " % (row[0], row[2]) * 30 for row in rows]
        assert [row[2] for row in rows] == sorted(row[2] for row in rows)
        done = committed
    reader.close()


@pytest.mark.slow
def test_tails_that_are_cut_off_by_an_owner_that_is_killed_are_never_lost(tmp_path: Path) -> None:
    acknowledged: set[tuple[int, int]] = set()
    for first_epoch in (1, 10_000, 20_000, 30_000, 40_000):
        command = [sys.executable, "-c", CUTTING_OWNER, str(tmp_path), str(first_epoch)]
        owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            look_at_cuts_until(tmp_path, time.monotonic() + DEADLINE_S, 30)
        finally:
            owner.send_signal(signal.SIGKILL)
            for line in owner.communicate()[0].splitlines():
                seq, epoch = map(int, line.split())
                acknowledged.add((seq, epoch))
        report = check_stream(tmp_path, NAME, boot_id=BOOT)
        assert report.ok, report.faults
    log = open_log(tmp_path)
    found = {(message.seq, message.epoch) for message in read_messages(tmp_path)}
    log.close()
    path = tmp_path / f"{NAME}.diverged"
    data = path.read_bytes()
    for kept in list_tails(path, NAME):
        found |= {row[:3:2] for row in leaf.parse(data, kept.offset, kept.offset + kept.tail.nbytes, True)}
    assert len(acknowledged) > 5 * 30 / 2
    assert acknowledged <= found
