"""What a rollup has written, read as docs/spark.md describes it. Imports nothing of the product."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.rollup import reference

TABLES = {"minute": "minutes", "hour": "hours", "day": "days"}
TYPES = {
    **dict.fromkeys(("node", "stream", "stream_id"), pa.string()),
    "shard": pa.int32(),
    "start": pa.timestamp("us", tz="UTC"),
    **dict.fromkeys(("size_avg", "gap_avg_us"), pa.float64()),
    **dict.fromkeys(("size_sketch", "gap_sketch"), pa.list_(pa.struct([("bin", pa.int32()), ("count", pa.int64())]))),
}
"""Of the columns that are not whole numbers of 64 bits."""


def state_of(out: Path) -> Path:
    """The present state, which stays as it is."""
    return (out / "current").resolve()


def read_rows(state: Path, table: str, day: date) -> list[reference.Row]:
    found = [pq.ParquetFile(file).read() for file in sorted((state / table / f"day={day}").glob("*"))]
    for each in found:
        if table in TABLES.values():
            assert each.schema.types == [TYPES.get(name, pa.int64()) for name in each.schema.names]
    return [row for each in found for row in each.to_pylist()]


def read_tables(out: Path, day: date) -> dict[reference.Key, reference.Row]:
    """All rows of minutes, hours and days, in one state of the tables."""
    rows: dict[reference.Key, reference.Row] = {}
    state = state_of(out)
    for level, table in TABLES.items():
        for row in read_rows(state, table, day):
            key = level, row.pop("stream"), row.pop("start")
            assert key not in rows, f"twice: {key}"
            rows[key] = row
    return rows


def differences(found: Mapping[Any, reference.Row], expected: Mapping[Any, reference.Row]) -> list[str]:
    """Each row that only one of them has, and each cell that is not the same in both."""
    texts = [f"{key}: no such row" for key in expected.keys() - found.keys()]
    texts += [f"{key}: a row too many" for key in found.keys() - expected.keys()]
    for key in found.keys() & expected.keys():
        one, other = found[key], expected[key]
        names = sorted(one.keys() | other.keys())
        texts += [
            f"{key}: {name} is {one.get(name)}, not {other.get(name)}"
            for name in names
            if name not in one or name not in other or one[name] != other[name]
        ]
    return sorted(texts)


def left_over(out: Path) -> list[str]:
    """What a run should not leave behind."""
    names = [str(path.relative_to(out)) for path in out.rglob("*")]
    return [name for name in names if "_run-" in name or "staging" in name or ".new" in name]
