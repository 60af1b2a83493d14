from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import DirectoryError, StreamCut, StreamDamaged, StreamMissing
from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tailrace.spark import directory_source
from tailrace.spark.directory_source import DirectorySource
from tailrace.spark.places import EVERYTHING
from tailrace.spark.plan import resolve
from tailrace.spark.slices import Slice
from tailrace.spark.source import SourceOptions, StreamRef
from tests.spark.data import START_US, Row, Sent, append, make_directory, open_log, plain, rows_of, trim

NAME = "orders"


@pytest.fixture
def data(tmp_path: Path) -> DataDirectory:
    return make_directory(tmp_path / "data", {NAME: plain(100), "empty": [], "ü/*": plain(3), "$own": plain(1)})


def source_of(data: DataDirectory, check_crc: bool = False) -> DirectorySource:
    return DirectorySource(SourceOptions(str(data.path), check_crc=check_crc))


def whole(source: DirectorySource, name: str = NAME) -> Slice:
    with source.view(source.ref(name)) as view:
        return resolve(view, EVERYTHING)


def read(source: DirectorySource, slice_: Slice, *, frames: bool = True) -> list[Row]:
    """All of a slice, as the plain look at the frames gives it."""
    found = []
    with source.open(slice_) as reader:
        for entries, data in reader.blocks(frames=frames):
            starts = entries.table["offset"] - entries.table["offset"][0]
            for i, seq in enumerate(entries.seq.tolist()):
                row = entries.table[i]
                start, size = int(starts[i]) + HEADER_BYTES, int(row["length"]) - HEADER_BYTES
                payload = b"" if data is None else bytes(data[start : start + size])
                found.append(Row(slice_.stream, seq, int(row["timestamp_us"]), int(row["epoch"]), size, payload))
    return found


def paths_of(data: DataDirectory, name: str = NAME) -> StreamPaths:
    return stream_paths(data.stream_directory(name), name)


def overwrite(file: str, offset: int, data: bytes) -> None:
    with open(file, "r+b") as opened:
        opened.seek(offset)
        opened.write(data)


# --- which streams --------------------------------------------------------------------------------------------------


def test_streams_are_listed_by_name_without_the_brokers_own(data: DataDirectory) -> None:
    assert [ref.stream for ref in source_of(data).streams(())] == ["empty", NAME, "ü/*"]
    assert all(ref.shard == data.shard_of(ref.stream) for ref in source_of(data).streams(()))


def test_named_streams_are_not_looked_for(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_source, "stream_names", None)
    assert [ref.stream for ref in source_of(data).streams(("nowhere", NAME))] == ["nowhere", NAME]


def test_patterns_and_names_together(data: DataDirectory) -> None:
    assert [ref.stream for ref in source_of(data).streams(("o*", "nowhere"))] == ["nowhere", NAME]


# --- looking at one -------------------------------------------------------------------------------------------------


def test_a_view_knows_its_ends_and_finds_times(data: DataDirectory) -> None:
    source = source_of(data)
    with source.view(source.ref(NAME)) as view:
        assert (view.first_seq, view.next_seq) == (0, 100)
        assert [view.seq_at(START_US + us) for us in (-5, 0, 1, 50_000, 99_000, 99_001)] == [0, 0, 1, 50, 99, 100]
        assert view.timestamp_at(7) == START_US + 7_000


def test_the_end_is_read_once(data: DataDirectory) -> None:
    source = source_of(data)
    log = open_log(data, NAME)
    with source.view(source.ref(NAME)) as view:
        append(log, plain(5, START_US + 200_000))
        assert view.next_seq == 100
    assert len(read(source, whole(source))) == 105
    log.close()


def test_after_a_crash_of_the_machine_only_what_was_synced_is_there(tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {})
    log = open_log(data, NAME, boot_id="before")
    append(log, plain(10))
    log.sync()
    append(log, plain(10, START_US + 10_000))
    log.abandon()
    source = source_of(data)
    assert whole(source).messages == 10
    assert len(read(source, whole(source))) == 10
    open_log(data, NAME).close()  # the owner has looked at the rest
    assert len(read(source, whole(source))) == 20


