"""File systems of their own for tests that need a small one, or one that is emptied at once."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.system.node import wait_for


class CannotMount(Exception):
    """Not root, or the kernel refused; the text gives the reason."""


def mount(path: Path, options: str) -> None:
    """A tmpfs at `path`. Raises CannotMount."""
    if os.geteuid() != 0:
        raise CannotMount("only root may mount a file system")
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMount(f"no tmpfs can be mounted here: {done.stderr.strip()}")


def unmount(path: Path) -> None:
    """Processes that were killed may take a moment to let go of their files.

    One that is in use for longer fails the test. It is detached all the same: a mount that stays is in the way of
    every later run of pytest, which cannot remove the folder.
    """
    command = ["umount", str(path)]
    try:
        wait_for(lambda: not subprocess.run(command, capture_output=True).returncode, f"{path} is unmounted")
    except AssertionError:
        subprocess.run(["umount", "--lazy", str(path)], check=False)
        raise


@contextlib.contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    """A tmpfs at `path`, which is made, for the length of a block. Raises CannotMount."""
    path.mkdir()
    mount(path, options)
    try:
        yield path
    finally:
        unmount(path)


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0
