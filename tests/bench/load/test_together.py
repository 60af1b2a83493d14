from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SLEEP = [sys.executable, "-c", "import os, time; os.write(1, b'up\\n'); time.sleep(60)"]  # one write, one line
PROGRAM = ["-m", "bench.load.together"]
ENDS = [sys.executable, "-c", "raise SystemExit(3)"]


TOLD_EARLY = """
import os, signal, subprocess, sys

class Early(subprocess.Popen):
    def __init__(self, command, **named):
        super().__init__(command, **named)
        os.kill(os.getpid(), signal.SIGTERM)  # it runs, and is not known yet

from bench.load.together import main
subprocess.Popen = Early
raise SystemExit(main(sys.argv[1:]))
"""


def together(path: Path, *commands: list[str], program: Sequence[str] = PROGRAM) -> subprocess.Popen[str]:
    file = path / "commands.json"
    file.write_text(json.dumps(commands))
    return subprocess.Popen(
        [sys.executable, *program, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_all_end_when_told_to(tmp_path: Path) -> None:
    """Their open files, such as their standard output, are closed: none is left."""
    with together(tmp_path, SLEEP, SLEEP) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["up\n", "up\n"]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, "", "")


def test_one_that_is_just_started_ends_too(tmp_path: Path) -> None:
    with together(tmp_path, SLEEP, SLEEP, program=["-c", TOLD_EARLY]) as process:
        _output, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_one_that_ends_by_itself_ends_the_others(tmp_path: Path) -> None:
    with together(tmp_path, SLEEP, ENDS) as process:
        _output, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "SystemExit(3)" in errors and "has ended by itself" in errors
