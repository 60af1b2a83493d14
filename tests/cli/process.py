"""The command in a process of its own, as a shell would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0

Done = subprocess.CompletedProcess[bytes]


def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Starts `tailrace ARGUMENTS` with pipes, unless `options` override them."""
    given: dict[str, object] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = {**os.environ, "COLUMNS": "120"}
    environment.pop("TAILRACE_SERVER", None)
    given |= {"env": environment, "cwd": ROOT, **options}
    return subprocess.Popen([sys.executable, "-m", "tailrace.cli.main", *arguments], **given)  # type: ignore[call-overload, no-any-return]


def tailrace(*arguments: str, stdin: bytes = b"", **options: object) -> Done:
    """Run it to its end."""
    process = start(*arguments, **options)
    try:
        out, err = process.communicate(stdin, DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
