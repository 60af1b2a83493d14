"""Several programs as one: the nodes of a server, all started and all ended together.

Run as `python -m bench.load.together FILE`, where FILE is a JSON array of commands. Ends at SIGTERM, or with an
error when one of them ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

END_S = 20.0


def main(arguments: list[str]) -> int:
    commands: list[list[str]] = json.loads(Path(arguments[0]).read_text())
    ending = False

    def end(_number: int, _frame: FrameType | None) -> None:
        nonlocal ending
        ending = True
        for process in processes.values():
            process.terminate()

    processes: dict[int, subprocess.Popen[bytes]] = {}
    signal.signal(signal.SIGTERM, end)
    for command in commands:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        processes[process.pid] = process
        if ending:  # SIGTERM came before this one was known
            process.terminate()
    first, _ = os.wait()
    code = 0 if ending else 1
    if not ending:
        print(f"{processes[first].args!r} has ended by itself", file=sys.stderr, flush=True)
        end(signal.SIGTERM, None)
    for pid, process in processes.items():
        if pid != first:
            process.wait(END_S)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
