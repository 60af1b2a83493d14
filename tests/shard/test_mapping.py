from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.shard.mapping import PAGE_BYTES, Mapping


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(2 * PAGE_BYTES))
    return path


def test_a_mapping_outlives_its_descriptor_and_holds_none(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    before = len(os.listdir("/proc/self/fd"))
    mapping = Mapping(fd, PAGE_BYTES, PAGE_BYTES, writable=True)
    assert len(os.listdir("/proc/self/fd")) == before
    os.close(fd)
    mapping.view[3] = 7
    assert file.read_bytes() == bytes(PAGE_BYTES + 3) + b"\7" + bytes(PAGE_BYTES - 4)
    mapping.close()
    mapping.close()
    assert mapping.address == 0
    with pytest.raises(ValueError, match="released"):
        mapping.view[0]


def test_a_mapping_for_reading_is_not_written(file: Path) -> None:
    with open(file, "rb") as opened:
        mapping = Mapping(opened.fileno(), 0, PAGE_BYTES, writable=False)
    assert mapping.view.readonly
    assert mapping.view.nbytes == PAGE_BYTES
    mapping.close()


def test_a_mapping_that_nobody_closed_goes_with_its_object(file: Path) -> None:
    with open(file, "rb") as opened:
        mapping = Mapping(opened.fileno(), 0, PAGE_BYTES, writable=False)
    at = f"{mapping.address:x}-"
    assert at in Path("/proc/self/maps").read_text()
    del mapping
    assert at not in Path("/proc/self/maps").read_text()


def test_a_mapping_that_cannot_be_made_is_an_error(file: Path) -> None:
    with open(file, "rb") as opened, pytest.raises(PermissionError):
        Mapping(opened.fileno(), 0, PAGE_BYTES, writable=True)
    with pytest.raises(OSError, match="Bad file descriptor"):
        Mapping(-1, 0, PAGE_BYTES, writable=False)
