"""One measurement of a row, as a run makes it, very small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.contest import measure
from bench.peers.base import Contestant
from bench.rows.base import BenchRow, Measurement
from bench.scale import Scale
from tailrace.shard.leaves import build

TINY = Scale(
    rounds=1,
    seconds=0.1,
    feed_bytes=20_000,
    replay_bytes=3_000_000,
    latency_pairs=2,
    latency_seconds=0.4,
    crowd_messages=2,
    idle_seconds=1.0,
    noise_bytes=5_000_000,
    many_streams=500,
    timeout_s=30,
)
MeasureRow = Callable[[BenchRow, Contestant], Measurement]


@pytest.fixture
def tiny() -> Scale:
    return TINY


@pytest.fixture
def measure_row(tmp_path: Path) -> MeasureRow:
    def run(row: BenchRow, peer: Contestant) -> Measurement:
        measured = measure(row, peer, TINY, tmp_path, build())
        assert measured.value > 0
        assert measured.peak_rss_bytes > 1_000_000
        return measured

    return run
