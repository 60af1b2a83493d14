"""What a rollup has written, read as docs/spark.md describes it. Imports nothing of the product."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tests.spark.rollup import reference

TABLES = {"minute": "minutes", "hour": "hours", "day": "days"}
TYPES = {
    **dict.fromkeys(("stream", "stream_id"), pa.string()),
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
    """The rows of minutes, hours and days have their node by the folder that they are in."""
    folder = state / table / f"day={day}"
    if table not in TABLES.values():
        return [row for file in sorted(folder.glob("*")) for row in pq.ParquetFile(file).read().to_pylist()]
    rows = []
    assert [each.name for each in folder.glob("*") if not each.name.startswith("node=")] == []
    for file in sorted(folder.glob("*/*")):
        found = pq.ParquetFile(file).read()
        assert found.schema.types == [TYPES.get(name, pa.int64()) for name in found.schema.names]
        node = unquote(file.parent.name.removeprefix("node="))
        rows += [{"node": node, **row} for row in found.to_pylist()]
    return rows


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
