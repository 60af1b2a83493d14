from __future__ import annotations

import numpy as np
import pytest

from tailrace.shard.frame import pack_frame
from tailrace.shard.leaves import load
from tailrace.spark.entries import ENTRY, Entries, Fault
from tailrace.spark.frames import DISAGREES, ENDS, check_frames, index_of

_stamp = load("tailrace.shard.frame_cy").stamp
OFFSET = 5_000


def made(payloads: list[bytes] | None = None) -> tuple[Entries, bytearray]:
    """Frames from seq 10 on, and their entries."""
    frames = bytearray(b"".join(map(pack_frame, [b"a", b"", b"ccc"] if payloads is None else payloads)))
    table = np.frombuffer(_stamp(frames, 10, 77, 2, OFFSET), ENTRY).copy()
    return Entries(10, table), frames


@pytest.mark.parametrize("check_crc", [False, True])
def test_right_frames(check_crc: bool) -> None:
    entries, frames = made()
    assert check_frames(entries, memoryview(frames), check_crc) is None


@pytest.mark.parametrize("check_crc", [False, True])
def test_zeros_are_seen_with_and_without_checksums(check_crc: bool) -> None:
    entries, frames = made()
    frames[33:65] = bytes(32)  # the second frame
    fault = check_frames(entries, memoryview(frames), check_crc)
    assert fault is not None
    assert fault.place == 1


def test_a_changed_payload_is_seen_where_checksums_are_asked_for() -> None:
    entries, frames = made()
    frames[-1] ^= 1
    assert check_frames(entries, memoryview(frames), False) is None
    assert check_frames(entries, memoryview(frames), True) == Fault(2, "the frame's checksum does not fit")


@pytest.mark.parametrize("field", ["timestamp_us", "length", "epoch"])
def test_an_entry_of_another_frame_is_seen(field: str) -> None:
    entries, frames = made()
    entries.table[field][1] += 1
    assert check_frames(entries, memoryview(frames + b"\0"), False) == Fault(1, DISAGREES)


@pytest.mark.parametrize("check_crc", [False, True])
def test_a_file_that_ends_early_is_seen(check_crc: bool) -> None:
    entries, frames = made()
    fault = check_frames(entries, memoryview(frames)[:40], check_crc)
    assert fault is not None
    assert fault.place == 1
    assert check_crc or fault.cause == ENDS


def test_frames_of_a_connection_have_entries_of_their_own() -> None:
    entries, frames = made()
    found = index_of(memoryview(frames), 10)
    assert found.seq.tolist() == [10, 11, 12]
    assert found.table["offset"].tolist() == [0, 33, 65]
    assert found.table["length"].tolist() == entries.table["length"].tolist()
    assert found.timestamp_us.tolist() == [77] * 3
    with pytest.raises(ValueError, match="frame"):
        index_of(memoryview(frames)[:-1], 10)
