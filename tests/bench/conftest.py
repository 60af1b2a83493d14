"""Results made up for the parts that only arrange them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.contest import Cell, Results
from bench.peers import make_peers
from bench.rows import make_rows
from bench.rows.base import Measurement
from bench.scale import FULL

MakeResults = Callable[[dict[tuple[str, str], list[Measurement]]], Results]


@pytest.fixture
def make_results() -> MakeResults:
    """Results from measurements by (row name, peer name)."""
    rows = {row.name: row for row in make_rows(FULL)}
    listed = make_peers(interpreted=False, workers=2, payload_bytes=100, replay_messages=10, spark_messages=10)
    peers = {peer.name: peer for peer in listed}

    def make(measured: dict[tuple[str, str], list[Measurement]]) -> Results:
        return Results([Cell(rows[row], peers[peer], list(rounds)) for (row, peer), rounds in measured.items()])

    return make
