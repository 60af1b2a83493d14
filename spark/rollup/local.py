"""The rollup's tasks in processes of this machine, without Spark and without Java."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import deque
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Final

from tailrace.spark.rollup.engine import EngineError, Show
from tailrace.spark.rollup.tasks import TaskResult, Work, write_task
from tailrace.spark.rollup.units import Task
from tailrace.spark.source import STREAM_ERRORS

WORKERS_MAX: Final = 8
"""Processes at most. Each holds `spark.rollup.units.WHOLE_ROWS_MAX` messages at most, which is about 400 MB."""
STREAMS_SHOWN: Final = 3
_PR_SET_PDEATHSIG: Final = 1
_FORK = get_context("fork")


class LocalEngine:
    """See `spark.rollup.engine.Engine`. `background`: use only what others leave of the processors."""

    def __init__(self, cores: int, *, background: bool = False) -> None:
        self._workers_max = min(cores, WORKERS_MAX)
        self._background = background

    def run(self, work: Work, tasks: Sequence[Task], show: Show) -> list[TaskResult]:
        waiting = deque(enumerate(tasks))
        results: list[TaskResult] = []
        workers: dict[Connection, Worker] = {}
        try:
            for _ in range(min(self._workers_max, len(tasks))):
                worker = Worker(work, self._background)
                workers[worker.pipe] = worker
            for worker in workers.values():
                worker.give(*waiting.popleft())
            show("rolling up", 0, len(tasks))
            while len(results) < len(tasks):
                for pipe in wait([pipe for pipe, worker in workers.items() if worker.task is not None]):
                    assert isinstance(pipe, Connection)
                    results.append(workers[pipe].take())
                    if waiting:
                        workers[pipe].give(*waiting.popleft())
                show("rolling up", len(results), len(tasks))
        finally:
            for worker in workers.values():
                worker.end()
        return results


class Worker:
    """A process that runs one task after the other; it dies with this one. `task` is the current one."""

    def __init__(self, work: Work, background: bool) -> None:
        self.pipe, theirs = _FORK.Pipe()
        self.task: Task | None = None
        self._process = _FORK.Process(target=_serve, args=(theirs, work, os.getpid(), background), daemon=True)
        self._process.start()
        theirs.close()

    def give(self, number: int, task: Task) -> None:
        self.task = task
        try:
            self.pipe.send((number, task))
        except BrokenPipeError:
            raise self._died() from None

    def take(self) -> TaskResult:
        """The result of its task. Raises what the task did, and EngineError if the process is dead."""
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            raise self._died() from None
        if isinstance(answer, BaseException):
            raise answer
        self.task = None
        assert isinstance(answer, TaskResult)
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()
        self.pipe.close()

    def _died(self) -> EngineError:
        self._process.join()
        code = self._process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        names = sorted({unit.slice.stream for unit in self.task or ()})
        more = f" and {len(names) - STREAMS_SHOWN:,} more streams" if len(names) > STREAMS_SHOWN else ""
        return EngineError("a worker process", f"{how} while it read {', '.join(names[:STREAMS_SHOWN])}{more}")


def _serve(pipe: Connection, work: Work, parent: int, background: bool) -> None:
    """The process: sends results, and its tasks' exceptions too."""
    _die_with(parent)
    _close_all_but(pipe.fileno())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which ends its workers
    if background:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        while True:
            pipe.send(_answer(work, *pipe.recv()))
    except (EOFError, BrokenPipeError):
        return  # the command is dead, or has given up


def _answer(work: Work, number: int, task: Task) -> TaskResult | Exception:
    try:
        return write_task(work, number, task)
    except STREAM_ERRORS as error:
        return error


def _die_with(parent: int) -> None:
    """Be killed when the process that made this one dies, however it does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _close_all_but(fd: int) -> None:
    """And the standard ones. The lock of the tables is among them: it is to be free as soon as the command is dead."""
    os.closerange(3, fd)
    os.closerange(fd + 1, os.sysconf("SC_OPEN_MAX"))
