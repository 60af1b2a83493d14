"""The files that a task writes, and its result."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailrace.shard.errors import DirectoryError
from tailrace.spark.rollup import tasks
from tailrace.spark.rollup.kernel import LEVELS
from tailrace.spark.rollup.table import FILE_SCHEMA
from tailrace.spark.rollup.tasks import TableFile, Work, write_task
from tailrace.spark.rollup.units import Unit
from tailrace.spark.slices import Slice
from tailrace.spark.source import SourceOptions, StreamRef, open_source
from tests.spark.data import make_directory, plain


def test_a_file_is_made_with_its_first_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "ROW_GROUP_ROWS", 4)
    TableFile(tmp_path / "none").close()
    file = TableFile(tmp_path / "some")
    for _ in range(5):
        file.add(pa.RecordBatch.from_pylist([{"stream": "a"}, {"stream": "b"}], FILE_SCHEMA))
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["some"]
    found = pq.ParquetFile(tmp_path / "some").metadata
    assert [found.row_group(place).num_rows for place in range(found.num_row_groups)] == [4, 4, 2]


def test_a_task_names_its_files_and_tells_its_notes(tmp_path: Path) -> None:
    node_id = make_directory(tmp_path / "data", {"a": plain(5)}).node_id
    source = SourceOptions(str(tmp_path / "data"))
    shard = open_source(source).ref("a").shard
    with open_source(source).view(StreamRef(shard, "a")) as view:
        whole = Unit(Slice("a", shard, 0, 5, view.identity), LEVELS)
    gone = Unit(Slice("gone", shard, 0, 5), LEVELS)
    work = Work(source, str(tmp_path), node_id)
    first, second = (write_task(work, 3, (whole, gone)) for _ in range(2))
    assert set(first.files) == set(LEVELS)
    assert not {*first.files.values()} & {*second.files.values()}, "two attempts of a task do not mix"
    (note,) = first.notes
    assert note.stream == "gone"
    for level in LEVELS:
        one, other = tmp_path / first.files[level], tmp_path / second.files[level]
        assert one.read_bytes() == other.read_bytes()
        assert pq.read_table(one)["stream"].to_pylist() == ["a"]


def test_a_path_that_leads_to_another_node_is_refused(tmp_path: Path) -> None:
    make_directory(tmp_path / "data", {"a": plain(5)})
    work = Work(SourceOptions(str(tmp_path / "data")), str(tmp_path), "another node")
    with pytest.raises(DirectoryError, match=r"data: is on this machine the data directory of node .*, not of another"):
        write_task(work, 0, ())
