from __future__ import annotations

import pytest

from bench.peers.udp import PlainUdp
from bench.rows.packets import SUBSCRIBERS, packets_in_row, packets_out_row
from tests.bench.rows.conftest import MeasureRow


def test_what_was_taken_and_delivered_is_measured(measure_row: MeasureRow) -> None:
    measure_row(packets_in_row(), PlainUdp(100))
    out = measure_row(packets_out_row(), PlainUdp(100))
    delivered = 1 - out.extras["lost_percent"] / 100
    assert out.value / out.extras["published_per_s"] == pytest.approx(SUBSCRIBERS * delivered)
