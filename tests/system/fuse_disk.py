"""A disk whose writes fail, and whose flushes take time, on a test's command: one file, served by way of FUSE.

A loop device over the file is a block device with the same faults. Run as a program: MOUNTPOINT IMAGE CONTROL. IMAGE
holds the bytes; CONTROL selects the writes that fail and the time of a flush. A write fails that contains a marker, so
that a test can spare the file system's own metadata, which many file systems do not survive the loss of.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.system.mounts import CannotMount, unmount
from tests.system.node import wait_for

DISK: Final = "disk"
CONTROL: Final = struct.Struct("<I32p")
FILE_NODE: Final = 2
REQUEST_BYTES_MAX: Final = 1 << 21
WRITE_BYTES_MAX: Final = 1 << 20
FOPEN_DIRECT_IO, FUSE_BIG_WRITES, FUSE_MAX_PAGES = 1, 1 << 5, 1 << 22
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, BATCH_FORGET = (
    *(1, 2, 3, 4, 14, 15, 16, 17, 18, 20, 25, 26, 36, 42),
)
NO_ANSWER: Final = (FORGET, BATCH_FORGET, INTERRUPT)
CLONE_NEWNS: Final = 0x20000
_libc = ctypes.CDLL(None, use_errno=True)
_IN: Final = struct.Struct("<IIQQIIIHH")
_OUT: Final = struct.Struct("<IiQ")
_ATTR: Final = struct.Struct("<QQQQQQIIIIIIIIII")
_RANGE: Final = struct.Struct("<QQI")


class FaultyDisk:
    """A mounted file system whose disk fails and waits on demand."""

    def __init__(self, path: Path, control: Path, kind: str, device: Path) -> None:
        self.path = path
        self._control = control
        self._mount = ("mount", "-t", kind, "-o", "loop", str(device), str(path))

    def mount(self) -> None:
        """Raises CannotMount."""
        _run(*self._mount)

    def remount(self) -> None:
        """Unmount it and mount it again: what memory had of it is gone."""
        unmount(self.path)
        self.mount()

    def set(self, *, fail_marker: bytes = b"", flush_ms: int = 0) -> None:
        """From now on writes that contain these bytes fail with EIO, and a flush takes `flush_s`."""
        self._control.write_bytes(CONTROL.pack(flush_ms, fail_marker))


@contextlib.contextmanager
def own_mounts() -> Iterator[None]:
    """A mount namespace for this thread and the processes it starts: nobody else's copy keeps a disk busy.

    Raises CannotMount.
    """
    back, directory = os.open("/proc/self/ns/mnt", os.O_RDONLY), Path.cwd()
    if _libc.unshare(CLONE_NEWNS) != 0:
        os.close(back)
        raise CannotMount(f"no mount namespace can be made: {os.strerror(ctypes.get_errno())}")
    try:
        _run("mount", "--make-rprivate", "/")
        yield
    finally:
        _libc.setns(back, CLONE_NEWNS)
        os.close(back)
        os.chdir(directory)


@contextlib.contextmanager
def faulty_disk(directory: Path, kind: str, nbytes: int) -> Iterator[FaultyDisk]:
    """A file system of `kind`, ext4 or xfs, on such a disk, mounted below `directory`. Use it within `own_mounts`.

    Raises CannotMount.
    """
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise CannotMount("only root may mount a file system, and this test needs /dev/fuse")
    image, control, fuse, path = (directory / name for name in ("image", "control", "fuse", "volume"))
    disk = FaultyDisk(path, control, kind, fuse / DISK)
    disk.set()
    with image.open("wb") as file:
        file.truncate(nbytes)
    _run(*{"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}[kind], str(image))
    fuse.mkdir()
    path.mkdir()
    server = subprocess.Popen([sys.executable, "-m", "tests.system.fuse_disk", str(fuse), str(image), str(control)])
    try:
        wait_for(lambda: (fuse / DISK).exists() or server.poll() is not None, "the disk is served")
        disk.mount()
        try:
            yield disk
        finally:
            disk.set()
            unmount(path)
    finally:
        if server.poll() is None:
            unmount(fuse)
        server.terminate()
        server.wait()


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotMount(f"{command[0]} is not installed") from None
    if done.returncode:
        raise CannotMount(f"{' '.join(command)}: {done.stderr.strip()}")


class _Server:
    def __init__(self, mountpoint: str, image: str, control: str) -> None:
        self._fuse = os.open("/dev/fuse", os.O_RDWR)
        self._image = os.open(image, os.O_RDWR)
        self._control = os.open(control, os.O_RDONLY)
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"faulty", mountpoint.encode(), b"fuse", 0, options) != 0:
            raise OSError(ctypes.get_errno(), f"cannot mount {mountpoint}")

    def run(self) -> None:
        while True:
            try:
                request = os.read(self._fuse, REQUEST_BYTES_MAX)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                raise
            _, opcode, unique, node, *_ = _IN.unpack_from(request)
            body = memoryview(request)[_IN.size :]
            if opcode == FSYNC:  # writes go on meanwhile
                threading.Thread(target=self._flush, args=(unique,), daemon=True).start()
            elif opcode not in NO_ANSWER:
                self._answer(unique, *self._serve(opcode, node, body))

    def _serve(self, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
        match opcode:
            case x if x == INIT:
                return 0, struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, FUSE_BIG_WRITES | FUSE_MAX_PAGES,
                                      16, 12, WRITE_BYTES_MAX, 1, WRITE_BYTES_MAX >> 12, 0, 0)  # fmt: skip
            case x if x == LOOKUP:
                if bytes(body) != DISK.encode() + b"\0":
                    return errno.ENOENT, b""
                return 0, struct.pack("<QQQQII", FILE_NODE, 0, 3600, 3600, 0, 0) + self._attr(FILE_NODE)
            case x if x in (GETATTR, SETATTR):
                return 0, struct.pack("<QII", 3600, 0, 0) + self._attr(node)
            case x if x == OPEN:
                return 0, struct.pack("<QII", 1, FOPEN_DIRECT_IO, 0)
            case x if x == READ:
                _, offset, size = _RANGE.unpack_from(body)
                return 0, os.pread(self._image, size, offset)
            case x if x == WRITE:
                return self._write(body)
            case x if x == STATFS:
                return 0, struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
            case x if x in (RELEASE, FLUSH):
                return 0, b""
        return errno.ENOSYS, b""

    def _write(self, body: memoryview) -> tuple[int, bytes]:
        _, offset, size = _RANGE.unpack_from(body)
        data = bytes(body[40 : 40 + size])
        marker = self._faults()[1]
        if marker and marker in data:
            return errno.EIO, b""
        os.pwrite(self._image, data, offset)
        return 0, struct.pack("<II", size, 0)

    def _flush(self, unique: int) -> None:
        time.sleep(self._faults()[0] / 1000)
        self._answer(unique, 0, b"")

    def _faults(self) -> tuple[int, bytes]:
        found = os.pread(self._control, CONTROL.size, 0)
        return CONTROL.unpack(found) if len(found) == CONTROL.size else (0, b"")

    def _attr(self, node: int) -> bytes:
        size = os.fstat(self._image).st_size if node == FILE_NODE else 0
        mode = 0o100600 if node == FILE_NODE else 0o040700
        return _ATTR.pack(node, size, size // 512, *[0] * 6, mode, 1, 0, 0, 0, 4096, 0)

    def _answer(self, unique: int, error: int, body: bytes) -> None:
        os.write(self._fuse, _OUT.pack(_OUT.size + len(body), -error, unique) + body)


if __name__ == "__main__":
    _Server(*sys.argv[1:]).run()
