from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

SLEEP = [sys.executable, "-c", "import os, time; os.write(1, b'up\\n'); time.sleep(60)"]  # one write, one line
ENDS = [sys.executable, "-c", "raise SystemExit(3)"]


def together(path: Path, *commands: list[str]) -> subprocess.Popen[str]:
    file = path / "commands.json"
    file.write_text(json.dumps(commands))
    command = [sys.executable, "-m", "bench.load.together", str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_all_end_when_told_to(tmp_path: Path) -> None:
    """What they hold open, such as their standard output, is given back: none is left."""
    with together(tmp_path, SLEEP, SLEEP) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == ["up\n", "up\n"]
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "", "")


def test_one_that_ends_by_itself_ends_the_others(tmp_path: Path) -> None:
    with together(tmp_path, SLEEP, ENDS) as process:
        _output, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "SystemExit(3)" in errors and "has ended by itself" in errors
