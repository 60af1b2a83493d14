"""The files a worker has open to read: a bounded number, the least recently used closed first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.delivery.readers import StreamReaders
from tailrace.shard.directory import DataDirectory, make_data_dir
from tailrace.shard.errors import StreamMissing
from tests.shard.helpers import BOOT, append, open_log


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    directory = make_data_dir(tmp_path / "data", 4)
    for number in range(1, 6):
        log = open_log(directory.stream_directory(f"s{number}"), f"s{number}")
        append(log, *[b"x"] * number)
        log.close()
    return directory


@pytest.fixture
def readers(directory: DataDirectory) -> Iterator[StreamReaders]:
    readers = StreamReaders(directory, 3, BOOT)
    yield readers
    readers.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_reader_is_opened_once(readers: StreamReaders) -> None:
    reader = readers.get(b"s2")
    assert (reader.name, reader.next_seq()) == ("s2", 2)
    assert readers.get(b"s2") is reader
    assert len(readers) == 1
    assert readers.path(b"s2").is_dir()


def test_the_least_recently_used_is_closed(readers: StreamReaders) -> None:
    first = readers.get(b"s5")
    for name in (b"s1", b"s2"):
        readers.get(name)
    readers.get(b"s5")
    before = descriptors()
    for name in (b"s3", b"s4"):
        readers.get(name)
    assert len(readers) == 3
    assert descriptors() == before
    assert readers.get(b"s5") is first
    assert readers.get(b"s1").next_seq() == 1, "opened again"


def test_one_that_is_not_there_is_not_remembered(readers: StreamReaders, directory: DataDirectory) -> None:
    with pytest.raises(StreamMissing):
        readers.get(b"new")
    assert len(readers) == 0
    log = open_log(directory.stream_directory("new"), "new")
    append(log, b"x")
    assert readers.get(b"new").next_seq() == 1
    log.close()


def test_closing_gives_the_descriptors_back(directory: DataDirectory) -> None:
    before = descriptors()
    readers = StreamReaders(directory, 3, BOOT)
    for name in (b"s1", b"s2", b"s3"):
        readers.get(name)
    readers.forget(b"s2")
    readers.forget(b"never opened")
    assert len(readers) == 2
    readers.close()
    assert descriptors() == before
