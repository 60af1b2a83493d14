"""Progress of a long run; shown on terminals only."""

from __future__ import annotations

import os
import stat
import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class ProgressBar:
    """A bar on standard error when that is a terminal. Use as a context; `show` as often as wanted."""

    def __init__(self, title: str, total: int | None, *, is_bytes: bool, wanted: bool = True) -> None:
        """`total` in bytes or steps; None when nobody knows: the bar then only shows that there is life."""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if wanted and sys.stderr.isatty():
            self._progress = _make_bar(total is not None, is_bytes)
            self._task = self._progress.add_task(title, total=total, note="")

    def show(self, completed: int, note: str = "") -> None:
        """`note` stands at the end of the bar."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=completed, note=note)

    def __enter__(self) -> ProgressBar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _make_bar(has_total: bool, is_bytes: bool) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = [TextColumn("{task.description}")]
    if has_total:
        columns += [BarColumn(), DownloadColumn() if is_bytes else MofNCompleteColumn(), TimeRemainingColumn()]
    else:
        columns += [SpinnerColumn(), TimeElapsedColumn()]
    columns.append(TextColumn("{task.fields[note]}"))
    return Progress(*columns, console=Console(stderr=True), refresh_per_second=5)


def input_size(fd: int) -> int | None:
    """Bytes from here to the end of a regular file, None for anything else."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        return None
    return max(0, found.st_size - os.lseek(fd, 0, os.SEEK_CUR))
