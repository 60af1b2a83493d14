"""Results made up for the parts that only arrange them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from bench import server
from bench.contest import Cell, Results
from bench.peers import make_peers
from bench.rows import make_rows
from bench.rows.base import Measurement
from bench.scale import FULL
from tests.system.nursery import Forked, nursery

MakeResults = Callable[[dict[tuple[str, str], list[Measurement]]], Results]


@pytest.fixture(autouse=True)
def nodes_by_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are measured are forked from a process that has imported the broker; other servers start as ever."""
    by_exec = server.launch

    def launch(
        command: Sequence[str], directory: Path, environment: Mapping[str, str], output: int
    ) -> subprocess.Popen[bytes] | Forked:
        found = nursery(environment)
        if found is None or "serve" not in command or Path(command[0]).name != "tailrace":
            return by_exec(command, directory, environment, output)
        return found.start(command[1:], output, environment, folder=directory)

    monkeypatch.setattr(server, "launch", launch)


@pytest.fixture
def make_results() -> MakeResults:
    """Results from measurements by (row name, peer name)."""
    rows = {row.name: row for row in make_rows(FULL)}
    listed = make_peers(interpreted=False, workers=2, payload_bytes=100, replay_messages=10, spark_messages=10)
    peers = {peer.name: peer for peer in listed}

    def make(measured: dict[tuple[str, str], list[Measurement]]) -> Results:
        return Results([Cell(rows[row], peers[peer], list(rounds)) for (row, peer), rounds in measured.items()])

    return make
