from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.command import main


@pytest.mark.thorough
@pytest.mark.slow
def test_a_quick_run_against_the_plain_process(tmp_path: Path) -> None:
    rows = "ingest-1,ingest-1000,turns-1,fanout-100,latency-1000"
    options = ["--quick", "--rows", rows, "--peers", "plain,plain-acks", "--seconds", "0.1"]
    done = CliRunner().invoke(main, [*options, "--scratch", str(tmp_path), "--output", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert "8/8 round 1: latency-1000, plain" in done.output
    report = json.loads((tmp_path / "out" / "compiled-quick-part.json").read_text())
    assert [row["failures"] for row in report["rows"]] == [[]] * 8
    assert all(row["value"] > 0 for row in report["rows"])
    assert re.search(r"not measured", done.output)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("option", ["--rows", "--peers"])
def test_an_unknown_name_is_refused_with_the_known_ones(option: str) -> None:
    done = CliRunner().invoke(main, [option, "nats-streaming"])
    assert done.exit_code == 2
    assert "unknown name 'nats-streaming'; there are" in done.output
