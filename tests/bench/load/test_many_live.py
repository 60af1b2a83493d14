"""A few streams instead of very many."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark` (pip install -e '.[bench,spark]')")

from bench.load import many_live
from tests.system.node import running


def test_each_trigger_has_what_has_grown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_live, "SETTLE_S", 0)
    many_live.main(tmp_path / "data", 30, 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.endswith(" tasks") and not line.endswith(" 0 tasks") for line in lines)


def test_over_a_connection_all_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_live, "SETTLE_S", 0)
    many_live.main(tmp_path / "data", 30, 0)
    with running(tmp_path / "data") as node:
        many_live.main(tmp_path / "data", 30, 2, brokers=f"127.0.0.1:{node.port}", reads=True)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(", ")[3].split(" rows")[0] for line in lines] == ["60", "10"]
