"""A try of streams on a file system of its own: a program in a mount namespace, and the test that starts it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.system.mounts import CannotMount
from tests.system.power_loss import EXIT_CANNOT_MOUNT
from tests.system.volumes import with_own_mounts

INSIDE: Final = "--mounts-are-private"
Play = Callable[[str, Path, ExitStack], dict[str, int]]


def run(module: str, play: Play) -> int:
    """The program: `play` on the kind of file system in the arguments. Prints the kind and its outcome."""
    kind = sys.argv[1]
    try:
        if INSIDE not in sys.argv:
            return subprocess.run(_command(module, kind), check=False).returncode
        with tempfile.TemporaryDirectory(prefix="tailrace-try-") as directory, ExitStack() as stack:
            print(kind, play(kind, Path(directory), stack))
    except CannotMount as error:
        print(error)
        return EXIT_CANNOT_MOUNT
    return 0


def require_outcome(module: str, kind: str, key: str) -> None:
    """The test: the program ends well, with an outcome that begins with `key`. Skips if nothing can be mounted here."""
    try:
        tried = _command(module, kind)
    except CannotMount as error:
        pytest.skip(str(error))
    done = subprocess.run(tried, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode == EXIT_CANNOT_MOUNT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, f"it ended with {done.returncode}: {done.stderr}"
    assert done.stdout.startswith(f"{kind} {{'{key}': ")


def _command(module: str, kind: str) -> list[str]:
    """Raises CannotMount."""
    return with_own_mounts(sys.executable, "-m", module, kind, INSIDE)
