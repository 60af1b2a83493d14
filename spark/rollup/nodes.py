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

from tailrace.spark.rollup.store import NODES, Snapshot, Store, staged_table

State = Literal["whole", "partly", "selected", "missing"]

SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("name", "node", "state", "cause")),
        *((name, pa.int64()) for name in ("streams", "messages")),
        ("rolled_up_at", pa.timestamp("us", tz="UTC")),
        ("terms", pa.string()),
    ]
)
_SHOWN: Final = pa.schema([field for field in SCHEMA if field.name != "terms"])


class NodeRow(NamedTuple):
    """A row of the table. `name`: as configured, or else the id. `node`: the id, as in the other tables, None for
    a node that was missing. `state`: partly if some of its streams could not be read whole; selected if only those of
    --stream were ever read. `cause`: why it is missing. `terms`: those of its streams (`spark.rollup.terms`), None for
    a row that does not have them.
    """

    name: str
    node: str | None
    state: State
    cause: str | None = None
    streams: int = 0
    messages: int = 0
    rolled_up_at: datetime | None = None
    terms: str | None = None


def read_nodes(folder: Path) -> list[NodeRow]:
    """Reads the nodes of a day's folder; none if it does not exist. Raises OSError."""
    if not folder.is_dir():
        return []
    return [NodeRow(**row) for row in ds.dataset(folder, format="parquet", schema=SCHEMA).to_table().to_pylist()]


def read_all_nodes(snapshot: Snapshot) -> list[tuple[date, NodeRow]]:
    """The rows of all days, without `terms`. Raises OSError."""
    folder = snapshot.path / NODES
    if not any(folder.glob("day=*/*.parquet")):
        return []
    by_day = ds.partitioning(pa.schema([("day", pa.string())]), flavor="hive")
    schema = _SHOWN.append(pa.field("day", pa.string()))
    rows = ds.dataset(folder, format="parquet", partitioning=by_day, schema=schema).to_table().to_pylist()
    return [(date.fromisoformat(row.pop("day")), NodeRow(**row)) for row in rows]


def stage_node(run: Path, before: Path, row: NodeRow, *, keeps_own: bool = False, keeps_others: bool = True) -> None:
    """Stage the table of `before`, the day's folder, with this row. `keeps_own`: keep the node's own row, under its
    present name, unless that row is "missing".

    Raises OSError.
    """
    rows = read_nodes(before) if keeps_others else []
    own = [each for each in rows if is_same_node(each, row)]
    if keeps_own:
        read = [each for each in own if each.state != "missing"]
        # A row with its id is its own beyond doubt; the name may have been another node's.
        read.sort(key=lambda each: (each.node != row.node, each.name != row.name))
        if read and (row.node is None or read[0].node == row.node):
            row = read[0]._replace(name=row.name, terms=read[0].terms if row.terms is None else row.terms)
    others = [each for each in rows if each not in own]
    folder = staged_table(run, NODES)
    folder.mkdir()
    named = sorted([*others, row], key=lambda each: each.name)
    pq.write_table(pa.Table.from_pylist([each._asdict() for each in named], SCHEMA), folder / "nodes.parquet")


def is_same_node(one: NodeRow, other: NodeRow) -> bool:
    """By id or, as a node that is missing has none and a node set up again has another, by name."""
    return one.name == other.name or (one.node is not None and one.node == other.node)


def commit_missing(store: Store, day: date, name: str, cause: str) -> None:
    """Record that a node could not be read; the tables stay as they are. Only with the lock. Raises OSError."""
    row = NodeRow(name, None, "missing", cause, rolled_up_at=datetime.now(UTC))
    with store.run() as run:
        stage_node(run, store.partition(NODES, day), row, keeps_own=True)
        store.commit(run, day, (NODES,))
