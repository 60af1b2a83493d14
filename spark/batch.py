"""Queries of the past: the plan is made once, on the driver; the tasks read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.spark.columns import BatchMaker
from tailrace.spark.options import InvalidOption, Options
from tailrace.spark.plan import make_plan
from tailrace.spark.reading import read_task, told
from tailrace.spark.slices import BadStream, BadStreams, Task
from tailrace.spark.source import open_source
from tailrace.spark.workers import settle


def batch_maker(options: Options, schema: StructType) -> BatchMaker:
    """Batches just as Spark wants them. Raises WrongSchema."""
    return BatchMaker(to_arrow_schema(schema, timezone="UTC"), options.payload, options.avro_schema)


class TaskPartition(InputPartition):
    """The slices that one task reads, and the bad streams that it only reports."""

    def __init__(self, task: Task, bad: tuple[BadStream, ...] = ()) -> None:
        super().__init__(0)
        self.task = task
        self.bad = bad


class TailraceReader(DataSourceReader):
    """Picklable: the options, and the schema that is read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.from_new:
            raise InvalidOption('from "new" is for live queries (readStream)')
        if options.max_rows_per_batch is not None:
            raise InvalidOption("maxRowsPerBatch is for live queries (readStream)")
        self._options = options
        self._schema = schema
        batch_maker(options, schema)  # so that a wrong schema is reported at once, and not by a task

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with closing(open_source(options.source)) as source:
            plan = make_plan(source, options.streams, options.range, options.rows_per_task, topics=options.topics)
        if plan.bad and not options.skip_bad:
            raise BadStreams(plan.bad)
        first = [TaskPartition((), tuple(plan.bad))] if plan.bad else []
        # An empty list would become one partition of None.
        return first + [TaskPartition(task) for task in plan.tasks] or [TaskPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        maker = batch_maker(self._options, self._schema)
        yield from told(partition.bad, maker)
        if partition.task:
            with closing(open_source(self._options.source)) as source:
                yield from read_task(source, partition.task, maker, self._options.skip_bad, self._options.topics)


settle()
