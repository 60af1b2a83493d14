from __future__ import annotations

import pytest

from bench.peers.tailrace import Tailrace
from bench.rows.durability import AlwaysRow, IntervalRow
from shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_each_row_has_its_own_configuration() -> None:
    peer = Tailrace()
    always, interval = AlwaysRow().suited(peer), IntervalRow().suited(peer)
    assert isinstance(always, Tailrace) and isinstance(interval, Tailrace)
    assert 'durability = "always"' in always.config
    assert "interval_ms = 10" in interval.config
    assert peer.config == ""


@pytest.mark.system
def test_publishes_to_many_streams_are_timed_until_they_are_on_the_disk(measure_row: MeasureRow) -> None:
    peer = Tailrace(interpreted=interpreted_wanted())
    always = measure_row(AlwaysRow(), peer)
    assert always.extras["200_streams_ms"] == always.value
    assert always.extras["times_one_stream"] == always.value / always.extras["1_streams_ms"]
    interval = measure_row(IntervalRow(), peer)
    assert 0 < interval.extras["median_ms"] <= interval.value
