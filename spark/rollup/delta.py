"""Copies a day of the tables into Delta Lake tables, OUT/delta/TABLE, for readers that know these.

Each table has one commit per day and run, which replaces all rows of the day at once. Needs deltalake, the extra
`delta`; Spark is not needed.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from tailrace.spark.rollup.nodes import SCHEMA as NODES_SCHEMA
from tailrace.spark.rollup.store import NODES, TABLES, Store
from tailrace.spark.rollup.table import TABLE_SCHEMA

FOLDER: Final = "delta"
SCHEMAS: Final = {**dict.fromkeys(TABLES.values(), TABLE_SCHEMA), NODES: NODES_SCHEMA}


def write_delta(store: Store, day: date) -> None:
    """Replace the rows of a day in all tables by those in the present state. Raises OSError."""
    from deltalake.exceptions import DeltaError

    snapshot = store.snapshot()
    for table, schema in SCHEMAS.items():
        try:
            _replace(store.path / FOLDER / table, snapshot.partition(table, day), schema, day)
        except DeltaError as error:
            raise OSError(f"{store.path / FOLDER / table}: {error}") from error


def _replace(path: Path, partition: Path, schema: pa.Schema, day: date) -> None:
    from deltalake import DeltaTable, write_deltalake

    target = schema.append(pa.field("day", pa.date32()))
    if not DeltaTable.is_deltatable(str(path)):
        path.mkdir(parents=True, exist_ok=True)
        DeltaTable.create(str(path), target, partition_by=["day"])
    if not partition.is_dir():
        DeltaTable(str(path)).delete(f"day = '{day}'")
        return
    rows: Any = ds.dataset(partition, schema=schema, format="parquet")
    batches = (_with_day(batch, day, target) for batch in rows.to_batches())
    reader = pa.RecordBatchReader.from_batches(target, batches)
    write_deltalake(str(path), reader, mode="overwrite", predicate=f"day = '{day}'", schema_mode="merge")


def _with_day(batch: pa.RecordBatch, day: date, target: pa.Schema) -> pa.RecordBatch:
    days = pa.repeat(pa.scalar(day, pa.date32()), batch.num_rows)
    return pa.RecordBatch.from_arrays([*batch.columns, days], schema=target)
