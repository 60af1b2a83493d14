"""Progress is for terminals; the bar itself is seen in test_pub and test_check."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tailrace.cli.progress import ProgressBar, input_size


def test_nothing_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressBar("title", 10, is_bytes=True) as bar:
        bar.show(5, "half")
    assert capfd.readouterr() == ("", "")


def test_nothing_where_nobody_wants_it(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with ProgressBar("title", 10, is_bytes=True, wanted=False) as bar:
        bar.show(5)
    assert capfd.readouterr() == ("", "")


def test_the_size_of_what_is_left_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    fd = os.open(file, os.O_RDONLY)
    assert input_size(fd) == 100
    os.lseek(fd, 30, os.SEEK_SET)
    assert input_size(fd) == 70
    os.lseek(fd, 300, os.SEEK_SET)
    assert input_size(fd) == 0
    os.close(fd)
    read_fd, write_fd = os.pipe()
    assert input_size(read_fd) is None
    os.close(read_fd)
    os.close(write_fd)
