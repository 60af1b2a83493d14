from __future__ import annotations

from bench.peers.plain import Plain
from bench.rows.latency import LatencyRow
from tests.bench.rows.conftest import MeasureRow


def test_quantiles_rise_and_the_pairs_lie_around_the_median(measure_row: MeasureRow) -> None:
    measured = measure_row(LatencyRow(500), Plain(100))
    extras = measured.extras
    assert measured.value <= extras["p99_us"] <= extras["p99_9_us"] <= extras["max_us"]
    assert extras["best_pair_us"] <= measured.value <= extras["worst_pair_us"]
    assert 0 < extras["reached_per_s"] < 505
