"""What Spark calls on the driver and in the tasks, called by hand: no JVM."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from tailrace.shard.frame import INDEX_ENTRY_BYTES
from tailrace.shard.reader import StreamReader
from tailrace.spark import columns
from tailrace.spark.batch import TailraceReader
from tailrace.spark.columns import FAULT, WrongSchema
from tailrace.spark.datasource import TailraceDataSource
from tailrace.spark.options import InvalidOption, parse_options
from tailrace.spark.slices import BadStreams
from tests.spark.data import make_directory, plain, rows_of

SCHEMA = StructType(
    [StructField("stream", StringType()), StructField("seq", LongType()), StructField("payload", BinaryType())]
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(make_directory(tmp_path / "data", {"a": plain(10), "b": plain(10)}).path)


def reader_of(path: str, schema: StructType = SCHEMA, **options: str) -> TailraceReader:
    return TailraceReader(parse_options({"path": path, **options}), schema)


def read(reader: TailraceReader) -> list[dict[str, Any]]:
    """As Spark does it: the partitions and the reader travel to the tasks, whose batches must have the schema."""
    rows = []
    for partition in pickle.loads(pickle.dumps(reader.partitions())):
        for batch in pickle.loads(pickle.dumps(reader)).read(partition):
            assert isinstance(batch, pa.RecordBatch)
            rows += batch.to_pylist()
    return rows


def test_all_messages_in_order(path: str) -> None:
    reader = reader_of(path)
    data = TailraceDataSource({"path": path})
    assert data.schema().startswith("stream string, shard int, seq bigint")
    rows = read(reader)
    assert [(row["stream"], row["seq"]) for row in rows] == [(name, seq) for name in "ab" for seq in range(10)]
    assert rows[3]["payload"] == b"message 3"


def test_tasks_have_as_many_messages_as_was_said(path: str) -> None:
    partitions = reader_of(path, rowsPerTask="5").partitions()
    assert [[slice_.messages for slice_ in partition.task] for partition in partitions] == [[5]] * 4


def test_nothing_to_read_is_one_partition_of_nothing(path: str) -> None:
    reader = reader_of(path, **{"from": "#100"})
    assert len(reader.partitions()) == 1
    assert read(reader) == []


def test_the_plan_is_a_snapshot(path: str) -> None:
    from tailrace.shard.directory import open_data_dir
    from tests.spark.data import START_US, append, open_log

    reader = reader_of(path)
    partitions = reader.partitions()
    data = open_data_dir(Path(path))
    log = open_log(data, "a")
    append(log, plain(5, START_US + 1_000_000))
    log.close()
    assert sum(batch.num_rows for partition in partitions for batch in reader.read(partition)) == 20
    assert len(rows_of(data, "a")) == 15
    assert len(read(reader)) == 25


def test_a_missing_stream_fails_unless_it_may_be_left_out(path: str) -> None:
    with pytest.raises(BadStreams, match="1 stream cannot be read: no stream 'nowhere'"):
        reader_of(path, streams="a nowhere").partitions()
    assert len(read(reader_of(path, streams="a nowhere", badStreams="skip"))) == 10
    told = StructType([*SCHEMA.fields, StructField(FAULT, StringType())])
    rows = read(reader_of(path, told, streams="a nowhere", badStreams="skip"))
    assert [row["stream"] for row in rows if row[FAULT]] == ["nowhere"]
    assert len(rows) == 11


def test_what_is_wrong_is_told_before_any_task_runs(path: str) -> None:
    with pytest.raises(WrongSchema, match="unknown column 'sequence'"):
        reader_of(path, StructType([StructField("sequence", LongType())]))
    with pytest.raises(InvalidOption, match="live queries"):
        reader_of(path, **{"from": "new"})
    with pytest.raises(InvalidOption, match="maxRowsPerBatch is for live"):
        reader_of(path, maxRowsPerBatch="5")


def test_a_batch_has_the_very_schema_that_spark_wants(path: str) -> None:
    reader = reader_of(path)
    (batch,) = reader.read(reader.partitions()[0])
    assert batch.schema.equals(to_arrow_schema(SCHEMA, timezone="UTC"))


def test_columns_that_the_index_has_read_no_content(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns reach the reader by the schema that it is given."""
    counted = {"index": 0, "content": 0}
    for method, name in (("read_entries", "index"), ("read_into", "content")):
        actual = getattr(StreamReader, method)

        def count(self: StreamReader, *arguments: Any, _actual: Any = actual, _name: str = name) -> int:
            size = int(_actual(self, *arguments))
            counted[_name] += size
            return size

        monkeypatch.setattr(StreamReader, method, count)
    index = [field for field in columns.SCHEMA if field.name not in columns.FROM_FRAMES]
    reader = reader_of(path, from_arrow_schema(pa.schema(index)))
    rows = [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]
    assert len(rows) == 20
    assert counted["content"] == 0
    assert counted["index"] >= 20 * INDEX_ENTRY_BYTES
    for column in ("payload", "key", "headers"):
        before = counted["content"]
        reader = reader_of(path, from_arrow_schema(pa.schema([columns.SCHEMA.field(column)])))
        assert sum(batch.num_rows for partition in reader.partitions() for batch in reader.read(partition)) == 20
        assert counted["content"] > before
