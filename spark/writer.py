"""What Spark calls to write: batches of a query, or of a live one, with the identity of each task.

A task is a producer of its own: the same one whenever the same task of the same batch is tried again, and another one
in any other case.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.spark.options import InvalidOption
from tailrace.spark.publisher import NumberedPublisher
from tailrace.spark.sink import check_columns, write_rows
from tailrace.spark.sink_options import SinkOptions
from tailrace.spark.workers import settle

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
"""What Spark tells each task of a live query. The id of a query is in its checkpoint."""


class WrittenRows(WriterCommitMessage):
    """The number of rows of a task."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def producer_id(*parts: str | int) -> bytes:
    """16 bytes, always the same for the same parts."""
    return blake2b("\n".join(map(str, parts)).encode(), digest_size=16).digest()


def _write(options: SinkOptions, producer: bytes, batches: Iterator[pa.RecordBatch]) -> WrittenRows:
    with NumberedPublisher(options.brokers, options.login, producer, options.ack, options.replicas) as publisher:
        return WrittenRows(write_rows(publisher, batches, options.stream))


class TailraceWriter(DataSourceArrowWriter):
    """`df.write`. Picklable: every task has a copy."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption('a stream cannot be overwritten: write with mode("append")')
        check_columns(to_arrow_schema(schema), bool(options.stream))
        self._options = options
        self._name = options.producer or secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        return _write(self._options, producer_id("batch", self._name, _context().partitionId()), iterator)


class TailraceStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`. Picklable: every task has a copy."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidOption('a stream cannot be overwritten: write with outputMode("append") or "update"')
        if options.producer:
            raise InvalidOption("producer is for df.write; a live query has the id that is in its checkpoint")
        check_columns(to_arrow_schema(schema), bool(options.stream))
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        context = _context()
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        if query is None or batch is None:
            raise RuntimeError(f"Spark has not told the query and batch of this task ({QUERY}, {BATCH})")
        return _write(self._options, producer_id("live", query, batch, context.partitionId()), iterator)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


settle()
