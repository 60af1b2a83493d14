from __future__ import annotations

import json
from pathlib import Path

from bench.machine import describe_machine
from bench.report import as_json, write_json
from bench.rows.base import Measurement
from bench.scale import QUICK
from bench.targets import COMPILED, evaluate
from tests.bench.conftest import MakeResults


def test_the_report_keeps_every_round(tmp_path: Path, make_results: MakeResults) -> None:
    rounds = [Measurement(value, 1.5, 100, {"p99_us": value * 2}) for value in (1.0, 3.0, 2.0)]
    results = make_results({("latency-1000", "nats"): rounds, ("latency-1000", "tailrace"): []})
    report = as_json(results, evaluate(results, COMPILED), QUICK, describe_machine(tmp_path), COMPILED, {"nats": "v1"})
    write_json(tmp_path / "new" / "report.json", report)
    read = json.loads((tmp_path / "new" / "report.json").read_text())
    nats, ours = read["rows"]
    assert (nats["value"], nats["extras"], len(nats["rounds"])) == (2.0, {"p99_us": 4.0}, 3)
    assert (ours["rounds"], "value" in ours) == ([], False)
    assert read["build"] == COMPILED
    assert read["machine"]["python"].startswith("3.")
    assert all(target["met"] is None for target in read["targets"])
