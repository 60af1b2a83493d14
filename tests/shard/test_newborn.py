"""The remains of a new stream after a loss of power are not damage: its frames are accepted, or it is made again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard import newborn
from tailrace.shard.check import check_stream
from tailrace.shard.errors import StreamDamaged, StreamMissing
from tailrace.shard.header import HEADER_PAGE_BYTES, boot_word, parse_index
from tailrace.shard.mend import rebuild_index
from tailrace.shard.newborn import Left, left_of_newborn
from tailrace.shard.place import place_word
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, cut, filled, flip, open_log, overwrite, payloads

PAGE = bytes(HEADER_PAGE_BYTES)
ALL = [b"message %d" % i for i in range(5)]


def left(paths: StreamPaths, boot: str = LATER_BOOT) -> Left | None:
    return left_of_newborn(paths, boot_word(boot))


@pytest.mark.parametrize(
    ("content", "index", "expected"),
    [
        (None, None, Left.NOTHING),
        (b"", None, Left.NOTHING),
        (None, b"", Left.NOTHING),
        (b"", b"", Left.NOTHING),
        (b"\1", b"\1", Left.NOTHING),
        (bytes(9_000), bytes(5_000), Left.NOTHING),
        (bytes(9_000) + b"\1", bytes(5_000), Left.FRAMES),
        (PAGE[1:] + b"\1", b"", None),
        (b"", PAGE[1:] + b"\1", None),
    ],
)
def test_files_without_a_header_page(
    tmp_path: Path, content: bytes | None, index: bytes | None, expected: Left | None
) -> None:
    paths = stream_paths(tmp_path, NAME)
    for file, data in ((paths.content_file, content), (paths.index_file, index)):
        if data is not None:
            Path(file).write_bytes(data)
    assert left(paths) is expected
    if expected is Left.NOTHING:
        with pytest.raises(StreamMissing):
            open_log(tmp_path, create=False)
    if expected is None:
        with pytest.raises(StreamDamaged):
            open_log(tmp_path)
    else:
        log = open_log(tmp_path)
        assert append(log, b"first") == 0
        log.close()
        assert payloads(tmp_path) == [b"first"]


@pytest.mark.parametrize("size", [None, 0, 100, 4_095])
def test_an_index_that_was_lost_is_made_from_the_frames(tmp_path: Path, size: int | None) -> None:
    paths = filled(tmp_path, 5)
    whole = Path(paths.index_file).read_bytes()
    if size is None:
        os.unlink(paths.index_file)
    else:
        cut(paths.index_file, size)
    assert left(paths) is Left.FRAMES
    report = check_stream(tmp_path, NAME, boot_id=LATER_BOOT)
    assert (report.ok, report.messages, len(report.notes)) == (True, 5, 1)
    log = open_log(tmp_path, boot=LATER_BOOT, create=False)
    assert (log.next_seq, log.new_boot, log.torn_bytes) == (5, True, 0)
    assert append(log, b"after") == 5
    log.close()
    assert Path(paths.index_file).read_bytes()[HEADER_PAGE_BYTES:].startswith(whole[HEADER_PAGE_BYTES:])
    assert payloads(tmp_path, boot=LATER_BOOT) == [*ALL, b"after"]


def test_an_index_whose_first_page_alone_was_lost_is_made_anew(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    overwrite(paths.index_file, 0, PAGE)
    open_log(tmp_path, boot=LATER_BOOT).close()
    assert payloads(tmp_path, boot=LATER_BOOT) == ALL


def test_frames_come_back_without_any_header_page(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    overwrite(paths.content_file, 0, PAGE)
    cut(paths.index_file, 0)
    open_log(tmp_path, boot=LATER_BOOT).close()
    assert payloads(tmp_path, boot=LATER_BOOT) == ALL


def test_what_is_torn_behind_the_frames_is_kept(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    size = os.path.getsize(paths.content_file)
    cut(paths.content_file, size - 3)
    os.unlink(paths.index_file)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.torn_bytes) == (4, 41 - 3)
    log.close()
    assert b"messag" in (tmp_path / "stream.torn").read_bytes()


def test_a_damaged_frame_is_no_torn_one(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    flip(paths.content_file, HEADER_PAGE_BYTES + 41 + 35)
    os.unlink(paths.index_file)
    assert not check_stream(tmp_path, NAME, boot_id=LATER_BOOT).ok
    before = Path(paths.content_file).read_bytes()
    with pytest.raises(StreamDamaged, match="checksum"):
        open_log(tmp_path, boot=LATER_BOOT)
    assert Path(paths.content_file).read_bytes() == before


@pytest.mark.parametrize("size", [None, 0, 1_000])
def test_a_content_that_was_lost_had_no_message_that_was_promised(tmp_path: Path, size: int | None) -> None:
    paths = filled(tmp_path, 5)
    if size is None:
        os.unlink(paths.content_file)
    else:
        cut(paths.content_file, size)
    with pytest.raises(StreamDamaged):
        open_log(tmp_path, boot=BOOT)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.new_boot) == (0, True)
    log.close()


def test_a_content_that_was_lost_after_a_sync_is_damage(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5, synced=True)
    cut(paths.content_file, 0)
    assert left(paths) is None
    with pytest.raises(StreamDamaged):
        open_log(tmp_path, boot=LATER_BOOT)


def test_a_whole_stream_is_not_looked_at_twice(tmp_path: Path) -> None:
    assert left(filled(tmp_path, 5)) is None


def test_a_long_content_is_not_read_whole_when_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = filled(tmp_path, 5)
    os.unlink(paths.index_file)
    monkeypatch.setattr(newborn, "REBUILD_BYTES_MAX", HEADER_PAGE_BYTES + 100)
    with pytest.raises(StreamDamaged, match="missing"):
        open_log(tmp_path, boot=LATER_BOOT)


def test_what_was_taken_up_knows_its_place(tmp_path: Path) -> None:
    """Its new index is on the disk before it is opened, and what follows may be lost with the volume."""
    paths = filled(tmp_path, 5)
    os.unlink(paths.index_file)
    log = open_log(tmp_path)
    index = Path(paths.index_file).read_bytes()
    append(log, b"unsynced")
    log.abandon()
    there = tmp_path / "there"
    there.mkdir()
    for file, data in ((paths.content_file, Path(paths.content_file).read_bytes()), (paths.index_file, index)):
        (there / Path(file).name).write_bytes(data)
    log = open_log(there)
    assert (log.next_seq, log.new_boot) == (6, True)
    log.close()


def test_both_ways_to_make_a_stream_say_where_it_is(tmp_path: Path) -> None:
    open_log(tmp_path).close()
    log = open_log(tmp_path, "anew")
    log.begin_at(7)
    log.close()
    mended = filled(tmp_path, 1, name="mended")
    rebuild_index(tmp_path, "mended", boot_id=BOOT)
    for file in (tmp_path / "stream.indx", tmp_path / "anew.indx", Path(mended.index_file)):
        with open(file, "rb") as opened:
            words = parse_index(opened.read(HEADER_PAGE_BYTES))[1]
            assert words.place == place_word(opened.fileno()) != 0
