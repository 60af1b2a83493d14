"""The benchmark of the rollup, with an engine that needs no JVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark", reason="needs the extra `spark` (pip install -e '.[bench,spark]')")

from bench.rollups.command import main


def test_a_small_run(tmp_path: Path) -> None:
    scale = ["--messages", "200", "--streams", "2", "--rounds", "2"]
    where = ["--engine", "kernel", "--scratch", str(tmp_path), "--json", str(tmp_path / "figures.json")]
    done = CliRunner().invoke(main, [*scale, *where])
    assert done.exit_code == 0, done.output
    assert "kernel" in done.output
    (figure,) = json.loads((tmp_path / "figures.json").read_text())
    assert (figure["row"], figure["messages"], len(figure["times_s"])) == ("rollup-2", 200, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
