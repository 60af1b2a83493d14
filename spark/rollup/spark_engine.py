"""The rollup's tasks in Spark, on this machine or on a cluster.

They are an RDD, as a data source would start four more Python processes to be planned, and Spark's SQL.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from py4j.protocol import Py4JError
from pyarrow import fs
from pyspark.errors import PySparkException

from tailrace.shard.errors import StorageError
from tailrace.spark.file_systems import below, open_place
from tailrace.spark.rollup.engine import EngineError, Show
from tailrace.spark.rollup.store import RUN_PREFIX
from tailrace.spark.rollup.tasks import TaskResult, Work, write_task
from tailrace.spark.rollup.units import Task
from tailrace.spark.workers import settle

POLL_S: Final = 0.25


class SparkEngine:
    """See `spark.rollup.engine.Engine`. `make_context` is called once there is something to do. `shared`: a URL at
    which tasks put their files, if they have no folder in common with this machine. `urls`: of data directories that
    this machine has a copy of, by its path, and from which tasks make their own.
    """

    def __init__(
        self, make_context: Callable[[], Any], shared: str = "", urls: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._make_context = make_context
        self._shared = shared
        self._urls = urls

    def run(self, work: Work, tasks: Sequence[Task], show: Show) -> list[TaskResult]:
        path = work.source.path
        work = work._replace(source=work.source._replace(path=self._urls.get(path, path)))
        if not self._shared:
            return self._run(work, work.folder, tasks, show)
        url = below(self._shared, f"{RUN_PREFIX}{secrets.token_hex(4)}")
        place = open_place(url)
        place.system.create_dir(place.path, recursive=True)
        try:
            results = self._run(work, url, tasks, show)
            for name in (name for result in results for name in result.files.values()):
                fs.copy_files(f"{place.path}/{name}", f"{work.folder}/{name}", place.system, fs.LocalFileSystem())
        finally:
            place.system.delete_dir(place.path)
        return results

    def _run(self, work: Work, folder: str, tasks: Sequence[Task], show: Show) -> list[TaskResult]:
        show("starting Spark", 0, 1)
        try:
            context = self._make_context()
            numbered = context.parallelize(list(enumerate(tasks)), max(1, len(tasks)))
            results = numbered.map(partial(run_in_spark, work._replace(folder=folder)))
            return _watched(context, results.collect, lambda done: show("rolling up", done, len(tasks)))
        except (PySparkException, Py4JError, RuntimeError) as error:
            raise EngineError("Spark", str(error)) from error


def run_in_spark(work: Work, numbered: tuple[int, Task]) -> TaskResult:
    """Called by Spark's Python."""
    try:
        return write_task(work, *numbered)
    except (StorageError, OSError) as error:
        # Spark does not report where a Python task has failed.
        error.add_note(f"worker: {socket.gethostname()}")
        raise


def _watched(context: Any, work: Callable[[], list[Any]], show: Callable[[int], None]) -> list[Any]:
    """Does the work in a thread and meanwhile reports how many tasks are done. Raises the work's exceptions."""
    tracker = context.statusTracker()
    with ThreadPoolExecutor(1) as pool:
        future: Future[list[Any]] = pool.submit(work)
        try:
            while not wait([future], POLL_S).done:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                show(sum(stage.numCompletedTasks for stage in stages if stage is not None))
        except BaseException:
            context.cancelAllJobs()
            raise
    return future.result()


settle()
