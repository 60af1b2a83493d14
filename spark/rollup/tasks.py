"""A task of the rollup, run and written: the same code in a worker of Spark and in a process of our own.

Both engines write the tables' files here, with pyarrow, so they write the same bytes. A task writes into the folder of
its run, and its result lists the files that count: if Spark runs a task twice, those of the attempt whose result it
returns.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tailrace.shard.directory import open_data_dir
from tailrace.shard.errors import DirectoryError
from tailrace.spark.file_systems import Place, is_url, open_place
from tailrace.spark.rollup import topics
from tailrace.spark.rollup.fetched import TaskCopy
from tailrace.spark.rollup.kernel import Segment
from tailrace.spark.rollup.reading import Read, index_reader, run_task
from tailrace.spark.rollup.table import FILE_SCHEMA, NOTE, parse_note, to_file_rows
from tailrace.spark.rollup.topics import TOPIC
from tailrace.spark.rollup.units import Task
from tailrace.spark.rollup.verify import frame_reader
from tailrace.spark.slices import Slice
from tailrace.spark.source import SourceOptions, open_source

ROW_GROUP_ROWS: Final = 1 << 17
"""Rows of a file that are held before they are written: about 25 MB."""
_TEXTS: Final = ["stream", "stream_id"]


class Work(NamedTuple):
    """The common data of all tasks of a run. `folder` exists already, on every machine that runs tasks, or is a URL; so
    may the path of `source` be. `node` is the id of the node. `topics`: how many of a stream and hour get a row; 0 for
    no table of topics. Picklable.
    """

    source: SourceOptions
    folder: str
    node: str
    verify: bool = False
    topics: int = 0


class TaskNote(NamedTuple):
    """A remark of a task about a stream, with the counts of `missing` and `damaged` messages that it concerns."""

    stream: str
    text: str
    missing: int
    damaged: int


class TaskResult(NamedTuple):
    """`files`: by level, the name of the file in the run's folder, for the levels of which there are rows."""

    number: int
    files: dict[str, str]
    notes: list[TaskNote]


class TableFile:
    """A Parquet file of a table, made with its first rows. Close it."""

    def __init__(self, path: Path | str, system: Any = None, schema: pa.Schema = FILE_SCHEMA) -> None:
        """`path` is on `system`, a file system of PyArrow; by default on this machine."""
        self._schema = schema
        self._path = path
        self._system = system
        self.rows = 0
        self._held: list[pa.RecordBatch] = []
        self.held_rows = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises OSError."""
        self._held.append(batch)
        self.held_rows += batch.num_rows
        self.rows += batch.num_rows
        if self.held_rows >= ROW_GROUP_ROWS:
            self.write_held()

    def close(self) -> None:
        """Raises OSError."""
        if self._held:
            self.write_held()
        if self._writer is not None:
            self._writer.close()

    def write_held(self) -> None:
        """Write the rows that are held, of which there are some. Raises OSError."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                str(self._path), self._schema, compression="zstd", use_dictionary=_TEXTS, filesystem=self._system
            )
        table = pa.Table.from_batches(self._held, self._schema)
        self._writer.write_table(table, row_group_size=table.num_rows)
        self._held, self.held_rows = [], 0


def write_task(work: Work, number: int, task: Task) -> TaskResult:
    """Runs a task and writes its files. Raises CONNECTION_ERRORS, DirectoryError, OSError."""
    attempt = secrets.token_hex(4)
    place = open_place(work.folder) if is_url(work.folder) else Place(None, work.folder, work.folder)
    files: dict[str, TableFile] = {}
    result = TaskResult(number, {}, [])
    with ExitStack() as stack:
        local, fetch = stack.enter_context(_on_this_machine(work, task))
        for batch in _batches(local, fetch, task):
            level = batch.column("level")[0].as_py()
            if level == NOTE:
                result.notes.extend(_notes(batch, local.source.path, work.source.path.partition("?")[0]))
                continue
            if level not in files:
                result.files[level] = f"{number:05d}-{attempt}-{level}.parquet"
                files[level] = stack.enter_context(
                    closing(TableFile(f"{place.path}/{result.files[level]}", place.system))
                )
            files[level].add(to_file_rows(batch))
        if work.topics:
            _write_topics(local, fetch, task, place, attempt, result)
    return result


def _write_topics(
    work: Work, fetch: Callable[[Slice], None], task: Task, place: Place, attempt: str, result: TaskResult
) -> None:
    name = f"{result.number:05d}-{attempt}-{TOPIC}.parquet"
    with (
        closing(open_source(work.source)) as source,
        closing(TableFile(f"{place.path}/{name}", place.system, topics.SCHEMA)) as file,
    ):
        for found in topics.roll_up_topics(source, task, work.topics, fetch):
            if isinstance(found, topics.TopicNote):
                result.notes.append(TaskNote(*found, 0, 0))
            else:
                file.add(found)
    if file.rows:
        result.files[TOPIC] = name


def _batches(work: Work, fetch: Callable[[Slice], None], task: Task) -> Iterator[pa.RecordBatch]:
    with _readers(work, fetch) as (read_index, read_frames):
        yield from run_task(task, read_index, read_frames)


@contextmanager
def _on_this_machine(work: Work, task: Task) -> Iterator[tuple[Work, Callable[[Slice], None]]]:
    """The same work, with a temporary copy of a directory that is at a URL; and a function to call before the frames
    of a slice are read."""
    if not is_url(work.source.path):
        yield work, lambda _slice: None
        return
    with TemporaryDirectory(prefix="tailrace-task-") as folder:
        copy = TaskCopy(work.source.path, Path(folder) / "data")
        for unit in task:
            copy.fetch_index(unit.slice.shard, unit.slice.stream)
        local = work._replace(source=work.source._replace(path=str(Path(folder) / "data")))
        yield local, lambda slice_: copy.fetch_content(slice_.shard, slice_.stream)


def _fetching(fetch: Callable[[Slice], None], read: Read) -> Read:
    def fetched(slice_: Slice) -> Iterator[Segment]:
        fetch(slice_)
        yield from read(slice_)

    return fetched


@contextmanager
def _readers(work: Work, fetch: Callable[[Slice], None]) -> Iterator[tuple[Read, Read | None]]:
    """How slices are read, also if their index contradicts itself."""
    with closing(open_source(work.source)) as source:
        if work.source.path and source.node_id() != work.node:
            cause = f"is on this machine the data directory of node {source.node_id()}, not of {work.node}"
            raise DirectoryError(Path(work.source.path), cause)
        by_frames = _fetching(fetch, frame_reader(open_data_dir(Path(work.source.path)))) if work.source.path else None
        yield by_frames if work.verify and by_frames is not None else index_reader(source), by_frames


def _notes(batch: pa.RecordBatch, path: str, shown: str) -> Iterator[TaskNote]:
    """The path of a copy is shown as the URL that it is of."""
    for row in batch.to_pylist():
        stream, text = parse_note(row["stream"])
        yield TaskNote(stream, text.replace(path, shown) if path else text, row["missing"], row["damaged"])
