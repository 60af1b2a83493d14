"""Opening after a crash of the process and after one of the machine; damage in detail is in test_damage.py."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tailrace.shard import walk
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.frame import INDEX_ENTRY_BYTES, pack_frame
from tailrace.shard.header import (
    CONTENT_END_OFFSET,
    CONTENT_FIRST_OFFSET,
    CONTENT_FIRST_SEQ,
    HEADER_PAGE_BYTES,
    INDEX_FIRST_SEQ,
    INDEX_NEXT_SEQ,
    INDEX_SYNCED_SEQ,
    tagged,
)
from tailrace.shard.leaves import load
from tests.shard.helpers import (
    LATER_BOOT,
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

stamp = load("tailrace.shard.frame_cy").stamp


def crashed(directory: Path, *, synced: int = 3, unsynced: int = 2) -> None:
    """A stream left by a crash: "synced 0", … on the disk, "unsynced 0", … committed but perhaps not."""
    log = open_log(directory)
    for i in range(synced):
        append(log, b"synced %d" % i)
    log.sync()
    for i in range(unsynced):
        append(log, b"unsynced %d" % i)
    log.abandon()


def word(file: Path, place: int, value: int) -> None:
    overwrite(file, 8 * place, tagged(value).to_bytes(8, "little"))


# --- the process died


def test_nothing_committed_is_lost_when_the_process_dies(tmp_path: Path) -> None:
    crashed(tmp_path)
    log = open_log(tmp_path)
    assert (log.next_seq, log.synced_seq, log.torn_bytes, log.lost_messages) == (5, 3, 0, 0)
    append(log, b"after")
    log.close()
    assert payloads(tmp_path)[3:] == [b"unsynced 0", b"unsynced 1", b"after"]


def test_frames_that_were_never_committed_do_not_come_back(tmp_path: Path) -> None:
    """Whole frames with the right seq lie past the count, with their entries, as if killed before the commit."""
    log = open_log(tmp_path)
    append(log, b"committed")
    end, index_end = log.end_offset, 4_096 + 24
    log.abandon()
    ghost = batch([b"ghost", b"ghost"])
    entries = stamp(ghost, 1, 1_000, 1, end)
    with open(tmp_path / "stream.content", "r+b") as file:
        file.seek(end)
        file.write(ghost)
    overwrite(tmp_path / "stream.indx", index_end, bytes(entries))
    word(tmp_path / "stream.content", CONTENT_END_OFFSET, end + len(ghost))
    log = open_log(tmp_path)
    assert log.next_seq == 1
    assert (tmp_path / "stream.content").stat().st_size == end
    assert append(log, b"real") == 1
    log.abandon()
    log = open_log(tmp_path, boot=LATER_BOOT)
    log.close()
    assert payloads(tmp_path, boot=LATER_BOOT) == [b"committed", b"real"]
    assert not (tmp_path / "stream.torn").exists()


def test_a_reserved_tail_left_by_a_crash_is_given_back(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"x" * 100_000)
    log.abandon()
    assert (tmp_path / "stream.content").stat().st_size > log.end_offset
    log = open_log(tmp_path)
    assert (tmp_path / "stream.content").stat().st_size == log.end_offset
    log.close()


def test_a_trim_cut_short_by_the_crash_is_finished(tmp_path: Path) -> None:
    """The index's first_seq is stored first; all other missing steps follow from it."""
    filled(tmp_path, 10)
    word(tmp_path / "stream.indx", INDEX_FIRST_SEQ, 6)
    log = open_log(tmp_path)
    headers = log._pair.headers()
    assert headers.content_words[:2] == (6, log.entry(6).offset)
    log.close()
    word(tmp_path / "stream.content", CONTENT_FIRST_SEQ, 2)
    word(tmp_path / "stream.content", CONTENT_FIRST_OFFSET, 4_096)
    log = open_log(tmp_path)
    assert log._pair.headers().content_words.first_seq == 6
    log.close()
    assert [message.seq for message in read_messages(tmp_path)] == [6, 7, 8, 9]


def test_a_stream_closed_at_another_length_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 3, synced=True)
    with open(tmp_path / "stream.content", "ab") as file:
        file.write(b"x")
    with pytest.raises(StreamDamaged, match="closed with 4219 bytes, it has 4220"):
        open_log(tmp_path)


# --- the machine went down


def test_what_reached_the_disk_is_kept(tmp_path: Path) -> None:
    crashed(tmp_path)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.synced_seq, log.torn_bytes, log.lost_messages) == (5, 3, 0, 0)
    append(log, b"after")
    log.close()
    assert payloads(tmp_path, boot=LATER_BOOT)[3:] == [b"unsynced 0", b"unsynced 1", b"after"]


