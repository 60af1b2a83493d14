"""A slave's log takes its master's very bytes, or nothing at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.shard import log as log_module
from tailrace.shard.check import check_stream
from tailrace.shard.errors import FramesRefused, StorageFull
from tailrace.shard.frame import FLAGS_OFFSET
from tailrace.shard.header import HEADER_PAGE_BYTES, VALUE_MAX
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.reader import StreamReader
from tests.shard.helpers import BOOT, LATER_BOOT, NAME, append, batch, open_log, payloads, read_messages
from tests.thorough import examples

stamp = load("tailrace.shard.frame_cy").stamp


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """The shards' folders of a master and of a slave."""
    for name in ("master", "slave"):
        (tmp_path / name).mkdir()
    return tmp_path / "master", tmp_path / "slave"


def frames_of(directory: Path, first_seq: int = 0, next_seq: int | None = None, *, boot: str = BOOT) -> bytes:
    """What a subscription sends of a stream."""
    reader = StreamReader.open(directory, NAME, boot_id=boot)
    start = reader.offset_of(first_seq)
    content = bytearray(reader.offset_of(reader.next_seq() if next_seq is None else next_seq) - start)
    assert reader.read_into(memoryview(content), start) == len(content)
    reader.close()
    return bytes(content)


def content(directory: Path) -> bytes:
    return (directory / f"{NAME}.content").read_bytes()[HEADER_PAGE_BYTES:]


def stamped(*payloads: bytes, seq: int = 0, at: int = 1_000, epoch: int = 1) -> bytearray:
    frames = batch(payloads)
    stamp(frames, seq, at, epoch, 0)
    return frames


