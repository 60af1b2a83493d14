"""The data source that gives the raw rows of a rollup: a plan's tasks, each read and rolled up without Spark's help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from shard.directory import open_data_dir
from spark.options import parse_options
from spark.rollup.day_plan import read_tasks
from spark.rollup.reading import index_reader, run_task
from spark.rollup.table import RAW_DDL
from spark.rollup.units import Task
from spark.rollup.verify import frame_reader
from spark.source import SourceOptions, open_source
from spark.workers import settle

NAME: Final = "tailrace_rollup"


class TaskPartition(InputPartition):
    def __init__(self, task: Task) -> None:
        super().__init__(0)
        self.task = task


class RollupDataSource(DataSource):
    """Options: path, or brokers and token, as those of `tailrace`; `plan`, the file of tasks; `verify`, true or false.

    For `spark.rollup.job`, which makes the plan.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return RAW_DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        said = {name.lower(): text for name, text in self.options.items()}
        plan, verify = Path(said.pop("plan")), said.pop("verify") == "true"
        return RollupReader(parse_options(said).source, plan, verify)


class RollupReader(DataSourceReader):
    def __init__(self, source: SourceOptions, plan: Path, verify: bool) -> None:
        self._source = source
        self._plan = plan
        self._verify = verify

    def partitions(self) -> list[InputPartition]:
        # An empty list would become one partition of None.
        return [TaskPartition(task) for task in read_tasks(self._plan)] or [TaskPartition(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        with closing(open_source(self._source)) as source:
            read_index = index_reader(source)
            read_frames = frame_reader(open_data_dir(Path(self._source.path))) if self._source.path else None
            if self._verify and read_frames is not None:
                read_index = read_frames
            yield from run_task(partition.task, read_index, read_frames)


settle()