def test_the_index_is_written_anew_past_the_synced_seq(tmp_path: Path) -> None:
    crashed(tmp_path)
    overwrite(tmp_path / "stream.indx", 4_096 + 3 * 24, os.urandom(48))
    log = open_log(tmp_path, boot=LATER_BOOT)
    log.close()
    assert payloads(tmp_path, boot=LATER_BOOT)[3:] == [b"unsynced 0", b"unsynced 1"]


def test_an_index_that_is_too_short_is_written_anew_past_the_synced_seq(tmp_path: Path) -> None:
    crashed(tmp_path)
    cut(tmp_path / "stream.indx", 4_096 + 3 * 24 + 5)
    log = open_log(tmp_path, boot=LATER_BOOT)
    log.close()
    assert len(payloads(tmp_path, boot=LATER_BOOT)) == 5


@pytest.mark.parametrize("kind", ["zeros", "garbage", "flip", "cut", "half"])
def test_a_torn_tail_is_cut_and_kept(tmp_path: Path, kind: str) -> None:
    """The second unsynced frame did not reach the disk whole."""
    crashed(tmp_path)
    content = tmp_path / "stream.content"
    size = content.stat().st_size
    start = size - 42
    torn = {"zeros": bytes(42), "garbage": b"\7" * 42, "flip": None, "cut": None, "half": bytes(20) + b"x" * 22}[kind]
    if torn:
        overwrite(content, start, torn)
    elif kind == "flip":
        flip(content, size - 1)
    else:
        cut(content, size - 1)
    left = content.read_bytes()[start:]
    log = open_log(tmp_path, boot=LATER_BOOT)
    kept = len(left.rstrip(b"\0"))
    assert (log.next_seq, log.lost_messages, log.torn_bytes) == (4, 1, kept)
    assert content.stat().st_size == start
    assert (tmp_path / "stream.indx").stat().st_size == 4_096 + 4 * 24
    if kept:
        record = (tmp_path / "stream.torn").read_bytes()
        assert record.startswith(b"torn content offset=%d bytes=%d at=" % (start, kept))
        assert record.endswith(left[:kept] + b"\n")
    assert append(log, b"after") == 4
    log.close()
    assert payloads(tmp_path, boot=LATER_BOOT)[3:] == [b"unsynced 0", b"after"]
    open_log(tmp_path, boot=LATER_BOOT, create=False).close()


def test_frames_beyond_the_recorded_end_are_taken_up(tmp_path: Path) -> None:
    """The kernel wrote the frames back, and the header pages of an earlier moment."""
    log = open_log(tmp_path)
    append(log, b"one")
    log.sync()
    index, content = (tmp_path / "stream.indx").read_bytes(), (tmp_path / "stream.content").read_bytes()[:4_096]
    append(log, b"two", b"three")
    log.abandon()
    (tmp_path / "stream.indx").write_bytes(index)
    overwrite(tmp_path / "stream.content", 0, content)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.lost_messages, log.torn_bytes) == (3, 0, 0)
    log.close()
    assert payloads(tmp_path, boot=LATER_BOOT) == [b"one", b"two", b"three"]


def test_everything_unsynced_may_be_lost(tmp_path: Path) -> None:
    crashed(tmp_path, synced=0, unsynced=4)
    size = (tmp_path / "stream.content").stat().st_size
    overwrite(tmp_path / "stream.content", 4_096, bytes(size - 4_096))
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.lost_messages, log.torn_bytes) == (0, 4, 0)
    assert append(log, b"again") == 0
    log.close()


def test_a_trim_beyond_what_was_left_goes_back_with_it(tmp_path: Path) -> None:
    crashed(tmp_path, synced=3, unsynced=4)
    word(tmp_path / "stream.indx", INDEX_FIRST_SEQ, 6)
    flip(tmp_path / "stream.content", (tmp_path / "stream.content").stat().st_size - 3 * 42 + 40)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.first_seq, log.next_seq, log.lost_messages) == (4, 4, 3)
    append(log, b"after")
    log.close()
    assert payloads(tmp_path, boot=LATER_BOOT) == [b"after"]


