from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tailrace.shard.directory import DataDirectory, make_data_dir
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.header import HEADER_PAGE_BYTES, read_boot_id
from tailrace.shard.log import StreamLog
from tailrace.shard.stream_files import CONTENT_SUFFIX
from tests.shard.helpers import batch, flip
from tests.system.tree_check import (
    SHOWN_MAX,
    Extent,
    assert_equal,
    assert_sound,
    differences,
    read_diverged,
    read_log,
    streams_of,
    wait_equal,
)

SHARDS = 4
FRAME = HEADER_BYTES + len(b"message 0")


def opened(data: DataDirectory, name: str, base_seq: int = 0) -> StreamLog:
    folder = data.stream_directory(name)
    return StreamLog.open(folder, name, create=True, boot_id=read_boot_id(), base_seq=base_seq)


def write(data: DataDirectory, name: str, first: int, end: int, *, at: int = 1_000, epoch: int = 1) -> None:
    """Messages b"message N" from `first` on, one microsecond after the other; the log may have to begin there."""
    log = opened(data, name, first)
    for seq in range(first, end):
        assert log.append(batch([b"message %d" % seq]), 1, at + seq, epoch) == seq
    log.close()


def content(data: DataDirectory, name: str) -> Path:
    return data.stream_directory(name) / (name + CONTENT_SUFFIX)


@pytest.fixture
def top(tmp_path: Path) -> DataDirectory:
    data = make_data_dir(tmp_path / "top", SHARDS)
    write(data, "a", 0, 8)
    write(data, "b", 0, 3)
    return data


@pytest.fixture
def copy(tmp_path: Path, top: DataDirectory) -> DataDirectory:
    shutil.copytree(top.path, tmp_path / "copy")
    return DataDirectory(tmp_path / "copy", SHARDS, "another")


def nodes(*all_data: DataDirectory) -> dict[str, Path]:
    return {data.path.name: data.path for data in all_data}


def test_equal_copies(top: DataDirectory, copy: DataDirectory) -> None:
    both = nodes(top, copy)
    assert streams_of(copy.path) == {"a": Extent(0, 8), "b": Extent(0, 3)}
    assert_equal(both, "top")
    wait_equal(both, "top", 1.0)
    assert_sound(both)


def test_a_copy_that_begins_later_at_another_offset(tmp_path: Path, top: DataDirectory) -> None:
    late = make_data_dir(tmp_path / "late", 2 * SHARDS)  # how many shards a node has is its own matter
    write(late, "a", 5, 8)
    write(late, "b", 0, 3)
    assert differences(nodes(top, late), "top", starts=False) == []
    assert differences(nodes(top, late), "top") == ["stream a: late begins at 5, top at 0"]


def test_a_copy_that_has_not_everything_yet(tmp_path: Path, top: DataDirectory) -> None:
    behind = make_data_dir(tmp_path / "behind", SHARDS)
    write(behind, "a", 0, 6)
    write(behind, "b", 0, 3)
    assert differences(nodes(top, behind), "top") == ["stream a: behind has messages 0 to 6, top has 0 to 8"]
    assert differences(nodes(top, behind), "top", ends=False) == []
    with pytest.raises(AssertionError, match=r"after 0.0 s still\nstream a: behind has messages 0 to 6"):
        wait_equal(nodes(top, behind), "top", 0.0)
    write(behind, "a", 6, 8)
    wait_equal(nodes(top, behind), "top", 0.0)


def test_a_copy_that_has_more_than_its_master(top: DataDirectory, copy: DataDirectory) -> None:
    write(copy, "b", 3, 4)
    for ends in (True, False):
        found = differences(nodes(top, copy), "top", ends=ends)
        assert found == ["stream b: copy has messages 0 to 4, top has 0 to 3"]


def test_streams_that_one_of_them_does_not_have(top: DataDirectory, copy: DataDirectory) -> None:
    write(copy, "c", 0, 2)
    write(top, "d", 0, 1)
    write(top, "$own", 0, 1)
    assert differences(nodes(top, copy), "top") == [
        "stream c: top does not have it, and copy has 0 to 2",
        "stream d: copy does not have it, and top has 0 to 1",
    ]


def test_another_timestamp_and_another_epoch(tmp_path: Path, top: DataDirectory) -> None:
    other = make_data_dir(tmp_path / "other", SHARDS)
    write(other, "a", 0, 5)
    write(other, "a", 5, 6, at=2_000)
    write(other, "a", 6, 8, at=2_000, epoch=2)
    write(other, "b", 0, 2)
    write(other, "b", 2, 3, epoch=2)
    assert differences(nodes(top, other), "top") == [
        "stream a: message 5: timestamp_us 2005 in other, 1005 in top",
        "stream b: message 2: epoch 2 in other, 1 in top",
    ]


def test_one_byte_of_a_payload(top: DataDirectory, copy: DataDirectory) -> None:
    flip(content(copy, "a"), HEADER_PAGE_BYTES + 3 * FRAME + HEADER_BYTES, 0x20)
    found = differences(nodes(top, copy), "top")
    assert found == ["stream a: message 3: payload b'Message 3' in copy, b'message 3' in top"]
    with pytest.raises(AssertionError, match="checksum"):
        assert_sound(nodes(copy))
    with pytest.raises(AssertionError, match="copy, stream a: message 3: the frame's checksum"):
        list(read_log(copy.path, "a"))


def test_one_byte_of_a_checksum(top: DataDirectory, copy: DataDirectory) -> None:
    flip(content(copy, "a"), HEADER_PAGE_BYTES + 2 * FRAME + 4)
    (found,) = differences(nodes(top, copy), "top")
    assert found.startswith("stream a: message 2: checksum ")


def test_a_length(top: DataDirectory, copy: DataDirectory) -> None:
    flip(content(copy, "a"), HEADER_PAGE_BYTES + 2 * FRAME, 0x01)
    (found,) = differences(nodes(top, copy), "top")
    assert found == "stream a: message 2: length 40 in copy, 41 in top"


def test_a_master_that_is_damaged_itself(top: DataDirectory, copy: DataDirectory) -> None:
    for data in (top, copy):
        flip(content(data, "a"), HEADER_PAGE_BYTES + 2 * FRAME + HEADER_BYTES)
    with pytest.raises(AssertionError, match="top: message 2: the frame's checksum does not fit"):
        differences(nodes(top, copy), "top")


def test_a_directory_that_is_none(tmp_path: Path, top: DataDirectory) -> None:
    """Such as that of a node that is just being rebuilt."""
    found = differences({"top": top.path, "gone": tmp_path / "gone"}, "top")
    assert len(found) == 1 and found[0].startswith("gone: ") and "not a tailrace data directory" in found[0]


def test_a_long_list_is_cut(tmp_path: Path, top: DataDirectory) -> None:
    empty = make_data_dir(tmp_path / "empty", SHARDS)
    for number in range(SHOWN_MAX + 5):
        write(top, f"many-{number:02d}", 0, 1)
    with pytest.raises(AssertionError, match=r"empty does not have it(?s:.)*and 7 more"):
        assert_equal(nodes(top, empty), "top")


def test_a_log_and_what_was_set_aside(top: DataDirectory) -> None:
    log = opened(top, "a")
    log.set_aside(5)
    log.close()
    assert [message.payload for message in read_log(top.path, "a")] == [b"message %d" % seq for seq in range(5)]
    (tail,) = read_diverged(top.path).values()
    assert [(message.seq, message.payload) for message in tail] == [(seq, b"message %d" % seq) for seq in (5, 6, 7)]
