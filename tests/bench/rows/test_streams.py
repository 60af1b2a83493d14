from __future__ import annotations

import pytest

from bench.peers.tailrace import Tailrace
from bench.rows.streams import StreamsRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


@pytest.mark.slow
@pytest.mark.system
def test_the_broker_comes_back_after_both_ways_to_stop(measure_row: MeasureRow) -> None:
    extras = measure_row(StreamsRow(200), Tailrace(interpreted=interpreted_wanted())).extras
    assert 0 < extras["ready_clean_s"] < 30
    assert 0 < extras["ready_unclean_s"] < 30
    assert extras["open_files_max"] > 10
    assert extras["created_per_s"] > 0
