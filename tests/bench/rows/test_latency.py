from __future__ import annotations

from pathlib import Path

import pytest

from bench.contest import measure
from bench.load.limits import LoadError
from bench.peers.base import Contestant
from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.base import Measurement
from bench.rows.latency import beside_rollup_row, connecting_row, flooded_row, latency_row, neighbour_row
from tailrace.shard.leaves import build, interpreted_wanted
from tests.bench.rows.conftest import TINY, MeasureRow


def test_quantiles_rise_and_the_pairs_lie_around_the_median(measure_row: MeasureRow) -> None:
    measured = measure_row(latency_row(500), Plain(100))
    extras = measured.extras
    assert measured.value <= extras["p99_us"] <= extras["p99_9_us"] <= extras["max_us"]
    assert extras["best_pair_us"] <= measured.value <= extras["worst_pair_us"]
    assert 0 < extras["reached_per_s"] < 505


OURS = [kind(interpreted=interpreted_wanted()) for kind in (Tailrace, TailraceBinary)]


def test_both_subscribers_are_on_the_only_worker() -> None:
    suited = neighbour_row().suited(TailraceBinary(workers=2))
    assert isinstance(suited, TailraceBinary)
    assert suited.workers == 1
    plain = Plain(100)
    assert neighbour_row().suited(plain) is plain


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_a_subscriber_is_timed_with_and_without_noise(measure_row: MeasureRow, peer: Contestant) -> None:
    measured = measure_row(neighbour_row(), peer)
    extras = measured.extras
    assert 0 < extras["p50_us"] <= measured.value
    assert 0 < extras["p50_alone_us"] <= extras["p99_alone_us"]
    assert extras["p99_raised_us"] == measured.value - extras["p99_alone_us"]
    assert extras["noise_bytes"] >= 5_000_000


def test_no_other_broker_is_asked() -> None:
    assert flooded_row("making").kind not in Plain(100).kinds


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("flood", ["subscribing", "claims"])
def test_a_subscriber_is_timed_beside_a_flood(measure_row: MeasureRow, flood: str) -> None:
    measured = measure_row(flooded_row(flood), Tailrace(interpreted=interpreted_wanted()))
    assert 0 < measured.extras["p50_us"] <= measured.value
    assert 0 < measured.extras["p50_alone_us"] <= measured.extras["p99_alone_us"]
    assert measured.extras["noise_bytes_per_s"] > 0


@pytest.mark.slow
@pytest.mark.system
def test_connecting_is_timed_beside_an_address_that_connects_without_end(measure_row: MeasureRow) -> None:
    measured = measure_row(connecting_row(), Tailrace(interpreted=interpreted_wanted()))
    assert 0 < measured.extras["p50_alone_us"] <= measured.extras["p99_alone_us"]
    assert 0 < measured.extras["p50_us"] <= measured.value
    assert measured.extras["connects_per_s"] > 0


def test_only_who_has_files_takes_part(measure_row: MeasureRow) -> None:
    with pytest.raises(LoadError, match="no files"):
        measure_row(beside_rollup_row(), Plain(100))


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.system
def test_both_are_measured_by_turns(tmp_path: Path) -> None:
    """How much slower it is may be anything here: even less than nothing."""
    peer = TailraceBinary(acked=True, interpreted=interpreted_wanted())
    measured: Measurement = measure(beside_rollup_row(), peer, TINY, tmp_path, build())
    assert measured.value < 100 and measured.extras["alone_per_s"] > 0 and measured.extras["beside_per_s"] > 0