@pytest.mark.parametrize("name", ["nowhere", "x" * 200])
def test_a_stream_that_is_not_there(data: DataDirectory, name: str) -> None:
    source = source_of(data)
    with pytest.raises(StreamMissing):
        source.view(source.ref(name))


def test_a_stream_that_is_being_made_is_not_there(data: DataDirectory) -> None:
    os.unlink(paths_of(data, "empty").index_file)
    source = source_of(data)
    assert StreamRef(data.shard_of("empty"), "empty") in source.streams(())
    with pytest.raises(StreamMissing):
        source.view(source.ref("empty"))


@pytest.mark.parametrize("offset", [0, 24, 520])
def test_a_damaged_header_is_told_with_its_file(data: DataDirectory, offset: int) -> None:
    overwrite(paths_of(data).index_file, offset, b"\xff")
    source = source_of(data)
    with pytest.raises(StreamDamaged, match=r"orders\.indx at byte"):
        source.view(source.ref(NAME))


# --- reading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_crc", [False, True])
def test_all_of_it_is_what_the_frames_say(data: DataDirectory, check_crc: bool) -> None:
    source = source_of(data, check_crc)
    for name in (NAME, "empty", "ü/*", "$own"):
        assert read(source, whole(source, name)) == rows_of(data, name)


def test_without_frames_the_content_is_not_read(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamReader, "read_into", None)
    source = source_of(data)
    wanted = [row._replace(payload=b"") for row in rows_of(data, NAME)]
    assert read(source, whole(source), frames=False) == wanted


sent_streams = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 3), st.binary(max_size=40)), min_size=1, max_size=30
)


@given(sent_streams, st.integers(0, 40), st.integers(1, 9), st.integers(60, 200), st.data())
def test_any_slice_of_any_stream(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, int, bytes]],
    trimmed: int,
    block_entries: int,
    block_bytes: int,
    draw: st.DataObject,
) -> None:
    time_us, epoch, sent = START_US, 1, []
    for step_us, its_epoch, payload in steps:
        time_us, epoch = time_us + step_us, max(epoch, its_epoch)
        sent.append(Sent(time_us, payload, epoch=epoch))
    data = make_directory(tmp_path_factory.mktemp("any") / "data", {NAME: sent})
    trim(data.path, NAME, min(trimmed, len(sent)), punch=draw.draw(st.booleans()))
    start = draw.draw(st.integers(0, len(sent)))
    end = draw.draw(st.integers(start, len(sent)))
    with pytest.MonkeyPatch.context() as patch:
        for constant in ("INDEX_BLOCK_ENTRIES", "FRAMES_BLOCK_ENTRIES"):
            patch.setattr(directory_source, constant, block_entries)
        patch.setattr(directory_source, "FRAMES_BLOCK_BYTES", block_bytes)
        source = source_of(data, check_crc=True)
        slice_ = whole(source)._replace(first_seq=start, end_seq=end)
        wanted = [row for row in rows_of(data, NAME) if start <= row.seq < end]
        assert read(source, slice_) == wanted
        assert read(source, slice_, frames=False) == [row._replace(payload=b"") for row in wanted]


def test_a_message_before_the_slice_can_be_had(data: DataDirectory) -> None:
    source = source_of(data)
    trim(data.path, NAME, 20)
    with source.open(whole(source)._replace(first_seq=50, end_seq=60)) as reader:
        assert reader.entries(49, 1).timestamp_us.tolist() == [START_US + 49_000]
        assert reader.entries(19, 1).messages == 0
        assert reader.entries(18, 4).seq.tolist() == [20, 21]
        assert reader.entries(-1, 1).messages == 0


def test_a_copy_that_begins_later_has_nothing_before(tmp_path: Path) -> None:
    data = make_directory(tmp_path / "data", {NAME: []})
    log = open_log(data, NAME)
    log.begin_at(500)
    append(log, plain(5))
    log.close()
    source = source_of(data)
    assert read(source, whole(source)) == rows_of(data, NAME)
    with source.open(whole(source)) as reader:
        assert reader.entries(499, 1).messages == 0
        assert reader.entries(400, 102).seq.tolist() == [500, 501]


