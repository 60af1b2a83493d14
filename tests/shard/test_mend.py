"""Corrupt, see that it is broken, mend, read, append, reopen, read again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.shard import mend as mend_module
from tailrace.shard.check import check_stream
from tailrace.shard.epochs import EpochStart
from tailrace.shard.errors import StorageFull, StreamDamaged, StreamMissing
from tailrace.shard.header import CONTENT_END_OFFSET, HEADER_PAGE_BYTES, INDEX_FIRST_SEQ, tagged
from tailrace.shard.leaves import load
from tailrace.shard.mend import mend_meta, rebuild_index, repair
from tailrace.shard.meta import Role, StreamMeta, Upstream, meta_path, read_meta, write_meta
from tailrace.shard.report import StreamReport
from tests.shard.helpers import (
    BOOT,
    LATER_BOOT,
    NAME,
    append,
    batch,
    cut,
    filled,
    flip,
    open_log,
    overwrite,
    payloads,
    read_messages,
)

Corrupt = Callable[[Path, Path], None]
ALL = [b"message %d" % i for i in range(10)]
FRAME = 41


def cycle(directory: Path, kept: list[bytes], *, next_seq: int) -> None:
    """The mended stream is right, and goes on."""
    report = check_stream(directory, NAME, boot_id=BOOT)
    assert report.ok, report.faults
    assert payloads(directory) == kept
    log = open_log(directory, create=False)
    assert append(log, b"appended") == next_seq
    log.close()
    assert payloads(directory) == [*kept, b"appended"]
    log = open_log(directory, boot=LATER_BOOT, create=False)
    assert append(log, b"again") == next_seq + 1
    log.close()
    assert payloads(directory, boot=LATER_BOOT) == [*kept, b"appended", b"again"]


def assert_broken(directory: Path) -> None:
    assert not check_stream(directory, NAME, boot_id=BOOT).ok
    with pytest.raises(StreamDamaged):
        open_log(directory)


# --- the index, from the content alone


INDEX_DAMAGE: dict[str, Corrupt] = {
    "gone": lambda content, index: index.unlink(),
    "empty": lambda content, index: cut(index, 0),
    "cut": lambda content, index: cut(index, HEADER_PAGE_BYTES + 100),
    "header zeroed": lambda content, index: overwrite(index, 0, bytes(HEADER_PAGE_BYTES)),
    "header flipped": lambda content, index: flip(index, 513),
    "entry flipped": lambda content, index: flip(index, HEADER_PAGE_BYTES + 24 * 5 + 9),
    "entries garbage": lambda content, index: overwrite(index, HEADER_PAGE_BYTES, os.urandom(240)),
    "longer": lambda content, index: overwrite(index, HEADER_PAGE_BYTES + 240, bytes(24)),
}


LOST = [INDEX_DAMAGE[each] for each in ("gone", "empty", "header zeroed")]
"""As a loss of power may leave it: opening takes up the frames, see test_newborn.py."""


@pytest.mark.parametrize("corrupt", INDEX_DAMAGE.values(), ids=INDEX_DAMAGE.keys())
@pytest.mark.parametrize("mend", [rebuild_index, repair])
def test_any_damage_of_the_index_is_mended_without_loss(
    tmp_path: Path, corrupt: Corrupt, mend: Callable[..., object]
) -> None:
    paths = filled(tmp_path, 10, synced=True)
    corrupt(Path(paths.content_file), Path(paths.index_file))
    if corrupt not in LOST:
        assert_broken(tmp_path)
    assert mend(tmp_path, NAME, boot_id=BOOT) == mend_module.Mended(0, 10, 0, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stream.content", "stream.indx"]
    cycle(tmp_path, ALL, next_seq=10)


def test_a_rebuilt_index_says_what_the_old_one_said(tmp_path: Path) -> None:
    paths = filled(tmp_path, 10)
    entries = Path(paths.index_file).read_bytes()[HEADER_PAGE_BYTES:]
    os.unlink(paths.index_file)
    rebuild_index(tmp_path, NAME, boot_id=BOOT)
    assert Path(paths.index_file).read_bytes()[HEADER_PAGE_BYTES:] == entries


@pytest.mark.parametrize("trimmed", [1, 9, 10])
@pytest.mark.parametrize("lost", [True, False])
def test_a_trimmed_stream_keeps_its_seqs(tmp_path: Path, trimmed: int, lost: bool) -> None:
    log = open_log(tmp_path)
    for payload in ALL:
        append(log, payload + bytes(9_000))
    log.trim(trimmed)
    log.punch(trimmed)
    log.close()
    before = read_messages(tmp_path)
    if lost:
        os.unlink(tmp_path / "stream.indx")
    else:
        flip(tmp_path / "stream.indx", HEADER_PAGE_BYTES + 24 * 9)
        assert_broken(tmp_path)
    mended = rebuild_index(tmp_path, NAME, boot_id=BOOT)
    assert (mended.first_seq, mended.next_seq) == (trimmed, 10)
    assert read_messages(tmp_path) == before
    log = open_log(tmp_path)
    assert log.last_timestamp_us == 1_000
    assert append(log, b"after") == 10
    log.close()
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


def test_a_trim_that_was_cut_short_is_believed(tmp_path: Path) -> None:
    paths = filled(tmp_path, 10)
    overwrite(paths.index_file, 8 * INDEX_FIRST_SEQ, tagged(4).to_bytes(8, "little"))
    flip(paths.index_file, HEADER_PAGE_BYTES + 24 * 9)
    assert rebuild_index(tmp_path, NAME, boot_id=BOOT).first_seq == 4
    cycle(tmp_path, ALL[4:], next_seq=10)


@pytest.mark.parametrize("lost", [True, False], ids=["index lost", "index damaged"])
def test_frames_that_were_never_committed_do_not_come_back(tmp_path: Path, lost: bool) -> None:
    log = open_log(tmp_path)
    append(log, *ALL)
    end = log.end_offset
    log.abandon()
    ghost = batch([b"ghost", b"ghost"])
    load("tailrace.shard.frame_cy").stamp(ghost, 10, 1_000, 1, end)
    with open(tmp_path / "stream.content", "ab") as file:
        file.write(ghost)
    if lost:
        os.unlink(tmp_path / "stream.indx")
    else:
        # The content's length was stored, the count was not: the count decides while it can be read.
        overwrite(tmp_path / "stream.content", 8 * CONTENT_END_OFFSET, tagged(end + len(ghost)).to_bytes(8, "little"))
        flip(tmp_path / "stream.indx", HEADER_PAGE_BYTES + 24 * 9)
    mended = rebuild_index(tmp_path, NAME, boot_id=BOOT)
    assert (mended.next_seq, mended.cut_bytes) == (10, len(ghost))
    assert mended.kept_in == tmp_path / "stream.torn"
    assert bytes(ghost) in mended.kept_in.read_bytes()
    cycle(tmp_path, ALL, next_seq=10)


def test_after_the_machine_was_down_the_unsynced_part_is_taken_up_as_opening_would(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *ALL[:5])
    log.sync()
    append(log, *ALL[5:])
    log.abandon()
    flip(tmp_path / "stream.content", HEADER_PAGE_BYTES + FRAME * 8 + 35)
    flip(tmp_path / "stream.indx", HEADER_PAGE_BYTES)
    mended = rebuild_index(tmp_path, NAME, boot_id=LATER_BOOT)
    assert (mended.next_seq, mended.cut_bytes) == (8, 2 * FRAME)
    assert payloads(tmp_path, boot=LATER_BOOT) == ALL[:8]


@pytest.mark.parametrize("place", [0, 513, HEADER_PAGE_BYTES + 5, HEADER_PAGE_BYTES + FRAME * 5 + 33])
def test_a_damaged_content_gives_no_index_and_nothing_is_changed(tmp_path: Path, place: int) -> None:
    paths = filled(tmp_path, 10)
    flip(paths.content_file, place)
    flip(paths.index_file, HEADER_PAGE_BYTES)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StreamDamaged, match=r"stream\.content"):
        rebuild_index(tmp_path, NAME, boot_id=BOOT)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_without_content_there_is_nothing_to_rebuild_from(tmp_path: Path) -> None:
    with pytest.raises(StreamMissing):
        rebuild_index(tmp_path, NAME, boot_id=BOOT)
    with pytest.raises(StreamMissing):
        repair(tmp_path, NAME, boot_id=BOOT)
    paths = filled(tmp_path, 10)
    os.unlink(paths.content_file)
    with pytest.raises(StreamDamaged, match=r"stream\.content at byte 0: the file is missing"):
        rebuild_index(tmp_path, NAME, boot_id=BOOT)
    assert not os.path.exists(paths.content_file)


def test_a_content_cut_short_gives_no_index(tmp_path: Path) -> None:
    paths = filled(tmp_path, 10)
    cut(paths.content_file, HEADER_PAGE_BYTES + 5 * FRAME)
    os.unlink(paths.index_file)
    with pytest.raises(StreamDamaged, match="the messages end before the committed ones do"):
        rebuild_index(tmp_path, NAME, boot_id=BOOT)


# --- repair


def zero(file: Path) -> None:
    overwrite(file, 0, bytes(HEADER_PAGE_BYTES))


def headers_zeroed(content: Path, index: Path) -> None:
    zero(content)
    zero(index)


def frame_and_index(content: Path, index: Path) -> None:
    flip(content, HEADER_PAGE_BYTES + FRAME * 5 + 33)
    index.unlink()


def header_and_index(content: Path, index: Path) -> None:
    zero(content)
    index.unlink()


# The action, how many messages are left of ten, and the next seq.
CONTENT_DAMAGE: dict[str, tuple[Corrupt, int, int]] = {
    "a frame": (lambda content, index: flip(content, HEADER_PAGE_BYTES + FRAME * 5 + 33), 5, 5),
    "the last frame": (lambda content, index: flip(content, HEADER_PAGE_BYTES + FRAME * 10 - 1), 9, 9),
    "the first frame": (lambda content, index: flip(content, HEADER_PAGE_BYTES + 3), 0, 10),
    "cut": (lambda content, index: cut(content, HEADER_PAGE_BYTES + FRAME * 7 + 1), 7, 7),
    "cut to the header": (lambda content, index: cut(content, HEADER_PAGE_BYTES), 0, 10),
    "cut to nothing": (lambda content, index: cut(content, 0), 0, 10),
    "gone": (lambda content, index: content.unlink(), 0, 10),
    "header zeroed": (lambda content, index: zero(content), 10, 10),
    "header flipped": (lambda content, index: flip(content, 530), 10, 10),
    "zeros within": (lambda content, index: overwrite(content, HEADER_PAGE_BYTES + FRAME * 3, bytes(FRAME)), 3, 3),
    "both headers": (headers_zeroed, 10, 10),
    "frame and index": (frame_and_index, 5, 5),
    "header and index": (header_and_index, 10, 10),
}


@pytest.mark.parametrize("damage", CONTENT_DAMAGE.values(), ids=CONTENT_DAMAGE.keys())
def test_a_damaged_content_is_cut_where_the_damage_begins(tmp_path: Path, damage: tuple[Corrupt, int, int]) -> None:
    corrupt, left, next_seq = damage
    paths = filled(tmp_path, 10, synced=True)
    corrupt(Path(paths.content_file), Path(paths.index_file))
    broken = Path(paths.content_file).read_bytes() if os.path.exists(paths.content_file) else b""
    if corrupt not in (headers_zeroed, header_and_index):
        assert_broken(tmp_path)
    mended = repair(tmp_path, NAME, boot_id=BOOT)
    assert (mended.next_seq - mended.first_seq, mended.next_seq) == (left, next_seq)
    cut_frames = broken[HEADER_PAGE_BYTES + FRAME * left :].rstrip(b"\0")
    if cut_frames:
        assert mended.kept_in is not None
        assert cut_frames in mended.kept_in.read_bytes(), "what was cut is kept"
    cycle(tmp_path, ALL[:left], next_seq=next_seq)


def test_a_header_page_that_was_replaced_is_kept(tmp_path: Path) -> None:
    paths = filled(tmp_path, 3)
    flip(paths.content_file, 5)
    old = Path(paths.content_file).read_bytes()[:HEADER_PAGE_BYTES].rstrip(b"\0")
    mended = repair(tmp_path, NAME, boot_id=BOOT)
    assert mended.cut_bytes == len(old)
    assert mended.kept_in is not None
    assert old in mended.kept_in.read_bytes()


def test_a_damaged_beginning_of_a_punched_stream(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[bytes([i]) * 9_000 for i in range(10)])
    log.trim(6)
    log.punch(6)
    offset = log.entry(6).offset
    log.close()
    flip(tmp_path / "stream.content", offset + 100)
    mended = repair(tmp_path, NAME, boot_id=BOOT)
    assert (mended.first_seq, mended.next_seq) == (10, 10), "no seq that is known to be taken is given again"
    cycle(tmp_path, [], next_seq=10)


def test_files_of_another_stream_are_left_alone(tmp_path: Path) -> None:
    paths = filled(tmp_path, 3)
    os.rename(paths.content_file, tmp_path / "other.content")
    os.rename(paths.index_file, tmp_path / "other.indx")
    with pytest.raises(StreamDamaged, match="a file of the stream 'stream'; move it there by hand"):
        repair(tmp_path, "other", boot_id=BOOT)


def test_an_index_of_another_content_tells_nothing(tmp_path: Path) -> None:
    paths = filled(tmp_path, 8)
    index = Path(paths.index_file).read_bytes()
    for path in tmp_path.iterdir():
        path.unlink()
    filled(tmp_path, 10)
    Path(paths.index_file).write_bytes(index)
    assert_broken(tmp_path)
    assert rebuild_index(tmp_path, NAME, boot_id=BOOT).next_seq == 10
    cycle(tmp_path, ALL, next_seq=10)


def test_a_stream_whose_meta_is_damaged_is_disabled_and_what_it_was_is_kept(tmp_path: Path) -> None:
    """It may have been a slave: as a master it would part from its own master's stream."""
    log = open_log(tmp_path)
    append(log, b"one", b"two")
    append(log, b"three", epoch=4)
    log.close()
    write_meta(tmp_path, StreamMeta(NAME, Role.SLAVE, 4, Upstream("upstream", 5050)))
    flip(meta_path(tmp_path, NAME), 15)
    damaged = meta_path(tmp_path, NAME).read_bytes()
    assert repair(tmp_path, NAME, boot_id=BOOT).disabled
    history = (EpochStart(1, 0), EpochStart(4, 2))
    assert read_meta(tmp_path, NAME) == StreamMeta(NAME, Role.DISABLED, 4, history=history)
    assert damaged in (tmp_path / "stream.torn").read_bytes()
    assert not repair(tmp_path, NAME, boot_id=BOOT).disabled
    assert read_meta(tmp_path, NAME).role is Role.DISABLED