@pytest.mark.parametrize("place", [4_096 + 34, 4_096 + 40 + 12, 4_096 + 80 + 39])
def test_damage_before_the_synced_seq_is_corruption(tmp_path: Path, place: int) -> None:
    crashed(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    flip(tmp_path / "stream.content", place)
    with pytest.raises(StreamDamaged, match=r"stream.content at byte \d+: the frame's checksum does not fit"):
        open_log(tmp_path, boot=LATER_BOOT)
    flip(tmp_path / "stream.content", place)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before, "and nothing was changed"
    open_log(tmp_path, boot=LATER_BOOT).close()


def test_a_file_that_ends_before_the_synced_frames_do_is_corruption(tmp_path: Path) -> None:
    crashed(tmp_path)
    cut(tmp_path / "stream.content", 4_096 + 100)
    with pytest.raises(StreamDamaged, match="at byte 4196: the file ends at 4196, its messages at 4216"):
        open_log(tmp_path, boot=LATER_BOOT)


def test_recovery_cut_short_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed(tmp_path)
    flip(tmp_path / "stream.content", (tmp_path / "stream.content").stat().st_size - 1)
    ftruncate = os.ftruncate

    def dies(fd: int, size: int) -> None:
        ftruncate(fd, size)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", dies)
        with pytest.raises(KeyboardInterrupt):
            open_log(tmp_path, boot=LATER_BOOT)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert log.next_seq == 4
    log.close()


def test_a_clean_stop_leaves_nothing_to_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 10)
    log = open_log(tmp_path)
    log.sync()
    log.close()
    monkeypatch.setattr(walk, "read_all", lambda *_: pytest.fail("frames were walked"))
    before = (tmp_path / "stream.content").stat().st_size
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.synced_seq, log.end_offset) == (10, 10, before)
    log.close()


# --- the volume was lost, and came back in the same boot


def moved(directory: Path) -> Path:
    """The files in another place, as those of a volume that was mounted again are."""
    there = directory / "there"
    shutil.copytree(directory, there)
    return there


def test_what_a_lost_volume_has_kept_is_kept(tmp_path: Path) -> None:
    crashed(tmp_path)
    there = moved(tmp_path)
    log = open_log(there)
    assert (log.next_seq, log.synced_seq, log.new_boot) == (5, 3, True)
    append(log, b"after")
    log.close()
    assert payloads(there)[3:] == [b"unsynced 0", b"unsynced 1", b"after"]
    log = open_log(there)
    assert not log.new_boot
    log.close()


def test_a_hole_before_the_window_is_found_in_another_place(tmp_path: Path) -> None:
    """The last pages reached the disk, one before them did not."""
    log = open_log(tmp_path)
    append(log, b"synced")
    log.sync()
    append(log, *[b"x" * 1_000] * 200)
    log.abandon()
    there = moved(tmp_path)
    overwrite(there / "stream.content", 8_192, bytes(4_096))
    log = open_log(there)
    assert (log.next_seq, log.lost_messages) == (4, 197)
    log.close()
    assert len(payloads(there)) == 4


# --- the files of an earlier moment were put back in the same boot, in the same place


@pytest.mark.parametrize("kind", ["zeros", "cut", "half", "entry zeros", "entry cut"])
def test_a_torn_end_is_cut_where_the_place_is_the_same(tmp_path: Path, kind: str) -> None:
    """Only the last of the two unsynced messages has not reached the disk whole, or its entry has not."""
    log = open_log(tmp_path)
    append(log, b"synced")
    log.sync()
    append(log, b"x" * 4_096, b"y" * 8_192)
    log.abandon()
    content, index = tmp_path / "stream.content", tmp_path / "stream.indx"
    end, entry = log.end_offset, HEADER_PAGE_BYTES + 2 * INDEX_ENTRY_BYTES
    if kind == "zeros":
        overwrite(content, end - 8_224, bytes(8_224))
    elif kind == "cut":
        cut(content, end - 1)
    elif kind == "half":
        overwrite(content, 12_288, bytes(4_096))
    elif kind == "entry zeros":
        overwrite(index, entry, bytes(INDEX_ENTRY_BYTES))
    else:
        cut(index, entry + 3)
    log = open_log(tmp_path)
    left = 3 if kind.startswith("entry") else 2
    assert (log.next_seq, log.lost_messages, log.new_boot) == (left, 3 - left, True)
    assert append(log, b"after") == left
    log.close()
    assert len(payloads(tmp_path)) == left + 1


def test_a_damaged_end_is_refused_where_the_place_is_the_same(tmp_path: Path) -> None:
    crashed(tmp_path)
    flip(tmp_path / "stream.content", (tmp_path / "stream.content").stat().st_size - 1)
    with pytest.raises(StreamDamaged, match="checksum"):
        open_log(tmp_path)


# --- the index lost more than the unsynced entries


