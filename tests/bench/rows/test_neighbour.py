from __future__ import annotations

import pytest

from bench.peers.base import Peer
from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.neighbour import NeighbourRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow

OURS = [kind(interpreted=interpreted_wanted()) for kind in (Tailrace, TailraceBinary)]


def test_both_subscribers_are_on_the_only_worker() -> None:
    suited = NeighbourRow().suited(TailraceBinary(workers=2))
    assert isinstance(suited, TailraceBinary)
    assert suited.workers == 1
    plain = Plain(100)
    assert NeighbourRow().suited(plain) is plain


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_a_subscriber_is_timed_with_and_without_noise(measure_row: MeasureRow, peer: Peer) -> None:
    measured = measure_row(NeighbourRow(), peer)
    extras = measured.extras
    assert 0 < extras["p50_us"] <= measured.value
    assert 0 < extras["p50_alone_us"] <= extras["p99_alone_us"]
    assert extras["p99_raised_us"] == measured.value - extras["p99_alone_us"]
    assert extras["noise_bytes"] >= 5_000_000