def test_a_meta_that_contradicts_the_messages_gives_way_to_them(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one", b"two")
    append(log, b"three", epoch=2)
    log.close()
    wrong = StreamMeta(NAME, Role.SLAVE, 3, Upstream("upstream", 5050), (EpochStart(1, 0, "a"), EpochStart(2, 1, "b")))
    write_meta(tmp_path, wrong)
    report = check_stream(tmp_path, NAME, boot_id=BOOT)
    assert [fault.cause for fault in report.faults] == ["message 1 has epoch 1 in its frame, 2 here"]
    assert report.faults[0].file == meta_path(tmp_path, NAME)
    assert not mend_meta(tmp_path, NAME, boot_id=BOOT)
    right = (EpochStart(1, 0, "a"), EpochStart(2, 2, "b"))
    assert read_meta(tmp_path, NAME) == StreamMeta(NAME, Role.SLAVE, 3, Upstream("upstream", 5050), right)
    assert check_stream(tmp_path, NAME, boot_id=BOOT).ok


def test_a_meta_that_is_behind_is_left_to_its_owner(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one", epoch=2)
    log.close()
    meta = StreamMeta(NAME, Role.SLAVE, 2, Upstream("upstream", 5050))
    write_meta(tmp_path, meta)
    assert check_stream(tmp_path, NAME, boot_id=BOOT) == StreamReport(-1, NAME, 1, 35, 0, 1, 0)
    assert not mend_meta(tmp_path, NAME, boot_id=BOOT)
    assert read_meta(tmp_path, NAME) == meta


def test_a_full_disk_leaves_the_stream_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = filled(tmp_path, 10)
    flip(paths.content_file, HEADER_PAGE_BYTES + FRAME * 5 + 33)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(fd: int, data: bytes, offset: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(mend_module, "write_all", full)
        with pytest.raises(StorageFull):
            repair(tmp_path, NAME, boot_id=BOOT)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert repair(tmp_path, NAME, boot_id=BOOT).next_seq == 5


def test_mending_cut_short_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = filled(tmp_path, 10, synced=True)
    flip(paths.content_file, HEADER_PAGE_BYTES + FRAME * 5 + 33)

    def dies(old: str, new: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            repair(tmp_path, NAME, boot_id=BOOT)
    assert_broken(tmp_path)
    assert repair(tmp_path, NAME, boot_id=BOOT).next_seq == 5
    cycle(tmp_path, ALL[:5], next_seq=5)