def test_a_copy_is_equal_to_the_byte(directories: tuple[Path, Path]) -> None:
    master, slave = directories
    log, copy = open_log(master), open_log(slave)
    for i in range(20):
        append(log, *[b"message %d" % i] * (i + 1), at=1_000 * i, epoch=1 + i // 7)
    frames = frames_of(master)
    done = 0
    for next_seq in (1, 2, 50, 209, 210):
        taken = frames_of(master, done, next_seq)
        assert copy.take(taken) == next_seq - done
        done = next_seq
        assert (copy.next_seq, copy.end_offset) == (done, HEADER_PAGE_BYTES + len(frames_of(slave)))
    assert (copy.last_timestamp_us, copy.last_epoch) == (log.last_timestamp_us, log.last_epoch) == (19_000, 3)
    assert copy.epochs() == log.epochs() == ((1, 0, ""), (2, 28, ""), (3, 105, ""))
    assert copy.epochs(30) == ((2, 30, ""), (3, 105, ""))
    log.close()
    copy.close()
    assert content(slave) == content(master) == frames
    assert read_messages(slave) == read_messages(master)
    entries = [(path / f"{NAME}.indx").read_bytes()[HEADER_PAGE_BYTES:] for path in directories]
    assert entries[0] == entries[1]
    assert check_stream(slave, NAME, boot_id=BOOT).ok


def test_all_kinds_of_buffers_are_taken(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    frames = bytes(stamped(b"one", b"two"))
    body = bytearray(b"head" + frames + b"tail")
    assert log.take(frames[:35]) == 1
    assert log.take(memoryview(body)[39:-4]) == 1
    assert log.take(stamped(b"three", seq=2)) == 1
    log.close()
    assert payloads(tmp_path) == [b"one", b"two", b"three"]


@settings(max_examples=examples(60))
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.data())
def test_several_pieces_at_once_are_taken_as_they_are_one_by_one(counts: list[int], data: st.DataObject) -> None:
    """Whole, or up to the piece that is wrong: the files are the same to the byte."""
    pieces, seq = list[bytearray](), 0
    for number, count in enumerate(counts):
        texts = [b"x" * data.draw(st.sampled_from([0, 9, 300])) for _ in range(count)]
        pieces.append(stamped(*texts, seq=seq, at=1_000 + number, epoch=1 + number // 3))
        seq += count
    wrong = data.draw(st.none() | st.integers(0, len(pieces) - 1))
    if wrong is not None:
        bent(pieces[wrong], data.draw(st.integers(0, len(pieces[wrong]) - 1)))
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        together, apart = open_log(Path(one)), open_log(Path(other))
        taken = outcome(lambda: together.take(*[memoryview(piece) for piece in pieces]))
        for piece in pieces:
            last = outcome(lambda piece=piece: apart.take(piece))  # type: ignore[misc]
            if isinstance(last, str):
                break
        assert taken == (last if wrong is not None else seq)
        for attribute in ("next_seq", "end_offset", "last_timestamp_us", "last_epoch"):
            assert getattr(together, attribute) == getattr(apart, attribute)
        together.close()
        apart.close()
        for suffix in (".content", ".indx"):
            files = [(Path(path) / f"{NAME}{suffix}").read_bytes()[HEADER_PAGE_BYTES:] for path in (one, other)]
            assert files[0] == files[1]
        assert check_stream(Path(one), NAME, boot_id=BOOT).ok


def outcome(call: Callable[[], int]) -> int | str:
    try:
        return call()
    except FramesRefused as refused:
        return str(refused)


def test_the_flags_of_what_was_taken_last(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    flagged = batch([b"b"])
    flagged[FLAGS_OFFSET] = 1
    stamp(flagged, 1, 1_000, 1, 0)
    assert log.take(stamped(b"a"), flagged) == 2 and log.taken_flags == 1
    assert log.take(stamped(b"c", seq=2)) == 1 and log.taken_flags == 0


def bent(frames: bytearray, place: int) -> bytearray:
    frames[place] ^= 1
    return frames


Wrong = Callable[[], bytes | bytearray]
# The frames after message 0 (epoch 2, 2,000 µs), the message it fails at, and the error.
WRONG: dict[str, tuple[Wrong, int, str, str]] = {
    "nothing": (lambda: b"", 1, "short", "does not end"),
    "half a header": (lambda: stamped(b"a", seq=1, at=2_000, epoch=2)[:31], 1, "short", "does not end"),
    "half a frame": (lambda: stamped(b"a", b"b", seq=1, at=2_000, epoch=2)[:-1], 2, "short", "does not end"),
    "garbage": (lambda: bytes(100), 1, "length", "invalid frame length"),
    "a bent byte": (lambda: bent(stamped(b"a", b"b", seq=1, at=2_000, epoch=2), -1), 2, "crc", "checksum"),
    "unstamped": (lambda: batch([b"a"]), 1, "crc", "checksum"),
    "a gap": (lambda: stamped(b"a", seq=2, at=2_000, epoch=2), 1, "seq", "not the next message .*: it is message 2"),
    "a step back": (lambda: stamped(b"a", seq=0, at=2_000, epoch=2), 1, "seq", "it is message 0"),
    "a gap within": (
        lambda: stamped(b"a", seq=1, at=2_000, epoch=2) + stamped(b"b", seq=3, at=2_000, epoch=2),
        2,
        "seq",
        "it is message 3",
    ),
    "an earlier time": (lambda: stamped(b"a", seq=1, at=1_999, epoch=2), 1, "time", "goes back: 1999, after 2000"),
    "an earlier time within": (
        lambda: stamped(b"a", seq=1, at=3_000, epoch=2) + stamped(b"b", seq=2, at=2_999, epoch=2),
        2,
        "time",
        "goes back: 2999, after 3000",
    ),
    "an earlier epoch": (lambda: stamped(b"a", seq=1, at=2_000, epoch=1), 1, "epoch", "or is 0: 1, after 2"),
    "an earlier epoch within": (
        lambda: stamped(b"a", seq=1, at=2_000, epoch=4) + stamped(b"b", seq=2, at=2_000, epoch=3),
        2,
        "epoch",
        "or is 0: 3, after 4",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_wrong_frames_are_named_and_nothing_of_the_batch_is_taken(
    tmp_path: Path, case: tuple[Wrong, int, str, str]
) -> None:
    wrong, seq, fault, text = case
    log = open_log(tmp_path)
    log.take(stamped(b"first", at=2_000, epoch=2))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    said = rf"^stream 'stream' refuses these frames: message {seq}: .*{text}"
    with pytest.raises(FramesRefused, match=said) as refused:
        log.take(wrong())
    assert (refused.value.seq, refused.value.fault, refused.value.name) == (seq, fault, NAME)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert (log.next_seq, log.last_timestamp_us, log.last_epoch) == (1, 2_000, 2)
    assert log.take(stamped(b"second", seq=1, at=2_000, epoch=3)) == 1
    log.close()
    assert payloads(tmp_path) == [b"first", b"second"]


def test_no_epoch_zero_begins_a_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    with pytest.raises(FramesRefused, match="or is 0: 0, after 0"):
        log.take(stamped(b"a", epoch=0))
    log.close()


def test_seqs_end_where_words_do(tmp_path: Path) -> None:
    log = StreamLog.open(tmp_path, NAME, create=True, boot_id=BOOT, base_seq=VALUE_MAX - 1)
    with pytest.raises(FramesRefused, match="seqs and offsets end at"):
        log.take(stamped(b"a", b"b", seq=VALUE_MAX - 1))
    assert log.take(stamped(b"a", seq=VALUE_MAX - 1)) == 1
    log.close()
    log = open_log(tmp_path)
    assert log.next_seq == VALUE_MAX
    log.close()


def test_a_batch_is_committed_as_one_that_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames, entries, then the words; earlier frames were checked."""
    log = open_log(tmp_path)
    pwrite, steps = os.pwrite, []

    def written(fd: int, data: bytes, offset: int) -> int:
        steps.append((len(data), log.next_seq))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(log_module, "_pwrite", written)
    log.take(stamped(b"one", b"two"))
    assert steps == [(70, 0), (48, 0)]
    assert log.next_seq == 2
    log.close()


def test_a_full_disk_commits_nothing_and_the_log_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    frames = stamped(b"one")

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(log_module, "_pwrite", full)
        with pytest.raises(StorageFull):
            log.take(frames)
    assert log.next_seq == 0
    assert log.take(frames) == 1
    log.close()


def test_a_full_disk_takes_none_of_several_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path)
    pieces = [stamped(b"a" * 5_000), stamped(b"b", seq=1)]
    pwritev = os.pwritev

    def full(fd: int, row: list[bytes], offset: int) -> int:
        pwritev(fd, row[:1], offset)
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(StorageFull):
            log.take(*pieces)
    assert (log.next_seq, log.taken_flags) == (0, 0)
    assert log.take(*pieces) == 2
    log.close()
    assert payloads(tmp_path) == [b"a" * 5_000, b"b"]


@pytest.mark.parametrize("boot", [BOOT, LATER_BOOT])
def test_a_copy_is_equal_across_a_crash_and_goes_on(directories: tuple[Path, Path], boot: str) -> None:
    master, slave = directories
    log, copy = open_log(master), open_log(slave)
    append(log, *[b"x" * 3_000] * 60, epoch=4)
    append(log, *[b"y"] * 300, at=5_000, epoch=5)
    copy.take(frames_of(master, 0, 50))
    copy.sync()
    copy.take(frames_of(master, 50, 200))
    copy.abandon()
    if boot == LATER_BOOT:
        with open(slave / f"{NAME}.content", "r+b") as file:
            file.truncate(HEADER_PAGE_BYTES + len(frames_of(master, 0, 100)) + 7)  # what the machine had got round to
    copy = open_log(slave, boot=boot)
    assert copy.next_seq == (200 if boot == BOOT else 100)
    assert (copy.last_timestamp_us, copy.last_epoch) == (5_000, 5)
    assert copy.new_boot == (boot == LATER_BOOT)
    copy.take(frames_of(master, copy.next_seq))
    log.close()
    copy.close()
    assert content(slave) == content(master)
    assert check_stream(slave, NAME, boot_id=boot).ok


def test_a_promoted_copy_appends_behind_what_it_took(directories: tuple[Path, Path]) -> None:
    master, slave = directories
    log, copy = open_log(master), open_log(slave)
    append(log, b"one", at=9_000)
    copy.take(frames_of(master))
    assert append(copy, b"two", at=1, epoch=2) == 1
    assert (copy.last_timestamp_us, copy.last_epoch) == (9_000, 2)
    assert log.take(frames_of(slave, 1)) == 1, "and the other way round"
    assert log.frame_crc(1) == copy.frame_crc(1) != copy.frame_crc(0)
    log.close()
    copy.close()
    assert content(slave) == content(master)


@settings(max_examples=examples(150), deadline=None)
@given(st.binary(max_size=150), st.lists(st.binary(max_size=40), max_size=3), st.integers(0, 200), st.integers(0, 255))
def test_any_bytes_are_taken_whole_or_refused(
    tmp_path_factory: pytest.TempPathFactory, garbage: bytes, good: list[bytes], place: int, mask: int
) -> None:
    directory = tmp_path_factory.mktemp("any")
    log = open_log(directory)
    frames = bytearray(stamped(*good, seq=0) + garbage)
    if frames:
        frames[place % len(frames)] ^= mask
    before = log.next_seq
    try:
        count = log.take(frames)
    except FramesRefused:
        count = 0
    assert log.next_seq == before + count
    assert bytes(frames_of(directory)) == (frames if count else b"")
    log.close()
    assert check_stream(directory, NAME, boot_id=BOOT).ok


# --- a copy that begins later


@pytest.mark.parametrize("boot", [BOOT, LATER_BOOT])
def test_a_stream_may_begin_at_any_seq(tmp_path: Path, boot: str) -> None:
    log = StreamLog.open(tmp_path, NAME, create=True, boot_id=BOOT, base_seq=1_000)
    assert (log.first_seq, log.next_seq, log.synced_seq) == (1_000, 1_000, 1_000)
    log.abandon()
    log = open_log(tmp_path, boot=boot)
    assert (log.first_seq, log.next_seq) == (1_000, 1_000), "without a message it is remembered too"
    with pytest.raises(FramesRefused, match=r"message 1000: .* it is message 0"):
        log.take(stamped(b"zero"))
    assert log.take(stamped(b"a", b"b", b"c", seq=1_000, at=7_000)) == 3
    log.sync()
    log.trim(1_002)
    log.close()
    log = open_log(tmp_path, boot=boot)
    assert (log.first_seq, log.next_seq, log.seq_at(0)) == (1_002, 1_003, 1_002)
    log.close()
    assert [message.seq for message in read_messages(tmp_path, boot=boot)] == [1_002]
    report = check_stream(tmp_path, NAME, boot_id=boot)
    assert report.ok
    assert (report.first_seq, report.next_seq) == (1_002, 1_003)


def test_the_beginning_is_on_the_disk_before_the_log_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    StreamLog.open(tmp_path, NAME, create=True, boot_id=BOOT, base_seq=5).close()
    assert synced == ["stream.content", "stream.indx", tmp_path.name]
    synced.clear()
    StreamLog.open(tmp_path, "other", create=True, boot_id=BOOT).close()
    assert synced == []


@pytest.mark.parametrize("base_seq", [-1, VALUE_MAX + 1])
def test_what_is_no_beginning(tmp_path: Path, base_seq: int) -> None:
    with pytest.raises(ValueError, match="cannot begin at"):
        StreamLog.open(tmp_path, NAME, create=True, boot_id=BOOT, base_seq=base_seq)
    assert list(tmp_path.iterdir()) == []
