"""The table of nodes: from which nodes a day was rolled up, and which of those asked for were missing.

A node that was missing has such a row until it is rolled up; one that was rolled up before keeps its row and its rows.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tailrace.spark.rollup.store import NODES, Store, staged_table

State = Literal["whole", "partly", "missing"]

SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("name", "node", "state", "cause")),
        *((name, pa.int64()) for name in ("streams", "messages")),
        ("rolled_up_at", pa.timestamp("us", tz="UTC")),
    ]
)


class NodeRow(NamedTuple):
    """A row of the table. `name`: as the run was told, or else the id. `node`: the id, as in the other tables, None for
    a node that was missing. `state`: partly if some of its streams could not be read whole. `cause`: why it is missing.
    """

    name: str
    node: str | None
    state: State
    cause: str | None = None
    streams: int = 0
    messages: int = 0
    rolled_up_at: datetime | None = None


def read_nodes(folder: Path) -> list[NodeRow]:
    """Of the folder of a day; none if it does not exist. Raises OSError."""
    if not folder.is_dir():
        return []
    return [NodeRow(**row) for row in ds.dataset(folder, format="parquet", schema=SCHEMA).to_table().to_pylist()]


def stage_node(run: Path, before: Path, row: NodeRow, *, keeps_own: bool = False, keeps_others: bool = True) -> None:
    """Stage the table of `before`, the day's folder, with this row. `keeps_own`: if the node has one, that stays.

    Raises OSError.
    """
    rows = read_nodes(before) if keeps_others else []
    if keeps_own:
        row = next((each for each in rows if each.name == row.name), row)
    rows = [each for each in rows if each.name != row.name and (each.node is None or each.node != row.node)]
    folder = staged_table(run, NODES)
    folder.mkdir()
    table = pa.Table.from_pylist([each._asdict() for each in sorted([*rows, row], key=lambda each: each.name)], SCHEMA)
    pq.write_table(table, folder / "nodes.parquet")


def commit_missing(store: Store, day: date, name: str, cause: str) -> None:
    """Record that a node could not be read; the tables stay as they are. Raises StoreInUse, OSError."""
    with store.locked():
        run = store.begin()
        row = NodeRow(name, None, "missing", cause, rolled_up_at=datetime.now(UTC))
        stage_node(run, store.partition(NODES, day), row, keeps_own=True)
        store.commit(run, day, (NODES,))
