"""The command in a process of its own, as a shell would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.system.nursery import begin_command

ROOT = Path(__file__).parents[2]
DEADLINE_S = 30.0

Done = subprocess.CompletedProcess[bytes]


def start(*arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """Starts `tailrace ARGUMENTS` with pipes, unless `options` override them."""
    environment = {**os.environ, "COLUMNS": "120"}
    environment.pop("TAILRACE_SERVER", None)
    if not options:
        return begin_command(arguments, environment, ROOT)
    given: dict[str, object] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
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
