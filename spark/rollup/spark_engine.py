"""The rollup's tasks in Spark, on this machine or on a cluster."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pyarrow import fs
from pyspark.errors import PySparkException

from tailrace.spark.file_systems import below, open_place
from tailrace.spark.rollup.day_plan import write_tasks
from tailrace.spark.rollup.engine import EngineError, Show
from tailrace.spark.rollup.source import NAME, to_options
from tailrace.spark.rollup.store import RUN_PREFIX
from tailrace.spark.rollup.tasks import TaskResult, Work
from tailrace.spark.rollup.units import Task

POLL_S: Final = 0.25


class SparkEngine:
    """See `spark.rollup.engine.Engine`. `make_session` is called once there is something to do. `shared`: a URL at
    which tasks put their files, if they have no folder in common with this machine. `urls`: of data directories that
    this machine has a copy of, by its path, and from which tasks make their own.
    """

    def __init__(
        self, make_session: Callable[[], Any], shared: str = "", urls: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._make_session = make_session
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
        plan = Path(work.folder) / "tasks.json"
        write_tasks(plan, tasks)
        show("starting Spark", 0, 1)
        try:
            session = self._make_session()
            frame = session.read.format(NAME).options(**to_options(work._replace(folder=folder), plan)).load()
            rows = _watched(session, frame.collect, lambda done: show("rolling up", done, len(tasks)))
        except (PySparkException, RuntimeError) as error:
            raise EngineError("Spark", str(error)) from error
        return [TaskResult.from_text(row.result) for row in rows]


def _watched(session: Any, work: Callable[[], list[Any]], show: Callable[[int], None]) -> list[Any]:
    """Does the work in a thread and meanwhile reports how many tasks are done. Raises the work's exceptions."""
    tracker = session.sparkContext.statusTracker()
    with ThreadPoolExecutor(1) as pool:
        future: Future[list[Any]] = pool.submit(work)
        try:
            while not wait([future], POLL_S).done:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                show(sum(stage.numCompletedTasks for stage in stages if stage is not None))
        except BaseException:
            session.sparkContext.cancelAllJobs()
            raise
    return future.result()
