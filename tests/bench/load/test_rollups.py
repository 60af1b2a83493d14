from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.load.limits import LoadError
from bench.load.rollups import Rollups

PATIENCE_S = 30.0
FOR_EVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"


def rollups(path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> Rollups:
    """That run this instead."""
    made = Rollups(path / "data", path / "out")
    monkeypatch.setattr(made, "_command", [sys.executable, "-c", code])
    return made


def processes() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if "time.sleep(600)" in " ".join(each.cmdline())]


def wait_until(states: set[str], count: int) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while [each.status() in states for each in processes()] != [True] * count:
        assert time.monotonic() < end_s, [(each.cmdline(), each.status()) for each in processes()]
        time.sleep(0.01)


def test_all_of_it_stands_still_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollups(tmp_path, FOR_EVER, monkeypatch) as running:
        wait_until({psutil.STATUS_SLEEPING}, 2)
        with running.suspended():
            wait_until({psutil.STATUS_STOPPED}, 2)
        wait_until({psutil.STATUS_SLEEPING}, 2)
        running.go_on()
        assert running.finished == 0
    assert processes() == []


def test_another_begins_where_one_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollups(tmp_path, "", monkeypatch) as running:
        end_s = time.monotonic() + PATIENCE_S
        while running.finished < 2:
            assert time.monotonic() < end_s
            running.go_on()


def test_one_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rollups(tmp_path, "raise SystemExit('no data here')", monkeypatch) as running:
        end_s = time.monotonic() + PATIENCE_S
        with pytest.raises(LoadError, match=r"ended with 1: .*no data here"):
            while time.monotonic() < end_s:
                running.go_on()
