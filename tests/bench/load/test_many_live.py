"""A few streams instead of very many."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark` (pip install -e '.[bench,spark]')")

from bench.load import many_live


def test_each_trigger_has_what_has_grown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_live, "SETTLE_S", 0)
    many_live.main(tmp_path / "data", 30, 3)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.endswith(" tasks") and not line.endswith(" 0 tasks") for line in lines)
