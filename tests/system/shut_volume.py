"""Streams that are open when their file system shuts down, as after an error of its device: do appends become errors?

    sudo .venv/bin/python -m tests.system.shut_volume ext4

Stores into a window go on, since its space is reserved, or are answered with SIGBUS: that depends on the file system.
So some messages more are appended, until the window is full or a second old. No sync of them succeeds.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from tailrace.shard.errors import StorageError
from tailrace.shard.log import StreamLog
from tailrace.shard.window import CONTENT_WINDOW_BYTES_MAX, INDEX_WINDOW_BYTES_MAX, SMALL_APPENDS_MIN
from tests.shard.helpers import append, open_log
from tests.system.full_volume import IMAGE_BYTES
from tests.system.volume_try import run
from tests.system.volumes import LoopVolume

STREAMS: Final = 20
APPENDS: Final = (CONTENT_WINDOW_BYTES_MAX + INDEX_WINDOW_BYTES_MAX) // 32


def play(kind: str, directory: Path, stack: ExitStack) -> dict[str, int]:
    """Half of the streams are synced just before it, and all are written back just after it, in vain: pages are clean
    then, and the next store into one is a fault. Raises AssertionError.
    """
    volume = LoopVolume(kind, directory, IMAGE_BYTES[kind])
    volume.mount()
    stack.callback(volume.unmount)
    logs = [open_log(volume.path, f"s{number}") for number in range(STREAMS)]
    for log in logs:
        stack.callback(log.abandon)
        for _ in range(2 * SMALL_APPENDS_MIN):
            append(log, b"small")
    for log in logs[: STREAMS // 2]:
        log.sync()
    root = os.open(volume.path, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, root)
    volume.lose_power()
    if ctypes.CDLL(None).syncfs(root) == 0:
        raise AssertionError(f"{kind} was synced after it had shut down")
    appended = sum(_append_until_refused(log) for log in logs)
    if synced := [log.name for log in logs if _is_synced(log)]:
        raise AssertionError(f"synced without a disk: {synced}")
    if sure := [log.name for log in logs if log.sync_failed_seq is None]:
        raise AssertionError(f"a failed sync is forgotten: {sure}")
    for log in logs:
        _require_error(partial(log.trim, 2))
        _require_error(log.close)
    return {"appended": appended, "refused": len(logs)}


def _append_until_refused(log: StreamLog) -> int:
    for number in range(APPENDS):
        try:
            append(log, b"late")
        except OSError:
            if log.next_seq != 2 * SMALL_APPENDS_MIN + number:
                raise AssertionError(f"{log.name} has {log.next_seq} messages") from None
            return number
    raise AssertionError(f"{APPENDS} messages were appended to {log.name}")


def _is_synced(log: StreamLog) -> bool:
    """Returns whether a sync put messages on the disk that came late."""
    before = log.synced_seq
    try:
        return log.sync() > before
    except (OSError, StorageError):
        return False


def _require_error(act: Callable[[], None]) -> None:
    try:
        act()
    except OSError:
        return
    raise AssertionError("a store into a header page of a file system that has shut down is no error")


if __name__ == "__main__":
    sys.exit(run("tests.system.shut_volume", play))
