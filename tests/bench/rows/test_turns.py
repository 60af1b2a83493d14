from __future__ import annotations

from bench.peers.plain import Plain
from bench.rows.turns import TurnsRow
from tests.bench.rows.conftest import MeasureRow


def test_the_names_are_those_of_a_full_run() -> None:
    assert [TurnsRow(20, 1).name, TurnsRow(20, 20).name] == ["turns-1", "turns-1000"]
    assert "20 connections" in TurnsRow(20, 1).title


def test_a_measurement(measure_row: MeasureRow) -> None:
    measure_row(TurnsRow(20, 20), Plain(100))
