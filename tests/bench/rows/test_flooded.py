from __future__ import annotations

import pytest

from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.rows.flooded import FloodedRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_no_other_broker_is_asked() -> None:
    assert FloodedRow("making").kind not in Plain(100).kinds


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("flood", ["subscribing", "claims"])
def test_a_subscriber_is_timed_beside_a_flood(measure_row: MeasureRow, flood: str) -> None:
    measured = measure_row(FloodedRow(flood), Tailrace(interpreted=interpreted_wanted()))
    assert 0 < measured.extras["p50_us"] <= measured.value
    assert 0 < measured.extras["p50_alone_us"] <= measured.extras["p99_alone_us"]
    assert measured.extras["noise_bytes_per_s"] > 0
