"""A byte flipped anywhere, a file cut anywhere, a header page zeroed or alone: found, and by that stream alone.

`check` finds all of it. Opening finds damage in its part: both header pages, and the frames and entries of a window at
the end, which here holds the whole stream.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.shard.check import check_stream
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import BOOT, NAME, append, cut, filled, flip, open_log, overwrite, payloads
from tests.thorough import THOROUGH

MESSAGES = 5
FILES = ("content", "index")
# Every byte of the parts that mean something and of the first reserved ones, then a few of the long rest of zeros. Each
# run takes a third of them: test_header.py flips all of them, without files.
HEADER_PLACES = [*range(560), *range(560, HEADER_PAGE_BYTES, 97), HEADER_PAGE_BYTES - 1]


@pytest.fixture
def stream(tmp_path: Path) -> Callable[[str], Path]:
    """The files of a stream with five messages, another one beside it; gives a file's path."""
    filled(tmp_path, MESSAGES, synced=True)
    filled(tmp_path, MESSAGES, name="bystander", synced=True)
    return lambda kind: tmp_path / (NAME + {"content": ".content", "index": ".indx"}[kind])


def assert_found(directory: Path, kind: str, what: str) -> None:
    """By check, in the right file, and by opening; nothing is changed, and the bystander is well."""
    file = directory / (NAME + {"content": ".content", "index": ".indx"}[kind])
    before = file.read_bytes()
    report = check_stream(directory, NAME, boot_id=BOOT)
    assert not report.ok, f"check missed {what}"
    assert file in {fault.file for fault in report.faults}, f"{what}: {report.faults}"
    with pytest.raises(StreamDamaged) as caught:
        open_log(directory)
    assert caught.value.name == NAME
    assert caught.value.file.exists()
    assert caught.value.cause
    assert file.read_bytes() == before
    assert check_stream(directory, "bystander", boot_id=BOOT).ok


def test_the_stream_is_whole(stream: Callable[[str], Path], tmp_path: Path) -> None:
    report = check_stream(tmp_path, NAME, boot_id=BOOT)
    assert report.ok
    assert (report.messages, report.message_bytes) == (MESSAGES, MESSAGES * 41)
    open_log(tmp_path).close()


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_byte_of_a_header_page_is_found(stream: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    for place in HEADER_PLACES if THOROUGH else random.sample(HEADER_PLACES, len(HEADER_PLACES) // 3):
        flip(stream(kind), place, 0x01)
        assert_found(tmp_path, kind, f"byte {place} of the {kind}'s header")
        with pytest.raises(StreamDamaged):
            StreamReader.open(tmp_path, NAME, boot_id=BOOT)
        flip(stream(kind), place, 0x01)


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_byte_of_a_frame_or_an_entry_is_found(
    stream: Callable[[str], Path], tmp_path: Path, kind: str, mask: int
) -> None:
    for place in range(HEADER_PAGE_BYTES, stream(kind).stat().st_size):
        flip(stream(kind), place, mask)
        assert_found(tmp_path, kind, f"byte {place} of the {kind}")
        flip(stream(kind), place, mask)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_cut_anywhere_is_found(stream: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    whole = stream(kind).read_bytes()
    # An index without its header page is what a loss of power may leave of a new stream: see test_newborn.py.
    short = range(0, HEADER_PAGE_BYTES, 127) if kind == "content" else ()
    for size in [*short, *range(HEADER_PAGE_BYTES, len(whole))]:
        stream(kind).write_bytes(whole[:size])
        assert_found(tmp_path, kind, f"the {kind} cut to {size}")
    stream(kind).write_bytes(whole)
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


def test_a_zeroed_header_page_of_the_content_is_found(stream: Callable[[str], Path], tmp_path: Path) -> None:
    overwrite(stream("content"), 0, bytes(HEADER_PAGE_BYTES))
    assert_found(tmp_path, "content", "a zeroed header page")


@pytest.mark.parametrize("kind", FILES)
def test_a_header_page_alone_is_found(stream: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    cut(stream(kind), HEADER_PAGE_BYTES)
    assert_found(tmp_path, kind, "a header page alone")


def test_a_missing_content_is_found(stream: Callable[[str], Path], tmp_path: Path) -> None:
    os.unlink(stream("content"))
    report = check_stream(tmp_path, NAME, boot_id=BOOT)
    assert [fault.cause for fault in report.faults] == ["the file is missing"]
    with pytest.raises(StreamDamaged, match="the file is missing"):
        open_log(tmp_path)


@pytest.mark.parametrize("kind", FILES)
def test_bytes_added_to_a_closed_file_are_found(stream: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    with open(stream(kind), "ab") as file:
        file.write(bytes(10))
    assert_found(tmp_path, kind, "ten more bytes")


def test_damage_far_from_the_end_is_found_by_check_and_opening_costs_no_more(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 200)
    log.close()
    content = tmp_path / "stream.content"
    for message in (0, 50, 100):
        flip(content, HEADER_PAGE_BYTES + 1_032 * message + 500)
    flip(tmp_path / "stream.indx", HEADER_PAGE_BYTES + 24 * 20)
    report = check_stream(tmp_path, NAME, boot_id=BOOT)
    assert [(fault.file.name, fault.offset) for fault in report.faults] == [
        ("stream.content", 4_096),
        ("stream.indx", 4_096 + 24 * 20),
        ("stream.content", 4_096 + 1_032 * 50),
        ("stream.content", 4_096 + 1_032 * 100),
    ]
    assert report.messages == 197
    open_log(tmp_path).close()


def test_a_stream_that_is_open_is_checked_up_to_its_commit(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 100)
    report = check_stream(tmp_path, NAME, boot_id=BOOT)
    assert report.ok
    assert report.messages == 100
    flip(tmp_path / "stream.content", 4_096 + 50)
    assert not check_stream(tmp_path, NAME, boot_id=BOOT).ok
    log.abandon()


def test_a_stream_after_a_crash_of_the_process_has_no_fault(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one")
    log.abandon()
    with open(tmp_path / "stream.content", "ab") as file:
        file.write(b"half a frame that was never committed")
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok
    open_log(tmp_path).close()
    assert payloads(tmp_path) == [b"one"]


def test_one_damaged_stream_of_many_is_no_others_business(tmp_path: Path) -> None:
    for i in range(5):
        filled(tmp_path, 3, name=f"stream-{i}")
    shutil.copy(tmp_path / "stream-1.content", tmp_path / "stream-2.content")
    outcomes = [check_stream(tmp_path, f"stream-{i}", boot_id=BOOT).ok for i in range(5)]
    assert outcomes == [True, True, False, True, True]
