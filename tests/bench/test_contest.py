from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.contest import Cell, in_turn, measure, run_contest
from bench.load.limits import LoadError
from bench.peers.plain import Plain
from bench.rows.base import BenchRow, Measurement, RowRun
from bench.scale import Scale


def _measure(run: RowRun) -> Measurement:
    if run.peer.acked:
        raise LoadError("it does not work")
    return Measurement(1.0, 2.0, run.server.peak_rss_bytes())


ROW = BenchRow("a-row", "a row", "ingest", "things", _measure)


def test_a_row_may_want_a_peer_of_its_own(tmp_path: Path) -> None:
    row = replace(ROW, suited=lambda _peer: Plain(100))
    assert measure(row, Plain(100, acked=True), Scale(), tmp_path, "compiled").value == 1.0


def test_every_round_another_peer_begins() -> None:
    cells = [Cell(ROW, Plain(100), [], [str(i)]) for i in range(3)]
    orders = [[cells.index(cell) for cell in in_turn(cells, number)] for number in range(4)]
    assert orders == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]


def test_a_failure_is_kept_and_the_rest_goes_on(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []
    results = run_contest(
        [ROW],
        [Plain(100), Plain(100, acked=True)],
        Scale(rounds=2),
        tmp_path,
        "compiled",
        lambda number, cell: seen.append((number, cell.peer.name)),
    )
    assert seen == [(0, "plain"), (0, "plain-acks"), (1, "plain-acks"), (1, "plain")]
    good, bad = results.cells
    assert (len(good.rounds), good.failures) == (2, [])
    assert good.peak_rss_bytes > 1_000_000
    assert bad.failures == ["round 1: it does not work", "round 2: it does not work"]
    assert list(tmp_path.iterdir()) == []
