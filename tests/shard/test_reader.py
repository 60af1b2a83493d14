from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.errors import StreamCut, StreamDamaged, StreamMissing, Trimmed
from tailrace.shard.frame import INDEX_ENTRY, IndexEntry
from tailrace.shard.header import INDEX_NEXT_SEQ
from tailrace.shard.newborn import Left, left_of_newborn
from tailrace.shard.reader import StreamReader, this_boot
from tailrace.shard.stream_files import StreamPaths
from tests.shard.helpers import (
    BOOT,
    LATER_BOOT,
    NAME,
    append,
    cut,
    filled,
    flip,
    messages_of,
    open_log,
    overwrite,
    payloads,
)


def open_reader(directory: Path, *, boot: str = BOOT) -> StreamReader:
    return StreamReader.open(directory, NAME, boot_id=boot)


def test_a_reader_sees_each_commit_at_once(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    reader = open_reader(tmp_path)
    assert (reader.first_seq(), reader.next_seq()) == (0, 0)
    for i in range(5):
        append(log, b"one", b"two")
        assert reader.next_seq() == 2 * i + 2
    log.trim(3)
    assert reader.first_seq() == 3
    assert len(messages_of(reader)) == 7
    log.close()
    assert reader.next_seq() == 10, "it outlives the owner"
    reader.close()


def test_positions(tmp_path: Path) -> None:
    filled(tmp_path, 3)
    reader = open_reader(tmp_path)
    assert [reader.offset_of(seq) for seq in range(4)] == [4_096, 4_137, 4_178, 4_219]
    assert reader.entry(1) == (1_010, 4_137, 41, 1)
    for call in (reader.entry, reader.offset_of):
        with pytest.raises(ValueError, match="has messages before 3, not 4"):
            call(4)
    with pytest.raises(ValueError, match="not 3"):
        reader.entry(3)
    assert [reader.seq_at(at) for at in (0, 1_000, 1_001, 1_020, 1_021)] == [0, 0, 1, 2, 3]
    assert reader.seq_at(1_010, skip=5) == 2
    reader.close()


def test_an_empty_streams_end_is_its_header(tmp_path: Path) -> None:
    filled(tmp_path, 0)
    reader = open_reader(tmp_path)
    assert reader.offset_of(0) == 4_096
    assert reader.seq_at(0) == 0
    reader.close()


def test_a_trimmed_message_is_named_as_such(tmp_path: Path) -> None:
    filled(tmp_path, 400)
    log = open_log(tmp_path)
    reader = open_reader(tmp_path)
    log.trim(390)
    with pytest.raises(Trimmed, match="message 3 of stream 'stream' was trimmed; the first one kept is 390"):
        reader.entry(3)
    log.punch(390)
    with pytest.raises(Trimmed):
        reader.offset_of(3)
    with pytest.raises(Trimmed):
        reader.entry(-1)
    log.trim(400)
    assert reader.offset_of(400) == log.end_offset, "the end is known even when everything is trimmed"
    log.close()
    reader.close()


def test_reading_into_a_buffer(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    reader = open_reader(tmp_path)
    buffer = bytearray(100)
    assert reader.read_into(memoryview(buffer), 4_137) == 41
    assert buffer[32:41] == b"message 1"
    assert reader.read_into(memoryview(buffer), 9_000) == 0
    reader.close()


def test_two_descriptors(tmp_path: Path) -> None:
    filled(tmp_path, 2)
    before = len(os.listdir("/proc/self/fd"))
    reader = open_reader(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before + 2
    reader.close()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_missing_streams(tmp_path: Path) -> None:
    with pytest.raises(StreamMissing):
        open_reader(tmp_path)
    for suffix in (".content", ".indx"):
        (tmp_path / (NAME + suffix)).write_bytes(bytes(5_000))
    with pytest.raises(StreamMissing):
        open_reader(tmp_path)


def test_a_stream_that_is_made_in_this_very_moment_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index appears between the check that missed it and the next one."""
    paths = filled(tmp_path, 3)
    hidden = tmp_path / "hidden"
    os.rename(paths.index_file, hidden)

    def unborn(paths: StreamPaths, boot: int) -> Left | None:
        os.rename(hidden, paths.index_file)
        return left_of_newborn(paths, boot)

    monkeypatch.setattr("tailrace.shard.reader.left_of_newborn", unborn)
    reader = open_reader(tmp_path)
    assert reader.next_seq() == 3
    reader.close()


@pytest.mark.parametrize(
    ("file", "size"), [("content_file", 100), ("content_file", 4_200), ("index_file", 100), ("index_file", 4_100)]
)
def test_files_cut_short_are_refused_and_nothing_leaks(tmp_path: Path, file: str, size: int) -> None:
    cut(getattr(filled(tmp_path, 5), file), size)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StreamDamaged, match="ends"):
        open_reader(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_word_damaged_under_an_open_reader_is_found(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    reader = open_reader(tmp_path)
    flip(paths.index_file, 8 * INDEX_NEXT_SEQ)
    with pytest.raises(StreamDamaged, match=r"stream.indx at byte 520: the word .* has a checksum that does not fit"):
        reader.next_seq()
    reader.close()


def test_an_entry_damaged_into_none_is_found(tmp_path: Path) -> None:
    paths = filled(tmp_path, 5)
    reader = open_reader(tmp_path)
    with open(paths.index_file, "r+b") as file:
        file.seek(4_096 + 24)
        file.write(bytes(24))
    with pytest.raises(StreamDamaged, match="there is no entry of message 1"):
        reader.entry(1)
    reader.close()


def test_after_the_machine_was_down_only_what_was_synced_is_trusted_until_the_owner_was_there(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, b"one", b"two")
    log.sync()
    append(log, b"three")
    log.abandon()
    reader = open_reader(tmp_path, boot=LATER_BOOT)
    recovered_before = reader.recovered
    assert reader.next_seq() == 2
    assert payloads(tmp_path, boot=LATER_BOOT) == [b"one", b"two"]
    log = open_log(tmp_path, boot=LATER_BOOT)
    assert (recovered_before, reader.recovered) == (False, True)
    assert reader.next_seq() == 3
    append(log, b"four")
    assert reader.next_seq() == 4
    log.close()
    reader.close()


def test_the_boot_is_asked_for_once(tmp_path: Path) -> None:
    assert this_boot() == this_boot()
    log = open_log(tmp_path, boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    append(log, b"one")
    reader = StreamReader.open(tmp_path, NAME)
    assert reader.next_seq() == 1
    reader.close()
    log.close()


def test_a_last_entry_that_is_none_is_found_at_opening(tmp_path: Path) -> None:
    overwrite(filled(tmp_path, 3).index_file, 4_096 + 2 * 24, bytes(24))
    with pytest.raises(StreamDamaged, match=r"\.indx at byte 4144: there is no entry of message 2"):
        open_reader(tmp_path)


def test_many_entries_at_once(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    reader, buffer = open_reader(tmp_path), bytearray(24 * 3)
    assert reader.read_entries(memoryview(buffer), 1) == len(buffer)
    assert [IndexEntry._make(each) for each in INDEX_ENTRY.iter_unpack(buffer)] == [reader.entry(i) for i in (1, 2, 3)]
    assert reader.read_entries(memoryview(buffer), 4) == 24, "the file ends"
    with pytest.raises(ValueError, match="begins with message 0, not -1"):
        reader.read_entries(memoryview(buffer), -1)
    reader.close()


def test_a_cut_gives_a_stream_another_identity(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    before = open_reader(tmp_path)
    log = open_log(tmp_path)
    append(log, b"more", at=2_000)
    after = open_reader(tmp_path)
    assert before.identity == after.identity
    log.set_aside(4)
    log.close()
    with pytest.raises(StreamCut):
        before.read_entries(memoryview(bytearray(24)), 0)
    cut_reader = open_reader(tmp_path)
    assert cut_reader.identity != before.identity
    for reader in (before, after, cut_reader):
        reader.close()
