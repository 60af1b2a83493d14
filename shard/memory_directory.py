"""Streams in memory: their files are in a file system that the kernel keeps in memory, and go when the node stops.

The folder is made by the supervisor and has a folder a shard, as the data directory. It is made anew at each start,
with a term of its own, so that nobody takes a message for one of before.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tailrace.shard.errors import DirectoryError, peer_text

MEMORY_ROOT: Final = Path("/dev/shm")
TERM_FILE: Final = "term"
KIND: Final = "tmpfs"
TERMS_SINCE_S: Final = 1_577_836_800
TERMS_A_SECOND: Final = 4
"""Making the folder takes as long as a term: a quick stop and start has another one. 32 bits last until 2054."""

_MOUNTS: Final = Path("/proc/self/mounts")


@dataclass(frozen=True)
class MemoryDirectory:
    """The folder of one node. `term`: of all messages in it. `holds`: whether a stream of this name is kept there."""

    path: Path
    term: int
    holds: Callable[[bytes], bool]

    def shard_path(self, shard: int) -> Path:
        return self.path / f"shard-{shard:02d}"


def memory_path(node_id: str, root: Path = MEMORY_ROOT) -> Path:
    return root / f"tailrace-{node_id}"


def make_memory_directory(path: Path, shards: int) -> None:
    """Makes the folder, unless it is whole. Raises DirectoryError if it would not be in memory, or cannot be made."""
    if not is_in_memory(path.parent):
        raise DirectoryError(path.parent, f'durability = "memory" needs a file system of the kind {KIND} there')
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise DirectoryError(path, "belongs to another user")
        if (path / TERM_FILE).exists():
            return
        for shard in range(shards):
            (path / f"shard-{shard:02d}").mkdir(mode=0o700, exist_ok=True)
        new = path / (TERM_FILE + ".new")
        new.write_text(str(int((time.time() - TERMS_SINCE_S) * TERMS_A_SECOND)))
        time.sleep(1 / TERMS_A_SECOND)
        new.rename(path / TERM_FILE)
    except OSError as error:
        raise DirectoryError(path, f"cannot be made: {peer_text(error)}") from error


def open_memory_directory(path: Path, holds: Callable[[bytes], bool]) -> MemoryDirectory:
    """Raises DirectoryError."""
    try:
        return MemoryDirectory(path, int((path / TERM_FILE).read_text()), holds)
    except (OSError, ValueError) as error:
        raise DirectoryError(path, f"is no folder of streams in memory: {peer_text(error)}") from error


def remove_memory_directory(path: Path) -> None:
    """Gives the memory back; nothing happens if it does not exist, or belongs to another user."""
    try:
        if path.lstat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return


def is_in_memory(path: Path) -> bool:
    """Whether the file system at this path, or the nearest one above it, is one in memory."""
    kinds = {}
    for line in _MOUNTS.read_text().splitlines():
        _device, place, kind, *_rest = line.split(" ")
        kinds[Path(place)] = kind  # the last one mounted is on top
    resolved = path.resolve()
    return next((kinds[each] for each in (resolved, *resolved.parents) if each in kinds), "") == KIND
