from __future__ import annotations

from bench.peers.plain import Plain
from bench.rows.fanout import FanOutRow
from tests.bench.rows.conftest import MeasureRow


def test_deliveries_are_publishes_times_subscribers(measure_row: MeasureRow) -> None:
    measured = measure_row(FanOutRow(10), Plain(100))
    assert round(measured.value / measured.extras["published_per_s"]) == 10
