from __future__ import annotations

import pytest

from bench.load.limits import LoadError
from bench.peers.plain import Plain
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.idempotence import IdempotenceRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_only_who_numbers_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no numbers"):
        measure_row(IdempotenceRow(1), Plain(100))


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("messages", [1, 100])
def test_the_broker_holds_all_of_it(measure_row: MeasureRow, messages: int) -> None:
    measured = measure_row(IdempotenceRow(messages), TailraceBinary(acked=True, interpreted=interpreted_wanted()))
    assert measured.value == measured.extras["plain_per_s"] / measured.extras["numbered_per_s"]
