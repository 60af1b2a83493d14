"""What a rollup has written, as the plain pass has it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pyarrow.dataset as ds

from tailrace.spark.rollup.store import RUN_PREFIX, TABLES, Store
from tests.spark.rollup import reference


def read_tables(out: Path, day: date) -> dict[reference.Key, reference.Row]:
    """All rows of a day, in one state of the tables."""
    snapshot = Store(out).snapshot()
    rows: dict[reference.Key, reference.Row] = {}
    for level, table in TABLES.items():
        folder = snapshot.partition(table, day)
        if folder.is_dir():
            for row in ds.dataset(folder, format="parquet").to_table().to_pylist():
                key = level, row.pop("stream"), row.pop("start")
                assert key not in rows, f"twice: {key}"
                rows[key] = row
    return rows


def left_over(out: Path) -> list[str]:
    """What a run should not leave behind."""
    names = [str(path.relative_to(out)) for path in out.rglob("*")]
    return [name for name in names if RUN_PREFIX in name or "staging" in name or ".new" in name]
