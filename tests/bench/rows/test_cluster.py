from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.contest import measure
from bench.load.forwarding import ByTurns
from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.peers.base import Contestant, Unavailable
from bench.peers.plain import Plain
from bench.peers.tailrace_binary import TailraceBinary
from bench.peers.tailrace_cluster import TailraceCluster
from bench.peers.tailrace_nodes import TailraceNodes
from bench.rows.base import BenchRow, Measurement
from bench.rows.cluster import LEASE_SHAPES, LeaseShape, added, forwarded_row, increase_percent, lease_row
from bench.rows.latency import WARM_MESSAGES
from tailrace.shard.leaves import build, interpreted_wanted
from tests.bench.rows.conftest import TINY, MeasureRow
from tests.thorough import only_thorough

SHAPES = {shape.name: shape for shape in LEASE_SHAPES}


def test_what_is_added_is_the_difference_of_the_medians() -> None:
    def by_turns(leader_ns: list[int], other_ns: list[int]) -> ByTurns:
        warm = [10**9] * WARM_MESSAGES
        return ByTurns(warm + leader_ns, warm + other_ns, [4_000], [6_000], Spent(1.0, 1.0))

    figures = added([by_turns([1_000, 2_000, 9_000], [5_000] * 3), by_turns([3_000] * 3, [6_000, 7_000, 90_000])])
    assert figures["leader_p50_us"] == 3 and figures["leader_p99_us"] == 9
    assert figures["other_p50_us"] == 5 and figures["other_p99_us"] == 90
    assert (figures["best_pair_us"], figures["worst_pair_us"]) == (3, 4)
    assert figures["bare_relay_us"] == 2


def test_what_the_nodes_differ_by_before_is_no_increase() -> None:
    before = [(2.0, 1.0), (4.0, 2.0), (9.0, 1.0)]  # twice as much at the first node
    assert increase_percent(before, [(2.2, 1.0), (20.0, 10.0), (2.1, 1.0)]) == pytest.approx([0, 5, 10])


@pytest.mark.parametrize("row", [forwarded_row(replicated=True), lease_row(SHAPES["turns"])], ids=lambda row: row.name)
def test_only_who_has_leaders_takes_part(measure_row: MeasureRow, row: BenchRow) -> None:
    with pytest.raises(LoadError, match="has no lea"):
        measure_row(row, Plain(100, acked=True))


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.thorough
@pytest.mark.parametrize("replicated", [False, True], ids=["appended", "replicated"])
def test_publishes_are_timed_at_a_cluster(measure_row: MeasureRow, *, replicated: bool) -> None:
    peer = TailraceCluster(interpreted=interpreted_wanted(), workers=1)
    try:
        peer.version()
    except Unavailable as error:
        pytest.skip(str(error))
    extras = measure_row(forwarded_row(replicated=replicated), peer).extras
    assert 0 < extras["leader_p50_us"] <= extras["leader_p99_us"]
    assert 0 < extras["other_p50_us"] <= extras["other_p99_us"]


def _lease_of(tmp_path: Path, shape: LeaseShape, peer: Contestant) -> Measurement:
    """How much more it is may be anything here: even less than nothing."""
    return measure(lease_row(replace(shape, messages=shape.messages // 20)), peer, TINY, tmp_path, build())


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize(
    "shape", [SHAPES["batches"], *only_thorough(SHAPES["singles"], SHAPES["turns"])], ids=lambda shape: shape.name
)
def test_a_node_is_measured_before_its_lease_and_under_it(tmp_path: Path, shape: LeaseShape) -> None:
    measured = _lease_of(tmp_path, shape, TailraceBinary(acked=True, interpreted=interpreted_wanted()))
    assert measured.cpu_us > 0 and measured.extras["without_cpu_us"] > 0
    assert measured.extras["percent_quarter_below"] <= measured.value <= measured.extras["percent_quarter_above"]


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.thorough
def test_a_node_with_a_slave_is_measured_too(tmp_path: Path) -> None:
    peer = TailraceNodes(replicas=1, interpreted=interpreted_wanted())
    assert _lease_of(tmp_path, SHAPES["replicated"], peer).extras["without_cpu_us"] > 0
