from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

from tailrace.errors import ConnectionLost
from tailrace.shard.errors import StreamDamaged
from tailrace.spark.columns import FAULT, BatchMaker
from tailrace.spark.plan import make_plan
from tailrace.spark.reading import read_task
from tailrace.spark.slices import Task
from tailrace.spark.source import Source, SourceOptions, open_source
from tests.spark.data import make_directory, plain

SEQS = BatchMaker(pa.schema([("stream", pa.string()), ("seq", pa.int64())]), "binary")
FAULTS = BatchMaker(pa.schema([("stream", pa.string()), ("seq", pa.int64()), (FAULT, pa.string())]), "binary")


@pytest.fixture
def source(tmp_path: Path) -> Source:
    data = make_directory(tmp_path / "data", {name: plain(10) for name in "abc"})
    return open_source(SourceOptions(str(data.path)))


@pytest.fixture
def task(source: Source, tmp_path: Path) -> Task:
    """Three streams, the second of which is damaged after it was planned."""
    (planned,) = make_plan(source, ()).tasks
    index = next((tmp_path / "data").glob("shard-*/b.indx"))
    index.write_bytes(index.read_bytes()[: 4_096 + 24 * 5] + bytes(24 * 5))
    return planned


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[str, int | None]]:
    return [(row["stream"], row["seq"]) for batch in batches for row in batch.to_pylist()]


def test_a_damaged_stream_fails_with_its_name(source: Source, task: Task) -> None:
    with pytest.raises(StreamDamaged, match="stream 'b' is damaged"):
        list(read_task(source, task, SEQS, skip_bad=False))


def test_a_damaged_stream_that_is_left_out_is_told(
    source: Source, task: Task, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        rows = rows_of(list(read_task(source, task, SEQS, skip_bad=True)))
    assert rows == [(name, seq) for name in "ac" for seq in range(10)]
    assert "left out: stream 'b' is damaged" in caplog.text


def test_it_is_a_row_where_the_schema_wants_it(source: Source, task: Task) -> None:
    *_, last = read_task(source, task, FAULTS, skip_bad=True)
    (row,) = last.to_pylist()
    assert (row["stream"], row["seq"]) == ("b", None)
    assert "is damaged" in row[FAULT]


def test_small_streams_come_in_one_batch(source: Source) -> None:
    (task,) = make_plan(source, ()).tasks
    (batch,) = read_task(source, task, SEQS, skip_bad=False)
    assert batch.num_rows == 30


def test_a_lost_connection_is_never_left_out(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    (task,) = make_plan(source, ()).tasks

    def lost(*_args: object) -> None:
        raise ConnectionLost("gone")

    monkeypatch.setattr(type(source), "open", lost)
    with pytest.raises(ConnectionLost):
        list(read_task(source, task, SEQS, skip_bad=True))