def test_an_index_that_does_not_lead_to_the_synced_seq_is_written_anew(tmp_path: Path) -> None:
    crashed(tmp_path, synced=100)
    whole = (tmp_path / "stream.indx").read_bytes()
    overwrite(tmp_path / "stream.indx", HEADER_PAGE_BYTES + 40 * INDEX_ENTRY_BYTES, bytes(30 * INDEX_ENTRY_BYTES))
    cut(tmp_path / "stream.indx", HEADER_PAGE_BYTES + 90 * INDEX_ENTRY_BYTES)
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (log.next_seq, log.synced_seq) == (102, 100)
    log.close()
    found = (tmp_path / "stream.indx").read_bytes()
    assert found[HEADER_PAGE_BYTES:] == whole[HEADER_PAGE_BYTES : len(found)]


def test_an_empty_index_is_written_anew_and_lost_frames_before_the_synced_seq_are_not_hidden(tmp_path: Path) -> None:
    crashed(tmp_path, synced=10)
    cut(tmp_path / "stream.indx", HEADER_PAGE_BYTES)
    there = moved(tmp_path)
    log = open_log(there, boot=LATER_BOOT)
    assert log.next_seq == 12
    log.close()
    overwrite(tmp_path / "stream.content", HEADER_PAGE_BYTES + 5 * 40, bytes(40))
    with pytest.raises(StreamDamaged, match="ends before the entry"):
        open_log(tmp_path, boot=LATER_BOOT)


def test_a_frame_whose_time_goes_back_is_not_taken_up(tmp_path: Path) -> None:
    """What lay behind a cut, of an earlier term, may have the right seq."""
    log = open_log(tmp_path)
    append(log, b"one", at=5_000, epoch=3)
    log.sync()
    log.abandon()
    for at, epoch in ((4_999, 3), (5_000, 2)):
        there = moved(tmp_path)
        old = batch([b"old"])
        stamp(old, 1, at, epoch, log.end_offset)
        with open(there / "stream.content", "ab") as file:
            file.write(old)
        log = open_log(there, boot=LATER_BOOT)
        assert (log.next_seq, log.torn_bytes) == (1, len(old))
        log.close()
        shutil.rmtree(there)


# --- costs


@pytest.mark.parametrize("boot", [None, LATER_BOOT])
def test_opening_does_not_cost_more_with_a_longer_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boot: str | None
) -> None:
    log = open_log(tmp_path, "small")
    append(log, *[b"x" * 100] * 1_000)
    log.sync()
    log.close()
    log = open_log(tmp_path, "large")
    for _ in range(40):
        append(log, *[b"x" * 100] * 5_000)
    log.sync()
    log.close()
    pread, reads = os.pread, []

    def counted(fd: int, size: int, offset: int) -> bytes:
        data = pread(fd, size, offset)
        reads.append(len(data))
        return data

    costs = []
    for name in ("small", "large"):
        reads.clear()
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", counted)
            opened = open_log(tmp_path, name) if boot is None else open_log(tmp_path, name, boot=boot)
        costs.append((len(reads), sum(reads)))
        opened.close()
    assert costs[0] == costs[1]
    assert costs[0][0] <= 4
    assert costs[0][1] <= 64 * 1024 + 512 * 24


def test_a_stream_that_was_open_before_is_checked_by_its_last_message_alone(tmp_path: Path) -> None:
    paths = filled(tmp_path, 10)
    flip(paths.content_file, 4_096 + 40)
    with pytest.raises(StreamDamaged):
        open_log(tmp_path)
    log = open_log(tmp_path, check_bytes=0)
    assert log.next_seq == 10
    log.close()


def test_the_window_ends_at_the_oldest_message(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, *[b"x" * 1_000] * 100)
    log.trim(97)
    log.punch(97)
    log.close()
    log = open_log(tmp_path)
    assert (log.first_seq, log.next_seq) == (97, 100)
    log.close()


def test_a_synced_seq_beyond_the_index_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, 3, synced=True)
    word(tmp_path / "stream.indx", INDEX_NEXT_SEQ, 4)
    word(tmp_path / "stream.indx", INDEX_SYNCED_SEQ, 4)
    with pytest.raises(StreamDamaged, match="ends before the entry of message 3"):
        open_log(tmp_path)


def test_frames_of_any_size_fit_the_window(tmp_path: Path) -> None:
    for count, size in ((1, 200_000), (3, 60_000), (600, 1)):
        name = f"{count} x {size}".replace(" ", "")
        log = open_log(tmp_path, name)
        log.append(bytearray(pack_frame(b"y" * size) * count), count, 1, 1)
        log.close()
        log = open_log(tmp_path, name)
        assert log.next_seq == count
        log.close()
