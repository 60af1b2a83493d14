from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.frame import pack_frame
from tailrace.shard.heads import read_metadata
from tailrace.shard.log import StreamLog


@pytest.fixture
def log(tmp_path: Path) -> StreamLog:
    return StreamLog.open(tmp_path, "s", create=True, boot_id="boot")


def fill(log: StreamLog, sizes: list[tuple[int, int]]) -> list[bytes]:
    """Messages with these sizes of metadata and payload; returns their metadata."""
    metadata = [bytes([number % 251]) * size for number, (size, _) in enumerate(sizes)]
    frames = b"".join(pack_frame(b"x" * sizes[number][1], metadata=each) for number, each in enumerate(metadata))
    log.append(bytearray(frames), len(sizes), 1, 1)
    return metadata


@pytest.mark.parametrize("payload_bytes", [0, 10, 20_000])
def test_metadata_of_messages_long_and_short(log: StreamLog, payload_bytes: int) -> None:
    sizes = [(size, payload_bytes) for size in (0, 5, 600, 60_000, 1, 0, 65_535, 3)] * 3
    metadata = fill(log, sizes)
    assert list(log.metadata(0, len(sizes))) == metadata
    assert list(log.metadata(3, 9)) == metadata[3:12]
    with pytest.raises(ValueError, match="not 24"):
        log.metadata(20, 5)
    log.close()


def test_short_messages_are_read_many_at_once(log: StreamLog, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = fill(log, [(4, 20)] * 5_000)
    reads = []
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        reads.append(size)
        return pread(fd, size, offset)

    found = log.metadata(0, 5_000)
    monkeypatch.setattr(os, "pread", counted)
    assert list(found) == metadata
    assert len(reads) <= 6
    log.close()


@pytest.mark.parametrize("damage", [b"\xff\xff\xff\xff", b"\x01\x00\x00\x00"])
def test_what_is_no_frame_ends_it(tmp_path: Path, damage: bytes) -> None:
    frame = pack_frame(b"x", metadata=b"m")
    file = tmp_path / "content"
    file.write_bytes(frame + damage + frame[4:] + frame)
    fd = os.open(file, os.O_RDONLY)
    assert list(read_metadata(fd, 0, 3 * len(frame), 3)) == [b"m"]
    assert list(read_metadata(fd, 0, 9 * len(frame), 1)) == [b"m"]
    assert list(read_metadata(fd, 3 * len(frame), 4 * len(frame), 1)) == []
    os.close(fd)
