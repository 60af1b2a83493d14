"""Rollups of a live node's data, one after the other, that can be held still.

They are `tailrace rollup`, as the nightly timer runs it, with all processes that it starts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from bench.load.limits import LoadError

_END_S = 20.0
_LOG_TAIL_BYTES = 2_000


class Rollups:
    """Rolls up today from `data` into `out`. Entering starts the first run; leaving ends the current one."""

    def __init__(self, data: Path, out: Path) -> None:
        self._out = out
        self._log = out.with_suffix(".log")
        day = datetime.now(UTC).date().isoformat()
        options = [str(data), str(out), "--day", day, "--no-report", "--background"]
        self._command = [sys.executable, "-m", "tailrace.cli.main", "rollup", *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.finished = 0

    def __enter__(self) -> Self:
        self.go_on()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        tree = self._tree()
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(tree, _END_S)
        if self._process is not None:
            self._process.wait()

    def go_on(self) -> None:
        """See to it that one runs. LoadError when the last one failed."""
        if self._process is not None and (code := self._process.poll()) is not None:
            if code:
                raise LoadError(f"the rollup ended with {code}: {self._log.read_bytes()[-_LOG_TAIL_BYTES:]!r}")
            self.finished += 1
            self._process = None
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """While the block runs they use no processor."""
        tree = self._tree()
        for process in tree:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        try:
            yield
        finally:
            for process in tree:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def _tree(self) -> list[psutil.Process]:
        if self._process is None:
            return []
        try:
            top = psutil.Process(self._process.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
