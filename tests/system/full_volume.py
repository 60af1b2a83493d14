"""Streams that are open when their file system gets full: is it an error, or does the kernel kill the process?

    sudo .venv/bin/python -m tests.system.full_volume ext4

The words of a header page are stored through a mapping, and small batches are, whose space was reserved while there
was some. A file system that writes such a page to another place on the disk needs space for that, and can report the
lack of it only by SIGBUS.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tailrace.shard.errors import StorageFull
from tailrace.shard.log import StreamLog
from tailrace.shard.window import SMALL_APPENDS_MIN
from tests.shard.helpers import append, open_log
from tests.system.mounts import CannotMount, mounted, unmount
from tests.system.volume_try import run
from tests.system.volumes import MAKE, LoopVolume

STREAMS: Final = 40
ROUNDS: Final = 20
IMAGE_BYTES: Final = {"ext4": 48 << 20, "xfs": 320 << 20, "btrfs": 128 << 20}
TMPFS: Final = "size=32m"
BALLAST_BYTES: Final = (1 << 20, 1 << 16, 1 << 12, 1)


def fill(path: Path) -> None:
    """Leave no space, on the disk as well."""
    with open(path / "ballast", "ab", buffering=0) as file:
        for nbytes in BALLAST_BYTES:
            with suppress(OSError):
                while file.write(bytes(nbytes)):
                    pass
    os.sync()


def use(logs: list[StreamLog]) -> dict[str, int]:
    """Trim every stream and append to it, again and again; gives how many were refused."""
    outcomes = {"done": 0, "full": 0}
    for number in range(1, ROUNDS + 1):
        for log in logs:
            try:
                log.trim(number)
                append(log, b"small" * 200)
                outcomes["done"] += 1
            except StorageFull:
                outcomes["full"] += 1
        os.sync()  # a page that was written back is looked at anew when the next word is stored
    return outcomes


def play(kind: str, directory: Path, stack: ExitStack) -> dict[str, int]:
    path = _mounted(kind, directory, stack) / "data"
    path.mkdir()
    logs = [open_log(path, f"s{number}") for number in range(STREAMS)]
    for log in logs:
        stack.callback(log.abandon)
        append(log, *[b"x" * 100] * 10)
        for _ in range(2 * SMALL_APPENDS_MIN):
            append(log, b"small")
    os.sync()
    fill(path.parent)
    return use(logs)


def _mounted(kind: str, directory: Path, stack: ExitStack) -> Path:
    """Raises CannotMount."""
    if kind in MAKE:
        volume = LoopVolume(kind, directory, IMAGE_BYTES[kind])
        volume.mount()
        stack.callback(volume.unmount)
        return volume.path
    base = stack.enter_context(mounted(directory / "tmpfs", TMPFS))
    if kind == "tmpfs":
        return base
    lower, upper, work, path = (base / name for name in ("lower", "upper", "work", "overlay"))
    for each in (lower, upper, work, path):
        each.mkdir()
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    done = subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", str(path)], check=False)
    if done.returncode:
        raise CannotMount("no overlay can be mounted here")
    stack.callback(unmount, path)
    return path


if __name__ == "__main__":
    code = run("tests.system.full_volume", play)
    if code == -signal.SIGBUS:
        print("SIGBUS")
    sys.exit(code)
