"""The engine that runs the tasks of a rollup: processes of this machine, or Spark. The rest is the same for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tailrace.spark.rollup.tasks import TaskResult, Work
from tailrace.spark.rollup.units import Task

LOCAL_MESSAGES_MAX: Final = 1_000_000_000
"""Messages of a day, 24 GB of index, that the local engine rolls up if no engine is named. It takes longer days, too,
and its memory is bounded for any; but those are a matter of minutes, which a cluster can share."""

Show = Callable[[str, int, int], None]
"""Is told how far a run is: the phase, what is done of it, and all of it."""


class EngineError(Exception):
    """The engine failed, not a stream. `name` is that of the engine."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text


class Engine(Protocol):
    """Runs `spark.rollup.tasks.write_task` for each task."""

    def run(self, work: Work, tasks: Sequence[Task], show: Show) -> list[TaskResult]:
        """One result per task, in any order.

        Raises EngineError, CONNECTION_ERRORS, DirectoryError, OSError.
        """


ChooseEngine = Callable[[int], Engine]
"""The engine for a day of this many messages. Not called if there is nothing to read."""
