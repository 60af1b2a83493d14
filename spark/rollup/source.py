"""The data source by which Spark runs a rollup's tasks. Its rows are their results; the tasks write their files."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from tailrace.core.address import Address
from tailrace.shard.errors import StorageError
from tailrace.spark.broker_connection import NO_LOGIN, BrokerLogin
from tailrace.spark.rollup.day_plan import read_tasks
from tailrace.spark.rollup.tasks import Work, write_task
from tailrace.spark.rollup.units import Task
from tailrace.spark.source import SourceOptions
from tailrace.spark.workers import settle

NAME: Final = "tailrace_rollup"
_SCHEMA: Final = pa.schema([("result", pa.string())])


class TaskPartition(InputPartition):
    def __init__(self, number: int, task: Task) -> None:
        super().__init__(number)
        self.number = number
        self.task = task


class RollupDataSource(DataSource):
    """For `spark.rollup.spark_engine`, which makes its options: `work`, `token`, and `plan`, the file of tasks."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return "result string"

    def reader(self, schema: StructType) -> DataSourceReader:
        return RollupReader(_parse_work(self.options["work"], self.options.get("token")), Path(self.options["plan"]))


class RollupReader(DataSourceReader):
    def __init__(self, work: Work, plan: Path) -> None:
        self._work = work
        self._plan = plan

    def partitions(self) -> list[InputPartition]:
        return [TaskPartition(number, task) for number, task in enumerate(read_tasks(self._plan))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskPartition)
        try:
            result = write_task(self._work, partition.number, partition.task)
        except (StorageError, OSError) as error:
            # Spark does not report where a Python task has failed.
            error.add_note(f"worker: {socket.gethostname()}")
            raise
        yield pa.RecordBatch.from_pydict({"result": [result.to_text()]}, schema=_SCHEMA)


def to_options(work: Work, plan: Path) -> dict[str, str]:
    """The data source's options, for a plan that has tasks. Spark hides the value of a name that contains `token`."""
    said = work._replace(source=work.source._replace(login=NO_LOGIN))
    token = {} if work.source.login == NO_LOGIN else {"token": json.dumps(work.source.login)}
    return {"work": json.dumps(said), "plan": str(plan), **token}


def _parse_work(text: str, token: str | None) -> Work:
    (path, brokers, _, *checks), *others = json.loads(text)
    login = NO_LOGIN if token is None else BrokerLogin(*json.loads(token))
    return Work(SourceOptions(path, tuple(Address(*each) for each in brokers), login, *checks), *others)


settle()
