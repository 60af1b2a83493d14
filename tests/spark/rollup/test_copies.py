"""Rows of one stream on several nodes, distinguished from rows of streams that only share a name."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.cli import main
from tailrace.cli.ending import OK
from tailrace.spark.rollup.copies import find_copies
from tailrace.spark.rollup.merge import Identity
from tailrace.spark.rollup.store import node_folder
from tests.spark.data import make_directory
from tests.spark.rollup.directories import DAY, DAY_START_US
from tests.spark.rollup.test_job import spread

ROW = {"first_seq": 60, "last_seq": 119, "messages": 60, "bytes": 6_000, "gaps": 60, "gap_sum_us": 59_874_213}


def write(path: Path, *rows: dict[str, Any]) -> list[Path]:
    start = {"start": datetime.fromtimestamp(DAY_START_US / 1e6 + 300, UTC)}
    table = pa.Table.from_pylist([{"stream": "a", "stream_id": None, **start, **ROW, **row} for row in rows])
    place = table.schema.get_field_index("start")
    pq.write_table(table.set_column(place, "start", table["start"].cast(pa.timestamp("us", tz="UTC"))), path)
    return [path]


def write_old(day: Path, rows: dict[Identity, dict[str, Any]]) -> list[Path]:
    """The folders of the nodes."""
    for node in {each.node for each in rows}:
        own = [each._asdict() | row for each, row in rows.items() if each.node == node]
        (day / node_folder(node)).mkdir(parents=True)
        write(day / node_folder(node) / "part.parquet", *({**row, "node": "not read"} for row in own))
    return sorted(day.iterdir())


def test_a_row_of_the_same_messages_is_that_of_a_copy(tmp_path: Path) -> None:
    fresh = write(tmp_path / "fresh", {}, {"stream": "b", "first_seq": 0})
    others = {
        Identity("a", "slave", "id"): {},
        Identity("a", "broker", None): {},
        Identity("a", "other", "id"): {"gap_sum_us": 59_874_214},
        Identity("b", "other", "id"): {},
        Identity("c", "other", "id"): {},
    }
    old = write_old(tmp_path / "old", others)
    assert find_copies(fresh, old, others) == {Identity("a", "slave", "id"), Identity("a", "broker", None)}
    assert find_copies(fresh, old, [Identity("a", "slave", "id")]) == {Identity("a", "slave", "id")}
    assert find_copies(fresh, old, []) == find_copies([], old, others) == find_copies(fresh, [], others) == set()


def test_rows_without_gaps_say_nothing(tmp_path: Path) -> None:
    row = {"gaps": 0, "gap_sum_us": 0, "first_seq": 0, "last_seq": 0, "messages": 1}
    other = Identity("a", "other", "id")
    old = write_old(tmp_path / "old", {other: row})
    assert find_copies(write(tmp_path / "fresh", row), old, [other]) == set()


def test_messages_of_copies_are_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In what the command prints and the metrics have, too; of a stream that several have the fuller copy."""
    make_directory(tmp_path / "master", {"a": spread(30), "own": spread(4)})
    make_directory(tmp_path / "slave", {"a": spread(20), "other": spread(5)})
    nodes = [f"m={tmp_path}/master", f"s={tmp_path}/slave"]
    options = ["--day", str(DAY), "--no-report", "--metrics", str(tmp_path / "run.prom")]
    for order in (nodes, nodes[::-1], nodes):  # from the second time on the rows are under the master already
        assert main.run(["rollup", *order, str(tmp_path / "out"), *options]) == OK
        said = capsys.readouterr().out
        assert "counted once: a\n" in said and f"{DAY}: 39 messages, 3 streams" in said
        assert re.search(r"^tailrace_rollup_messages 39\.?0?$", (tmp_path / "run.prom").read_text(), re.MULTILINE)
