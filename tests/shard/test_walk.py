from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard import walk as walk_module
from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.shard.walk import FrameWalk, fault_text, frame_seq, looks_torn

stamp = load("tailrace.shard.frame_cy").stamp
START = 100


def content(tmp_path: Path, *payloads: bytes, seq: int = 5) -> tuple[int, int]:
    """A file with stamped frames from byte 100 on; gives its descriptor and its end."""
    frames = bytearray(b"".join(pack_frame(payload) for payload in payloads))
    stamp(frames, seq, 1, 1, START)
    path = tmp_path / "content"
    path.write_bytes(bytes(START) + frames)
    return os.open(path, os.O_RDWR), START + len(frames)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "WALK_BYTES", 100)


def test_runs_cover_all_frames_whatever_the_pieces(tmp_path: Path) -> None:
    payloads = [b"x" * size for size in (0, 30, 68, 69, 500, 1, 2, 3, 4_000, 0)]
    fd, end = content(tmp_path, *payloads)
    walk = FrameWalk(fd, START, end, 5)
    runs = list(walk)
    assert sum(run.messages for run in runs) == len(payloads)
    assert [run.seq for run in runs] == sorted({run.seq for run in runs})
    assert b"".join(run.frames for run in runs) == os.pread(fd, end, START)
    assert (walk.seq, walk.offset, walk.fault) == (15, end, "")
    assert frame_seq(fd, runs[1].offset) == runs[1].seq


@pytest.mark.parametrize("payload", [10, 200])
def test_an_end_within_a_frame_is_a_fault(tmp_path: Path, payload: int) -> None:
    fd, end = content(tmp_path, b"whole", b"x" * payload)
    for cut in (end - 1, end - payload, end - payload - 1, end - payload - 31):
        walk = FrameWalk(fd, START, cut, 5)
        assert (walk.finish(), walk.seq, walk.offset) == ("short", 6, START + 37)


@pytest.mark.parametrize("payload", [10, 200])
def test_a_file_that_ends_before_the_walk_is_a_fault(tmp_path: Path, payload: int) -> None:
    fd, end = content(tmp_path, b"whole", b"x" * payload)
    for size in (end - 1, end - payload, START + 38, START + 37):
        os.ftruncate(fd, size)
        walk = FrameWalk(fd, START, end, 5)
        assert (walk.finish(), walk.seq, walk.offset) == ("short", 6, START + 37)


@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_flipped_byte_stops_the_walk_at_its_frame(tmp_path: Path, at: int) -> None:
    fd, end = content(tmp_path, *[b"x" * 60] * 7)
    place = START + 92 * at
    os.pwrite(fd, b"?", place + 50)
    walk = FrameWalk(fd, START, end, 5)
    assert (walk.finish(), walk.seq, walk.offset) == ("crc", 5 + at, place)


def test_zeros_stop_the_walk(tmp_path: Path) -> None:
    fd, end = content(tmp_path, b"x")
    os.ftruncate(fd, end + 10_000)
    walk = FrameWalk(fd, START, end + 10_000, 5)
    assert (walk.finish(), walk.seq, walk.offset) == ("length", 6, end)


def test_a_damaged_length_makes_nobody_read_more_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd, end = content(tmp_path, b"x" * 300, b"y")
    pread, asked = os.pread, []

    def counted(fd: int, size: int, offset: int) -> bytes:
        asked.append(size)
        return pread(fd, size, offset)

    os.pwrite(fd, (60_000_000).to_bytes(4, "little"), START)
    monkeypatch.setattr(os, "pread", counted)
    assert FrameWalk(fd, START, end, 5).finish() == "short"
    assert asked == [100]


def test_another_streams_frames_are_a_fault(tmp_path: Path) -> None:
    fd, end = content(tmp_path, b"x")
    assert FrameWalk(fd, START, end, 4).finish() == "seq"


@pytest.mark.parametrize("fault", ["short", "length", "crc", "seq", "time", "epoch"])
def test_every_fault_has_a_text(fault: str) -> None:
    assert "frame" in fault_text(fault)


def test_times_and_epochs_go_on_from_one_piece_to_the_next(tmp_path: Path) -> None:
    path = tmp_path / "content"
    for back, fault in (((9, 4), "time"), ((10, 3), "epoch")):
        frames = bytearray()
        for seq, (at, epoch) in enumerate([(10, 4)] * 3 + [back], 5):
            frame = bytearray(pack_frame(b"x" * 60))
            stamp(frame, seq, at, epoch, START + len(frames))
            frames += frame
        path.write_bytes(bytes(START) + frames)
        fd = os.open(path, os.O_RDONLY)
        end = START + len(frames)
        walk = FrameWalk(fd, START, end, 5)
        assert (walk.finish(), walk.seq, walk.timestamp_us, walk.epoch) == (fault, 8, 10, 4)
        assert FrameWalk(fd, START, end, 5, 11, 4).finish() == "time", "the message before counts"
        assert FrameWalk(fd, START, end, 5, 10, 5).finish() == "epoch"
        assert FrameWalk(fd, START, end, 5, ordered=False).finish() == ""
        os.close(fd)


def test_what_looks_torn(tmp_path: Path) -> None:
    fd, end = content(tmp_path, b"x" * 10_000)
    assert not looks_torn(fd, START, end)
    assert looks_torn(fd, START, end - 1)
    assert looks_torn(fd, end, end)
    os.pwrite(fd, bytes(4_096), 4_096)
    assert looks_torn(fd, START, end), "a page of it is lost"
    os.pwrite(fd, b"\1", 5_000)
    assert not looks_torn(fd, START, end)
    os.pwrite(fd, bytes(32), START)
    assert looks_torn(fd, START, end), "there is no frame"
    os.pwrite(fd, b"\1", START)
    assert not looks_torn(fd, START, end), "nor is that the length of one"