class Meanwhile:
    """Does something after each read of a file: as the broker does, at the worst moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, method: str, *acts: object) -> None:
        self._acts: Iterator[object] = iter(acts)
        self._read = getattr(StreamReader, method)
        monkeypatch.setattr(StreamReader, method, lambda reader, *args: self._after(reader, *args))

    def _after(self, reader: StreamReader, *args: object) -> object:
        act = next(self._acts, None)
        if callable(act):
            act()
        return self._read(reader, *args)


@pytest.mark.parametrize("method", ["read_entries", "read_into"])
def test_what_is_trimmed_and_punched_while_it_is_read_never_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Between the first look at first_seq and the read, all but the end turns into zeros."""
    data = make_directory(tmp_path / "data", {NAME: plain(3_000, text="m" * 100)})
    source, wanted = source_of(data), rows_of(data, NAME)[2_500:]
    log = open_log(data, NAME)

    def drop() -> None:
        log.trim(2_500)
        assert log.punch(2_500) > 100_000

    slice_ = whole(source)
    Meanwhile(monkeypatch, method, drop)
    assert read(source, slice_) == wanted
    log.close()


def test_all_of_it_trimmed_while_it_is_read(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    source, log = source_of(data), open_log(data, NAME)
    slice_ = whole(source)
    Meanwhile(monkeypatch, "read_into", lambda: log.trim(100))
    assert read(source, slice_) == []
    assert read(source, slice_, frames=False) == []
    log.close()


def test_a_tail_that_is_set_aside_is_told_and_not_mixed(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    source, log = source_of(data), open_log(data, NAME)
    slice_ = whole(source)

    def part() -> None:
        log.set_aside(40)
        append(log, plain(60, START_US + 500_000, text="another"))

    Meanwhile(monkeypatch, "read_into", part)
    with pytest.raises(StreamCut):
        read(source, slice_)
    with pytest.raises(StreamCut):  # planned before it, read after it
        read(source, slice_)
    log.close()
    assert read(source, whole(source)) == rows_of(data, NAME)


# --- damage ---------------------------------------------------------------------------------------------------------


def entry_place(seq: int) -> int:
    return HEADER_PAGE_BYTES + INDEX_ENTRY_BYTES * seq


@pytest.mark.parametrize("frames", [False, True])
def test_zeros_in_the_index_are_damage(data: DataDirectory, frames: bool) -> None:
    overwrite(paths_of(data).index_file, entry_place(50), bytes(INDEX_ENTRY_BYTES))
    source = source_of(data)
    with pytest.raises(StreamDamaged, match=f"orders.indx at byte {entry_place(50)}"):
        read(source, whole(source), frames=frames)


def test_zeros_in_the_content_are_damage_without_checksums(data: DataDirectory) -> None:
    place = int(np.sum([32 + len(sent.payload) for sent in plain(50)])) + HEADER_PAGE_BYTES
    overwrite(paths_of(data).content_file, place, bytes(40))
    source = source_of(data)
    with pytest.raises(StreamDamaged, match=f"orders.content at byte {place}: message 50"):
        read(source, whole(source))
    assert len(read(source, whole(source), frames=False)) == 100


def test_a_flipped_payload_is_damage_where_checksums_are_asked_for(data: DataDirectory) -> None:
    overwrite(paths_of(data).content_file, HEADER_PAGE_BYTES + 33, b"M")
    assert len(read(source_of(data), whole(source_of(data)))) == 100
    with pytest.raises(StreamDamaged, match="message 0: the frame's checksum does not fit"):
        read(source_of(data, check_crc=True), whole(source_of(data)))


@pytest.mark.parametrize("suffix", ["index_file", "content_file"])
def test_a_file_that_was_cut_is_damage(data: DataDirectory, suffix: str) -> None:
    source = source_of(data)
    slice_ = whole(source)
    os.truncate(getattr(paths_of(data), suffix), HEADER_PAGE_BYTES + 500)
    with pytest.raises(StreamDamaged, match="ends"):
        read(source, slice_)


def test_an_index_that_is_cut_while_it_is_read_is_damage(data: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(data)
    Meanwhile(monkeypatch, "read_entries", lambda: os.truncate(paths_of(data).index_file, entry_place(30)))
    with pytest.raises(StreamDamaged, match=f"byte {entry_place(30)}: the file ends before its entries"):
        read(source, whole(source))


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError):
        DirectorySource(SourceOptions(str(tmp_path)))
