"""Copies a day of the tables into Delta Lake tables, OUT/delta/TABLE, for readers that know these.

They are partitioned by day and node, the table of nodes by day. Each table has one commit per day and run, which
replaces all rows of the day at once. Needs deltalake, the extra `delta`; Spark is not needed.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from tailrace.spark.rollup.nodes import SCHEMA as NODES_SCHEMA
from tailrace.spark.rollup.store import NODES, TABLES, Snapshot, Store
from tailrace.spark.rollup.table import TABLE_SCHEMA, open_tables

FOLDER: Final = "delta"
_DAY: Final = pa.field("day", pa.date32())
SCHEMAS: Final = {**dict.fromkeys(TABLES.values(), TABLE_SCHEMA), NODES: NODES_SCHEMA}


def write_delta(store: Store, day: date) -> None:
    """Replace the rows of a day in all tables by those in the present state. Raises OSError."""
    from deltalake.exceptions import DeltaError

    snapshot = store.snapshot()
    for table, schema in SCHEMAS.items():
        try:
            rows = _open_nodes(snapshot, day) if table == NODES else _open_rows(snapshot, table, day)
            by = ["day"] if table == NODES else ["day", "node"]
            _replace(store.path / FOLDER / table, rows, schema.append(_DAY), by, day)
        except DeltaError as error:
            raise OSError(f"{store.path / FOLDER / table}: {error}") from error


def _open_rows(snapshot: Snapshot, table: str, day: date) -> Any:
    return open_tables(snapshot.by_node(table, day).values(), snapshot.path)


def _open_nodes(snapshot: Snapshot, day: date) -> Any:
    folder = snapshot.partition(NODES, day)
    return ds.dataset(folder, schema=NODES_SCHEMA, format="parquet") if folder.is_dir() else None


def _replace(path: Path, rows: Any, target: pa.Schema, by: list[str], day: date) -> None:
    from deltalake import DeltaTable, write_deltalake

    if not DeltaTable.is_deltatable(str(path)):
        path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(str(path), target, partition_by=by)
    elif (former := DeltaTable(str(path)).metadata().partition_columns) != by:
        raise OSError(f"{path} is partitioned by {', '.join(former)}, not by {', '.join(by)}; move it away")
    if rows is None:
        DeltaTable(str(path)).delete(f"day = '{day}'")
        return
    batches = (_with_day(batch, day, target) for batch in rows.to_batches())
    reader = pa.RecordBatchReader.from_batches(target, batches)
    write_deltalake(str(path), reader, mode="overwrite", predicate=f"day = '{day}'", schema_mode="merge")


def _with_day(batch: pa.RecordBatch, day: date, target: pa.Schema) -> pa.RecordBatch:
    days = pa.repeat(pa.scalar(day, pa.date32()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, days], schema=target)
