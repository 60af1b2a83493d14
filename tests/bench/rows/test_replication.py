from __future__ import annotations

import pytest

from bench.peers.base import Contestant, Unavailable
from bench.peers.jetstream import JetStreamCluster
from bench.peers.plain import BareSendfile
from bench.peers.tailrace_cluster import TailraceCluster
from bench.peers.tailrace_nodes import TailraceNodes
from bench.rows.base import replay_messages
from bench.rows.replication import catch_up_row, cluster_row, hop_row, replicated_row
from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import TINY, MeasureRow

pytestmark = [pytest.mark.slow, pytest.mark.system]
APPENDED, HELD = (TailraceNodes(replicas=replicas, interpreted=interpreted_wanted(), workers=1) for replicas in (0, 1))


@pytest.mark.thorough
@pytest.mark.parametrize(("nodes", "peer"), [(2, APPENDED), (3, HELD)], ids=["2, appended", "3, replicated 1"])
def test_all_nodes_of_a_chain_have_what_was_published(measure_row: MeasureRow, nodes: int, peer: Contestant) -> None:
    measured = measure_row(replicated_row(nodes), peer)
    assert measured.extras["all_hold_ms"] > 0


@pytest.mark.thorough
def test_all_nodes_of_a_cluster_have_what_was_published(measure_row: MeasureRow) -> None:
    peer = TailraceCluster(interpreted=interpreted_wanted(), workers=1)
    try:
        peer.version()
    except Unavailable as error:
        pytest.skip(str(error))
    assert measure_row(cluster_row(), peer).extras["all_hold_ms"] > 0


def test_three_replicas_of_jetstream(measure_row: MeasureRow) -> None:
    peer = JetStreamCluster()
    try:
        peer.version()
    except Unavailable as error:
        pytest.skip(str(error))
    assert measure_row(replicated_row(2), peer).extras == {}


@pytest.mark.thorough
def test_a_hop_is_the_difference_of_two_subscribers(measure_row: MeasureRow) -> None:
    extras = measure_row(hop_row(200), APPENDED).extras
    assert 0 < extras["master_p50_us"] <= extras["master_p99_us"]
    assert 0 < extras["slave_p50_us"] <= extras["slave_p99_us"]


@pytest.mark.thorough
def test_an_empty_slave_gets_all_of_a_stream(measure_row: MeasureRow) -> None:
    assert measure_row(catch_up_row(), APPENDED).extras["messages_per_s"] > 0


@pytest.mark.parametrize("copied", [False, True])
def test_a_bare_file_is_what_it_is_held_against(measure_row: MeasureRow, *, copied: bool) -> None:
    nbytes = replay_messages(TINY) * (HEADER_BYTES + TINY.payload_bytes)
    assert measure_row(catch_up_row(), BareSendfile(nbytes, copied=copied)).extras["messages_per_s"] > 0
