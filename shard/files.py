"""The system calls that storage needs and Python's `os` lacks or leaves unsafe: whole writes, atomic replacement,
hole punching, syncfs."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, Protocol

FALLOC_FL_KEEP_SIZE = 0x01
FALLOC_FL_PUNCH_HOLE = 0x02
SYNC_FILE_RANGE_WRITE = 0x02
STATFS_BYTES = 256  # more than the kernel writes
FLUSHED_BY_SYNCFS = frozenset((0xEF53, 0x9123683E))  # ext4, btrfs; XFS forces its log only, which may be empty
PIECES_MAX = 64  # a system call takes 1,024 at most
NEW_SUFFIX = ".new"
"""Of files that are being made; one that is found was left by a crash and is worth nothing."""

# CDLL, not PyDLL: the calls below may wait for the disk, and other threads go on meanwhile.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
_libc.syncfs.argtypes = (ctypes.c_int,)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
_libc.fstatfs.argtypes = (ctypes.c_int, ctypes.c_char_p)


def write_all(fd: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    """pwrite until everything is written. Raises OSError; some of it may then be in the file."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        if written == 0:
            raise OSError(errno.EIO, f"could not write {len(view)} bytes at {offset}")
        view = view[written:]
        offset += written


def write_row(fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> None:
    """Write one piece behind the other, PIECES_MAX of them with one system call. Raises as `write_all`."""
    for first in range(0, len(pieces), PIECES_MAX):
        row = pieces[first : first + PIECES_MAX]
        written = os.pwritev(fd, row, offset)
        for piece in row:
            size = len(piece)
            if written < size:
                write_all(fd, memoryview(piece)[written:], offset + written)
            written = max(written - size, 0)
            offset += size


def read_all(fd: int, size: int, offset: int) -> bytes:
    """`size` bytes from `offset` on, fewer only where the file ends."""
    data = os.pread(fd, size, offset)
    if len(data) in (size, 0):
        return data
    parts = [data]
    while data:
        size -= len(data)
        offset += len(data)
        data = os.pread(fd, size, offset) if size else b""
        parts.append(data)
    return b"".join(parts)


def copy_bytes(source_fd: int, start: int, end: int, target_fd: int, place: int, piece_bytes: int) -> None:
    """Writes bytes start..end of one file into another from `place` on, in pieces. Raises OSError."""
    while start < end:
        piece = read_all(source_fd, min(piece_bytes, end - start), start)
        if not piece:
            raise OSError(errno.EIO, f"the file ends at {start}, {end - start} bytes early")
        write_all(target_fd, piece, place)
        start += len(piece)
        place += len(piece)


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` in the place of `path`, whole or not at all, and on the disk before this returns. Raises OSError."""
    os.close(write_new(path, data, sync=True))
    os.rename(f"{path}{NEW_SUFFIX}", path)
    sync_directory(path.parent)


class Among(Protocol):
    """Files that are replaced together, later."""

    def replace(self, path: Path, data: bytes) -> None:
        """Let `path` have this content. Raises OSError."""

    def remove(self, path: Path) -> None:
        """Take the file away; it need not be there."""


TOGETHER_MIN = 16
"""Files that are replaced together: from so many on, two syncs of the file system take less than one of each file."""


class Replacements:
    """Small files of one file system that are replaced together: few with a sync of each file and of each directory,
    many with two syncs of the file system.

    Until `finish` returns any of them may be the old one or the new one, whole.
    """

    __slots__ = ("_file_system", "_paths")

    def __init__(self) -> None:
        self._file_system: FileSystem | None = None  # opened before anything is written: it knows of all errors
        self._paths: dict[Path, bool] = {}  # whether the file is replaced; or else it goes

    def replace(self, path: Path, data: bytes) -> None:
        """Raises OSError."""
        self._file_system = self._file_system or FileSystem(path.parent)
        os.close(write_new(path, data, sync=False))
        self._paths[path] = True

    def remove(self, path: Path) -> None:
        """The file need not be there."""
        self._paths[path] = False

    def finish(self, any_path: Path) -> None:
        """Put all on the disk; `any_path` is one in their file system. Raises OSError."""
        many = len(self._paths) >= TOGETHER_MIN
        file_system = self._file_system or FileSystem(any_path)
        # Before the names: a name that is on the disk stands for a whole file.
        if many:
            file_system.sync()
        else:
            for path, is_replaced in self._paths.items():
                if is_replaced:
                    sync_file(f"{path}{NEW_SUFFIX}")
        for path, is_replaced in self._paths.items():
            if is_replaced:
                os.rename(f"{path}{NEW_SUFFIX}", path)
            else:
                path.unlink(missing_ok=True)
        if many:
            file_system.sync()
        else:
            for directory in {path.parent for path in self._paths}:
                sync_directory(directory)

    def give_up(self) -> None:
        """After an error: take away the new files that did not come to their places."""
        for path, is_replaced in self._paths.items():
            if is_replaced:
                with suppress(OSError):
                    os.unlink(f"{path}{NEW_SUFFIX}")


def write_new(path: str | Path, data: bytes | Callable[[int], bytes], *, sync: bool) -> int:
    """Write the file that is to be renamed to `path`, with NEW_SUFFIX beside it; with `sync` it is on the disk.

    `data` may be what makes the bytes for its descriptor. Gives this descriptor, for reading and writing. Raises
    OSError, and leaves nothing then.
    """
    new = f"{path}{NEW_SUFFIX}"
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, data(fd) if callable(data) else data, 0)
        if sync:
            os.fsync(fd)
    except OSError:
        os.close(fd)
        os.unlink(new)
        raise
    return fd


class SmallFile(NamedTuple):
    """`mode`: as of os.stat."""

    mode: int
    content: bytes


def read_small(path: str | Path, bytes_max: int) -> SmallFile:
    """Read a whole file that somebody else has written. It must be a regular one: a FIFO or a device would make the
    reader wait, perhaps for ever. Raises OSError, with EFBIG if it is larger than `bytes_max`.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"is larger than {bytes_max:,} bytes", str(path))
    return SmallFile(mode, content)


def start_writing(fd: int) -> None:
    """Begin to write the changed pages of a file to the disk, in this thread, and do not wait for the end.

    A sync must follow, which finds less to do and gets the errors. Any number is a valid `fd`.
    """
    _libc.sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE)


def sync_file(path: str) -> None:
    """Put a file on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Put the names in a directory on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(path: Path) -> None:
    """syncfs: put everything written so far to the file system that holds `path` on the disk. Raises OSError."""
    file_system = FileSystem(path)
    try:
        file_system.sync()
    finally:
        file_system.close()


class FileSystem:
    """A file system as one descriptor sees it: each failed write of any file is an error of one `sync`, the next one.

    So keep it open: one that was opened after the kernel has reported a failure elsewhere knows nothing of it. `errors`
    counts the syncs that failed.

    May be used by several threads. Up to `at_once` of them sync at the same time, each with a descriptor of its own:
    the kernel reports a failed write once to each descriptor.
    """

    __slots__ = ("_fds", "_free", "_lock", "_path", "errors")

    def __init__(self, path: Path, at_once: int = 1) -> None:
        """The file system that holds `path`. Raises OSError."""
        self._path = path
        self._lock = threading.Lock()
        self.errors = 0
        self._fds: list[int] = []
        self._free: SimpleQueue[int] = SimpleQueue()
        for _ in range(at_once):
            self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self._free.put(self._fds[-1])

    def sync(self) -> None:
        """syncfs: put everything written so far on the disk. Raises OSError."""
        fd = self._free.get()
        try:
            if _libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                with self._lock:
                    self.errors += 1
                raise OSError(code, os.strerror(code), str(self._path))
        finally:
            self._free.put(fd)

    @property
    def flushes_always(self) -> bool:
        """Returns whether `sync` flushes the disk's own cache even if only bytes within files have changed."""
        found = ctypes.create_string_buffer(STATFS_BYTES)
        if _libc.fstatfs(self._fds[0], found) != 0:
            return False
        return int.from_bytes(found.raw[:8], sys.byteorder) in FLUSHED_BY_SYNCFS

    def close(self) -> None:
        """A second call does nothing."""
        while self._fds:
            os.close(self._fds.pop())

    def __del__(self) -> None:
        self.close()


def dirty_bytes() -> int:
    """Returns the dirty page bytes of the machine. Raises OSError."""
    with open("/proc/meminfo", "rb") as file:
        return 1024 * sum(map(int, re.findall(rb"^(?:Dirty|Writeback): +(\d+) kB", file.read(), re.M)))


def punch_hole(fd: int, start: int, end: int) -> bool:
    """Give the blocks of bytes start..end back; they read as zeros from now on, offsets stay as they are.

    False where the file system cannot do it. Raises OSError.
    """
    if _libc.fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, end - start) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(code, os.strerror(code))
