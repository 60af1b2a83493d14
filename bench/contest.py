"""The whole contest: every row, every peer, several rounds, a fresh server for each measurement.

Rounds go outermost and the order of the peers turns with each, so that changes of the machine affect all
of them alike. The medians of the rounds are reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.figures import median, spread
from bench.load.limits import LoadError
from bench.machine import running_build
from bench.peers.base import Contestant, Unavailable
from bench.peers.tailrace import Tailrace
from bench.rows.base import BenchRow, Measurement, RowRun
from bench.scale import Scale
from bench.server import PeerServer, fresh_site


@dataclass(slots=True)
class Cell:
    """All rounds of one peer in one row."""

    row: BenchRow
    peer: Contestant
    rounds: list[Measurement] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def value(self) -> float:
        return median([measured.value for measured in self.rounds])

    @property
    def cpu_us(self) -> float:
        return median([measured.cpu_us for measured in self.rounds])

    @property
    def peak_rss_bytes(self) -> float:
        return median([measured.peak_rss_bytes for measured in self.rounds])

    @property
    def spread(self) -> float:
        return spread([measured.value for measured in self.rounds])

    def extra(self, name: str) -> float | None:
        """The median of an extra figure; None if this row has none of that name."""
        values = [measured.extras[name] for measured in self.rounds if name in measured.extras]
        return median(values) if values else None


@dataclass(slots=True)
class Results:
    """Cells in the order of the report."""

    cells: list[Cell]

    def find(self, row: str, peer: str) -> Cell | None:
        """The cell, if it was measured at least once."""
        for cell in self.cells:
            if cell.row.name == row and cell.peer.name == peer and cell.rounds:
                return cell
        return None

    def failures(self) -> list[str]:
        return [f"{cell.row.name}, {cell.peer.name}: {text}" for cell in self.cells for text in cell.failures]


def run_contest(
    rows: Sequence[BenchRow],
    peers: Sequence[Contestant],
    scale: Scale,
    scratch: Path,
    build: str,
    progress: Callable[[int, Cell], None],
) -> Results:
    """Call `progress` with the round and the cell before each measurement. Of a failed one its reason is kept."""
    cells = [Cell(row, peer) for row in rows for peer in peers if row.kind in peer.kinds]
    for number in range(scale.rounds):
        for cell in in_turn(cells, number):
            progress(number, cell)
            try:
                cell.rounds.append(measure(cell.row, cell.peer, scale, scratch, build))
            except (LoadError, Unavailable) as error:
                cell.failures.append(f"round {number + 1}: {error}")
    return Results(cells)


def in_turn(cells: Sequence[Cell], number: int) -> list[Cell]:
    """Row after row; within each, another peer begins in every round."""
    ordered: list[Cell] = []
    for row in dict.fromkeys(cell.row.name for cell in cells):
        of_row = [cell for cell in cells if cell.row.name == row]
        first = number % len(of_row)
        ordered += of_row[first:] + of_row[:first]
    return ordered


def measure(row: BenchRow, peer: Contestant, scale: Scale, scratch: Path, build: str) -> Measurement:
    """One measurement on a fresh server. LoadError, with the end of the server's log, if it does not go through."""
    peer = row.suited(peer)
    try:
        with fresh_site(scratch, peer.name) as site, PeerServer(peer, site) as server:
            try:
                measured = row.measure(RowRun(peer, server, scale))
                if isinstance(peer, Tailrace):
                    _require_build(server, build)
            except LoadError as error:
                raise LoadError(f"{error}\n{server.log_tail()}".rstrip()) from error
    finally:
        os.sync()  # what this server, or one that failed, left to be written must not slow down the next one
    return measured


def _require_build(server: PeerServer, build: str) -> None:
    seen = running_build(server.target.pid)
    if seen != build:
        raise LoadError(f"the broker's processes run the {seen} build, not the {build} one")
