from __future__ import annotations

import pytest

from bench.peers.base import Peer
from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.roundrobin import RoundRobinRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow

OURS = [
    Tailrace(interpreted=interpreted_wanted()),
    *(TailraceBinary(acked=acked, interpreted=interpreted_wanted()) for acked in (False, True)),
]


def test_it_is_as_much_slower_as_its_rates_say(measure_row: MeasureRow) -> None:
    measured = measure_row(RoundRobinRow(50), Plain(100))
    assert measured.value == measured.extras["one_per_s"] / measured.extras["many_per_s"]


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_the_broker_holds_all_of_it(measure_row: MeasureRow, peer: Peer) -> None:
    measure_row(RoundRobinRow(50), peer)
