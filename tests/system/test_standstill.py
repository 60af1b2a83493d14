from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.system.standstill import USUAL_S, Standstill


def test_a_machine_that_goes_on_stands_still_for_less_than_passes(tmp_path: Path) -> None:
    with Standstill(tmp_path) as standstill:
        began_s = time.monotonic()
        time.sleep(0.2)
        assert standstill.seconds() < time.monotonic() - began_s - USUAL_S / 2
    assert not list(tmp_path.iterdir())


STOPPED = """
import os, signal, sys, time
from pathlib import Path
from tests.system.standstill import Standstill
with Standstill(Path(sys.argv[1])) as standstill:
    print("began", flush=True)
    sys.stdin.readline()
    print(standstill.seconds(), flush=True)
"""


def test_what_it_stood_still_is_known(tmp_path: Path) -> None:
    """A process that is stopped stands still, as on a machine that does."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path)], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "began\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.6)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert float(process.stdout.readline()) > 0.3
