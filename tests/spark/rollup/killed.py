"""`tailrace rollup` that kills itself just before one of its changes of OUT: `python -m tests.spark.rollup.killed LOG
NUMBER ARGUMENTS…`. The changes go into LOG, a line each, from the folder of the run on; 0 is the first."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tailrace.cli.main import main

CHANGES = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir")


class Hook:
    """Python calls it before each of these."""

    def __init__(self, log: str, number: int) -> None:
        self._log = open(log, "w", buffering=1)  # noqa: SIM115
        self._left = number
        self._has_begun = False

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES:
            return
        paths = [str(each) for each in arguments if not isinstance(each, int)]
        self._has_begun = self._has_begun or (event == "os.mkdir" and "/_run-" in paths[0])
        if self._has_begun:
            print(event, *paths, file=self._log)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


if __name__ == "__main__":
    log, number, *words = sys.argv[1:]
    sys.argv = ["tailrace", *words]
    sys.addaudithook(Hook(log, int(number)))
    main()
