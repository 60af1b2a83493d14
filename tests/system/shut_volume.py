"""Streams that are open when their file system shuts down, as after an error of its device: do appends become errors?

    sudo .venv/bin/python -m tests.system.shut_volume ext4

Stores into a window go on, since its space is reserved, or are answered with SIGBUS: that depends on the file system.
So some messages more are appended, until the window is full or a second old. No sync of them succeeds.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
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
    """Half of the streams are synced just before it. Raises AssertionError."""
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
    volume.lose_power()
    appended = sum(_append_until_refused(log) for log in logs)
    if synced := [log.name for log in logs if _is_synced(log)]:
        raise AssertionError(f"synced without a disk: {synced}")
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


if __name__ == "__main__":
    sys.exit(run("tests.system.shut_volume", play))
