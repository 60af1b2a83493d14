"""Locks of the data directory: one for the supervisor (DATA/LOCK), one a shard (DATA/shard-NN/LOCK).

They are flocks: the kernel drops them when the last process that holds the open file ends, so a crash leaves nothing to
clean up. The file itself stays, and holds the pid of its last owner.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from tailrace.shard.errors import ShardLocked, is_full

LOCK_NAME = "LOCK"
RETRY_S = 0.02


class DirectoryLock:
    """The lock of one directory, whole data directory or shard. Not for sharing between threads.

    A forked child shares a lock that is held at the fork: fork before acquiring.
    """

    __slots__ = ("_fd", "path")

    def __init__(self, directory: Path) -> None:
        self.path = directory / LOCK_NAME
        self._fd = -1

    @property
    def held(self) -> bool:
        return self._fd >= 0

    def acquire(self) -> None:
        """Take the lock now or never. Raises ShardLocked with the holder's pid when known, OSError."""
        if self.held:
            return
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder_pid = _read_pid(fd)
            os.close(fd)
            raise ShardLocked(self.path, holder_pid) from None
        except OSError:
            os.close(fd)
            raise
        self._fd = fd
        _write_pid(fd)

    def release(self) -> None:
        """Give the lock back; nothing happens when it is not held."""
        if self.held:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> DirectoryLock:
        self.acquire()
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()


class ShardLock(DirectoryLock):
    """Makes its holder the owner of a shard: the one process that appends to its streams, trims and mends them."""

    __slots__ = ()


def lock_shard(path: Path, deadline_s: float) -> ShardLock:
    """Take the lock of a shard once its holder lets go. Raises ShardLocked after `deadline_s` (monotonic clock)."""
    while True:
        lock = ShardLock(path)
        try:
            lock.acquire()
            return lock
        except ShardLocked:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_S)


def _read_pid(fd: int) -> int:
    """The pid in the lock file, 0 without any."""
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else 0


def _write_pid(fd: int) -> None:
    """Writes the pid into the lock file. On a full disk the pid is missing, but the lock holds."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)
    except OSError as error:
        if not is_full(error):
            raise
