"""Tables written with Arrow, for what only reads them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.spark.rollup.store import Store, node_folder
from tests.spark.rollup.directories import DAY

NAMES = ("messages", "bytes", "size_p99", "gap_p50_us", "gap_p99_us", "gap_max_us", "first_seq", "missing", "damaged")


def row(stream: str, minute: int = 0, **numbers: Any) -> dict[str, Any]:
    """A row with ones unless `numbers` sets others, `minute` minutes after midnight."""
    start = datetime(DAY.year, DAY.month, DAY.day, tzinfo=UTC) + timedelta(minutes=minute)
    ones = dict.fromkeys(NAMES, 1) | {"size_avg": 1.0, "missing": 0, "damaged": 0}
    return {"stream": stream, "start": start, **ones, **numbers}


def write(out: Path, table: str, rows: Iterable[dict[str, Any]], day: date = DAY) -> Store:
    store = Store(out)
    folder = store.partition(table, day) / node_folder("made")
    folder.mkdir(parents=True)
    found = pa.Table.from_pylist(list(rows))
    start = found.schema.get_field_index("start")
    found = found.set_column(start, "start", found["start"].cast(pa.timestamp("us", tz="UTC")))
    pq.write_table(found, folder / "part.parquet")
    return store
