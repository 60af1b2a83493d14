from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.rows.base import Measurement
from bench.table import ratio_to, results_tables, targets_table
from bench.targets import COMPILED, evaluate
from tests.bench.conftest import MakeResults

ROUNDS = {
    ("ingest-1", "tailrace"): [Measurement(3_000_000, 0.25, 64 << 20)],
    ("ingest-1", "tailrace-acks"): [Measurement(1_500_000, 0.5, 64 << 20)],
    ("ingest-1", "redis"): [Measurement(400_000, 2.0, 30 << 20), Measurement(600_000, 2.0, 30 << 20)],
    ("latency-1000", "tailrace"): [Measurement(50, 30, 64 << 20, {"p99_us": 1_200})],
}


def _text(make_results: MakeResults) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    for table in results_tables(make_results(ROUNDS)):
        console.print(table)
    console.print(targets_table(evaluate(make_results(ROUNDS), COMPILED)))
    return console.export_text()


def test_every_row_shows_figures_and_ratios(make_results: MakeResults) -> None:
    text = _text(make_results)
    redis = next(line for line in text.splitlines() if "Redis" in line and "answers" in line)
    for wanted in ("500 k", "6.00×", "3.00×", "2.00", "0.125×", "30 MiB", "40 %"):
        assert wanted in redis
    assert "ingest-1" in text
    assert "p99 1.20 ms" in text


def test_targets_are_met_missed_or_not_measured(make_results: MakeResults) -> None:
    lines = _text(make_results).splitlines()
    assert any("silent: 4 times Redis" in line and "6.00×" in line and "met" in line for line in lines)
    assert any("acknowledged: 4 times Redis" in line and "3.00×" in line and "missed" in line for line in lines)
    assert any("fan-out" in line and "not measured" in line for line in lines)


def test_a_cell_that_failed_says_so(make_results: MakeResults) -> None:
    results = make_results({**ROUNDS, ("ingest-1", "nats"): []})
    results.cells[-1].failures.append("round 1: it broke")
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(results_tables(results)[0])
    assert "failed" in console.export_text()
    assert results.failures() == ["ingest-1, nats: round 1: it broke"]


def test_there_is_no_ratio_to_ourselves(make_results: MakeResults) -> None:
    results = make_results(ROUNDS)
    assert ratio_to(results, results.cells[0], "tailrace", lambda cell: cell.value) is None
    assert ratio_to(results, results.cells[2], "tailrace", lambda cell: cell.value) == pytest.approx(6)
    assert ratio_to(results, results.cells[3], "tailrace-acks", lambda cell: cell.value) is None
