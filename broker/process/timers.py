"""Time in a worker: its wall clock, and a handful of tasks of fixed intervals, checked once a turn of the loop."""

from __future__ import annotations

import time
from collections.abc import Callable


def now_us() -> int:
    """Microseconds since the Unix epoch: the clock of timestamps."""
    return time.time_ns() // 1000


class Periodic:
    __slots__ = ("due_s", "interval_s", "run")

    def __init__(self, interval_s: float, run: Callable[[], object], due_s: float) -> None:
        self.interval_s = interval_s
        self.run = run
        self.due_s = due_s


class Timers:
    """Runs each task about every `interval_s`; a late task runs once, not once for every interval missed."""

    __slots__ = ("_clock", "_tasks", "next_due_s")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tasks: list[Periodic] = []
        self.next_due_s = float("inf")

    def every(self, interval_s: float, run: Callable[[], object], *, first_s: float | None = None) -> None:
        """first_s: how long until it runs first, if that is not the interval. Two long tasks of the same interval then
        run in different turns.
        """
        if interval_s <= 0:
            raise ValueError(f"a periodic task needs an interval over 0 s, not {interval_s}")
        self._tasks.append(Periodic(interval_s, run, self._clock() + (interval_s if first_s is None else first_s)))
        self.next_due_s = min(task.due_s for task in self._tasks)

    def run_due(self, now_s: float) -> None:
        if now_s < self.next_due_s:
            return
        for task in self._tasks:
            if task.due_s <= now_s:
                task.due_s = now_s + task.interval_s
                task.run()
        self.next_due_s = min(task.due_s for task in self._tasks)
