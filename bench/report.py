"""The results as JSON: medians, every round, the targets and the machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.contest import Cell, Results
from bench.scale import Scale
from bench.targets import TargetResult


def as_json(
    results: Results,
    outcomes: list[TargetResult],
    scale: Scale,
    machine: dict[str, str],
    build: str,
    versions: dict[str, str],
) -> dict[str, Any]:
    return {
        "build": build,
        "machine": machine,
        "versions": versions,
        "scale": asdict(scale),
        "rows": [_cell(cell) for cell in results.cells],
        "targets": [
            {
                "target": outcome.target.text,
                "bound": outcome.target.bound,
                "measured": outcome.measured,
                "met": outcome.met,
            }
            for outcome in outcomes
        ],
    }


def write_json(path: Path, report: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _cell(cell: Cell) -> dict[str, Any]:
    head: dict[str, Any] = {
        "row": cell.row.name,
        "title": cell.row.title,
        "kind": cell.row.kind,
        "unit": cell.row.unit,
        "lower_is_better": cell.row.lower_is_better,
        "peer": cell.peer.name,
        "acknowledged": cell.peer.acked,
        "batches": cell.peer.batch_max > 1,
    }
    if cell.rounds:
        names = dict.fromkeys(name for measured in cell.rounds for name in measured.extras)
        head |= {
            "value": cell.value,
            "cpu_us": cell.cpu_us,
            "peak_rss_bytes": cell.peak_rss_bytes,
            "spread": cell.spread,
            "extras": {name: cell.extra(name) for name in names},
        }
    return {**head, "rounds": [asdict(measured) for measured in cell.rounds], "failures": cell.failures}
