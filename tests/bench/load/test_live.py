from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.load.limits import Deadline, LoadError
from bench.load.live import Lived, LiveQuery, Seen

PATIENCE_S = 30.0


def live_query(path: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> LiveQuery:
    """That runs this instead."""
    made = LiveQuery(path / "data", path, Deadline(PATIENCE_S))
    monkeypatch.setattr(made, "_command", [sys.executable, "-c", code])
    return made


def test_it_is_told_when_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """print("begun", flush=True); import sys; sys.stdin.read(); print('{"rows": 3, "batches": [0.5]}')"""
    with live_query(tmp_path, code, monkeypatch) as query:
        assert query.finish() == Lived(3, [0.5])


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit('no Java here')", "ended before its first batch: .*no Java here"),
        ("print('begun', flush=True); raise SystemExit('no data here')", "ended with 1: .*no data here"),
    ],
)
def test_what_goes_wrong_is_told(tmp_path: Path, code: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadError, match=told), live_query(tmp_path, code, monkeypatch) as query:
        query.finish()


def test_it_does_not_outlive_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with live_query(tmp_path, "print('begun', flush=True); import time; time.sleep(600)", monkeypatch) as query:
        process = query._process
    assert process.returncode != 0


def test_every_message_once() -> None:
    seen = Seen()
    seen.take([("a", 0, 4, 5), ("b", 0, 0, 1)])
    seen.take([("a", 5, 5, 1)])
    assert (seen.ends, seen.ends.total()) == ({"a": 6, "b": 1}, 7)
    for wrong in (("a", 7, 7, 1), ("a", 5, 6, 2), ("a", 6, 8, 2)):
        with pytest.raises(ValueError, match="a: "):
            seen.take([wrong])
