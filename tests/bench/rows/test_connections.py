from __future__ import annotations

import pytest

from bench.peers.base import Peer
from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.connections import ConnectionsRow
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow

OURS = [kind(interpreted=interpreted_wanted()) for kind in (Tailrace, TailraceBinary)]


def test_the_name_is_that_of_a_full_run() -> None:
    assert ConnectionsRow(8_000, 0.1).name == "connections-8000"
    assert "800 quiet" in ConnectionsRow(8_000, 0.1).title


def test_a_measurement(measure_row: MeasureRow) -> None:
    extras = measure_row(ConnectionsRow(400, 0.1), Plain(100)).extras
    assert extras["joined_per_s"] > 0
    assert extras["slowest_ms"] > 0
    assert 0 <= extras["idle_cpu_percent"] < 50
    assert extras["quiet_after_s"] >= 0


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_the_broker_bears_a_crowd(measure_row: MeasureRow, peer: Peer) -> None:
    extras = measure_row(ConnectionsRow(300), peer).extras
    assert 0 < extras["resident_bytes_per_connection"] < 100_000
