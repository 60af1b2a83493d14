"""The writing side of a journal (`shard.journal`): several threads put blocks into it and wait for the disk at the same
time.

Blocks go to one half until it is full or `turn_over` was called, then to the other, which must be free: everything that
a half holds has to be in the streams' own files, on the disk, before it is written again. `pending` lists the
streams to sync for that.

An error of the disk may be of any block that others wait for. Each thread has a descriptor of its own, so that the
kernel reports the error to all of them; from then on the journal takes nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from tailrace.shard.files import NEW_SUFFIX, FileSystem, sync_directory, write_all, write_new
from tailrace.shard.journal import (
    HALF_STARTS,
    JOURNAL_BYTES,
    JOURNAL_HALF_BYTES,
    JOURNAL_MAGIC,
    FramesAt,
    pack_block,
)
from tailrace.shard.journal_replay import remove_journals


class Half:
    """`pending`: by stream, the seq before which its messages must be synced until the half is free."""

    __slots__ = ("end", "pending", "used")

    def __init__(self, start: int) -> None:
        self.used = start
        self.end = start + JOURNAL_HALF_BYTES
        self.pending: dict[str, int] = {}


class JournalWriter:
    """One per owner. It takes nothing before `open`."""

    __slots__ = ("_active", "_at_once", "_fds", "_free", "_halves", "_lock", "_number", "is_open", "path", "wanted")

    def __init__(self, path: Path, at_once: int = 1) -> None:
        """Up to `at_once` threads write to it."""
        self.path = path
        self.is_open = False
        self.wanted = False  # somebody would have written, and it can be opened
        self._at_once = at_once
        self._lock = threading.Lock()
        self._fds: list[int] = []
        self._free: SimpleQueue[int] = SimpleQueue()
        self._halves = [Half(start) for start in HALF_STARTS]
        self._active = self._number = 0

    def open(self, file_system: FileSystem) -> None:
        """Make the file anew, after all that an older one may hold was put on the disk; once only. Raises OSError."""
        file_system.sync()
        if self.path.exists():
            remove_journals(self.path.parent, [self.path])
        zeros = bytes(JOURNAL_BYTES - len(JOURNAL_MAGIC))
        os.close(write_new(self.path, JOURNAL_MAGIC + zeros, sync=True))
        os.rename(f"{self.path}{NEW_SUFFIX}", self.path)
        sync_directory(self.path.parent)
        for _ in range(self._at_once):
            self._fds.append(os.open(self.path, os.O_RDWR | os.O_CLOEXEC))
            self._free.put(self._fds[-1])
        self.is_open, self.wanted = True, False

    def write(self, records: Sequence[FramesAt], ends: dict[str, int]) -> bool:
        """Put a block of these on the disk; False if it has no room now. `ends`: the seqs behind their messages.

        Raises OSError.
        """
        if not self.is_open:
            self.wanted = not self._fds
            return False
        fd = self._free.get()
        try:
            if not self._write(fd, records, ends):
                return False
            os.fdatasync(fd)
        except OSError:
            self.is_open = False
            raise
        finally:
            self._free.put(fd)
        return self.is_open

    def _write(self, fd: int, records: Sequence[FramesAt], ends: dict[str, int]) -> bool:
        """In the order of their numbers: a block that is on the disk has all before it there."""
        with self._lock:
            block = pack_block(self._number + 1, records)
            if not self.is_open or not self._has_room(len(block)):
                return False
            half = self._halves[self._active]
            half.pending.update(ends)
            self._number += 1
            half.used += len(block)
            try:
                write_all(fd, block, half.used - len(block))
            except OSError:
                self.is_open = False
                raise
        return True

    def _has_room(self, size: int) -> bool:
        half = self._halves[self._active]
        if half.used + size <= half.end:
            return True
        return size <= JOURNAL_HALF_BYTES and self._turn_over()

    def turn_over(self) -> None:
        """Begin the other half, if it is free and this one is not empty, so that `pending` lists its streams."""
        with self._lock:
            if self._halves[self._active].pending:
                self._turn_over()

    def _turn_over(self) -> bool:
        other = 1 - self._active
        if self._halves[other].pending:
            return False
        self._halves[other] = Half(HALF_STARTS[other])
        self._active = other
        return True

    def pending(self) -> dict[str, int]:
        """The streams to sync, and up to which seq, until the half that is not written to is free."""
        with self._lock:
            return dict(self._halves[1 - self._active].pending)

    def synced(self, name: str, seq: int) -> None:
        """The stream's messages before `seq` are in its own files, on the disk; or they are no more."""
        with self._lock:
            pending = self._halves[1 - self._active].pending
            if pending.get(name, seq + 1) <= seq:
                del pending[name]

    @property
    def is_empty(self) -> bool:
        """Returns whether nothing is to be synced for it."""
        with self._lock:
            return not any(half.pending for half in self._halves)

    def close(self) -> None:
        """A second call does nothing. The file stays."""
        self.is_open = False
        while self._fds:
            os.close(self._fds.pop())
