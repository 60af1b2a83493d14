"""A file system in a loop device that can lose its power: data not written by then are gone.

For a process of root in a mount namespace of its own (`with_own_mounts`).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

from tests.system.mounts import CannotMount, unmount

MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
PACKAGES: Final = {"ext4": "e2fsprogs", "xfs": "xfsprogs", "btrfs": "btrfs-progs"}
SHUTDOWN: Final = 0x8004587D
"""EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN, which are the same number."""
WITHOUT_LOG_FLUSH: Final = 2
BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
WAIT_BEFORE, WRITE, WAIT_AFTER = 1, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)
_libc.sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class LoopVolume:
    """An image file with a file system of `kind`, mounted at `path`."""

    def __init__(self, kind: str, directory: Path, nbytes: int) -> None:
        """Make the image. Raises CannotMount if the program for this file system is not installed."""
        self.kind = kind
        self.path = directory / kind
        self._image = directory / f"{kind}.img"
        program, *options = MAKE[kind]
        if shutil.which(program) is None:
            raise CannotMount(f"{program} is not installed (package {PACKAGES[kind]})")
        with self._image.open("wb") as image:
            image.truncate(nbytes)
        done = subprocess.run([program, *options, str(self._image)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotMount(f"{program}: {done.stderr.strip()}")
        self.path.mkdir(exist_ok=True)

    def mount(self) -> None:
        """Raises CannotMount."""
        command = ["mount", "-t", self.kind, "-o", "loop", str(self._image), str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotMount(f"{self.kind} cannot be mounted from a loop device: {done.stderr.strip()}")

    def lose_power(self) -> None:
        """From now on nothing reaches the image, and the log of the file system is not flushed. Raises CannotMount."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", WITHOUT_LOG_FLUSH))
        except OSError as error:
            raise CannotMount(f"{self.kind} cannot be shut down by ioctl: {error.strerror}") from error
        finally:
            os.close(fd)

    def unmount(self) -> None:
        """Waits until processes that were killed have released their files."""
        unmount(self.path)


class BootId:
    """A boot id for this mount namespace, which can be changed."""

    def __init__(self, directory: Path) -> None:
        """Raises CannotMount."""
        self._file = directory / "boot_id"
        self._file.write_text(BOOT_ID_FILE.read_text())
        command = ["mount", "--bind", str(self._file), str(BOOT_ID_FILE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotMount(f"no boot id can be mounted: {done.stderr.strip()}")

    def set(self, boot_id: str) -> None:
        self._file.write_text(boot_id + "\n")

    def close(self) -> None:
        unmount(BOOT_ID_FILE)


def with_own_mounts(*command: str) -> list[str]:
    """The command line that runs a command in a mount namespace of its own. Raises CannotMount."""
    unshare = ["unshare", "--mount", "--propagation", "private"]
    if os.geteuid() != 0:
        raise CannotMount("only root may mount a file system")
    done = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMount(f"no mount namespace can be made: {done.stderr.strip()}")
    return [*unshare, *command]


def write_back(path: Path, start: int, nbytes: int) -> None:
    """Write these pages of a file to the device as the kernel does when it likes: the data without its metadata.

    Raises OSError.
    """
    fd = os.open(path, os.O_RDWR)
    try:
        if _libc.sync_file_range(fd, start, nbytes, WAIT_BEFORE | WRITE | WAIT_AFTER):
            code = ctypes.get_errno()
            raise OSError(code, errno.errorcode.get(code, ""), str(path))
    finally:
        os.close(fd)
