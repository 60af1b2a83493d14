from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tailrace.shard import place
from tailrace.shard.place import place_word
from tests.system.mounts import CannotMount, mounted


def word(path: Path) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        return place_word(fd)
    finally:
        os.close(fd)


def test_a_file_keeps_its_place_and_a_copy_has_another(tmp_path: Path) -> None:
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(b"x")
    shutil.copy(file, copy)
    found = word(file)
    assert 0 < found < 1 << 48
    os.rename(file, tmp_path / "renamed")
    assert word(tmp_path / "renamed") == found != word(copy)


def test_a_volume_that_is_mounted_again_is_another_place(tmp_path: Path) -> None:
    words = []
    for number in range(2):
        try:
            with mounted(tmp_path / f"mount{number}", "size=1m") as path:
                (path / "file").write_bytes(b"x")
                words.append(word(path / "file"))
        except CannotMount as error:
            pytest.skip(str(error))
    assert words[0] != words[1]


def test_a_kernel_that_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(place, "_statx", None)
    assert word(tmp_path / "file") == 0
    monkeypatch.setattr(place, "_statx", lambda *_: 0)
    assert word(tmp_path / "file") == 0, "it left the mask as it was"
