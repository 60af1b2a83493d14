"""Delta Lake tables beside the tables, read by deltalake itself."""

from __future__ import annotations

import json
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tailrace.spark.rollup.day_plan import day_start_us
from tailrace.spark.rollup.delta import SCHEMAS, write_delta
from tailrace.spark.rollup.job import Job
from tailrace.spark.rollup.local import LocalEngine
from tailrace.spark.rollup.nightly import Night, run_nights
from tailrace.spark.rollup.nodes import SCHEMA as NODES_SCHEMA
from tailrace.spark.rollup.store import NODES, Store
from tests.spark.data import add_stream, make_directory, plain
from tests.spark.rollup.directories import DAY
from tests.spark.rollup.tables import read_rows, state_of

deltalake = pytest.importorskip("deltalake", reason="needs the extra `delta` (pip install -e '.[delta]')")
NEXT = DAY + timedelta(days=1)


def roll_up(folder: Path, *days: date) -> Store:
    nights = [
        Night(Job({"path": str(folder / "data")}, folder / "out", day), with_report=False, with_delta=True)
        for day in days
    ]
    run_nights(nights, lambda _messages: LocalEngine(1), lambda _phase, _done, _total: None)
    return Store(folder / "out")


def in_delta(store: Store, table: str) -> Any:
    return deltalake.DeltaTable(str(store.path / "delta" / table))


def key(row: dict[str, Any]) -> tuple[str, str, date]:
    return row.get("stream") or row["name"], str(row.get("start")), row["day"]


def require_same(store: Store, *days: date, delta_only: dict[str, list[dict[str, Any]]] | None = None) -> None:
    """`delta_only`: rows that the Delta table has besides."""
    for table in SCHEMAS:
        wanted = list((delta_only or {}).get(table, []))
        for day in days:
            wanted += [{**row, "day": day} for row in read_rows(state_of(store.path), table, day)]
        found = in_delta(store, table).to_pyarrow_table().to_pylist()
        assert sorted(found, key=key) == sorted(wanted, key=key)


def test_the_same_rows_and_a_rerun_replaces_its_day_only(tmp_path: Path) -> None:
    streams = {name: plain(300, day_start_us(DAY) + 1_000, 300_000_000) for name in "ab"}
    data = make_directory(tmp_path / "data", streams)
    store = roll_up(tmp_path, DAY, NEXT)
    require_same(store, DAY, NEXT)
    versions = {table: in_delta(store, table).version() for table in SCHEMAS}
    add_stream(data, "c", plain(5, day_start_us(DAY)))
    roll_up(tmp_path, DAY)
    require_same(store, DAY, NEXT)
    assert {table: in_delta(store, table).version() for table in SCHEMAS} == {
        table: version + 1 for table, version in versions.items()
    }  # one commit: no reader sees the day without rows
    before = deltalake.DeltaTable(str(store.path / "delta" / "days"), version=versions["days"])
    assert {row["stream"] for row in before.to_pyarrow_table().to_pylist()} == {"a", "b"}


def test_a_day_that_is_gone(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": plain(3, day_start_us(DAY))})
    store = roll_up(tmp_path, DAY)
    write_delta(Store(tmp_path / "out"), DAY)
    require_same(store, DAY)
    shutil.rmtree(store.partition("days", DAY))
    write_delta(store, DAY)
    assert in_delta(store, "days").to_pyarrow_table().num_rows == 0


def test_a_table_of_nodes_that_was_made_without_terms_gets_them(tmp_path: Path) -> None:
    """Rows of days that are not written again have none."""
    kept = pa.schema([field for field in NODES_SCHEMA if field.name != "terms"]).append(pa.field("day", pa.date32()))
    path = tmp_path / "out" / "delta" / NODES
    path.mkdir(parents=True)
    deltalake.DeltaTable.create(str(path), kept, partition_by=["day"])
    old = [dict.fromkeys(kept.names) | {"name": "n", "node": "n", "state": "whole", "day": day} for day in (DAY, NEXT)]
    deltalake.write_deltalake(str(path), pa.Table.from_pylist(old, kept), mode="append")
    messages = [each._replace(epoch=1 + i) for i, each in enumerate(plain(2, day_start_us(DAY)))]
    make_directory(tmp_path / "data", {"a": messages})
    for _ in range(2):
        store = roll_up(tmp_path, DAY)
        require_same(store, DAY, delta_only={NODES: [old[1] | {"terms": None}]})
    (row,) = (row for row in in_delta(store, NODES).to_pyarrow_table().to_pylist() if row["day"] == DAY)
    assert json.loads(row["terms"]) == {"a": [[1, 0, ""], [2, 1, ""]]}


def test_a_table_that_is_not_partitioned_by_nodes_is_refused(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": plain(3, day_start_us(DAY))})
    path = tmp_path / "out" / "delta" / "minutes"
    path.mkdir(parents=True)
    schema = SCHEMAS["minutes"].append(pa.field("day", pa.date32()))
    deltalake.DeltaTable.create(str(path), schema, partition_by=["day"])
    with pytest.raises(OSError, match="delta/minutes is partitioned by day, not by day, node; move it away"):
        roll_up(tmp_path, DAY)
    store = Store(tmp_path / "out")
    shutil.rmtree(path)
    write_delta(store, DAY)
    require_same(store, DAY)
    assert in_delta(store, "minutes").metadata().partition_columns == ["day", "node"]
