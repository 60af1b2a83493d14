from __future__ import annotations

import pytest

from bench.load.limits import LoadError
from bench.peers.plain import Plain
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.consume import ConsumeRow, ManyConsumersRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_only_who_has_consumers_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no consumers"):
        measure_row(ManyConsumersRow(10), Plain(100))


@pytest.mark.slow
@pytest.mark.system
def test_all_of_it_is_finished(measure_row: MeasureRow) -> None:
    peer = TailraceBinary(acked=True, interpreted=interpreted_wanted())
    measure_row(ConsumeRow(), peer)
    assert measure_row(ManyConsumersRow(10_000, 0.01), peer).extras["gets_per_s"] > 0
