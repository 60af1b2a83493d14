"""Bytes of a file, mapped and shared, without a descriptor: `mmap.mmap` keeps one of its own for each mapping.

A store into a mapping can end the process with SIGBUS, if the disk is full or broken, or the file is shorter than the
mapping: see `shard.window`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Final

PAGE_BYTES: Final = mmap.ALLOCATIONGRANULARITY
"""A mapping begins at a multiple of this."""
_FAILED: Final = ctypes.c_void_p(-1).value
_VIEW_READ: Final = 0x100  # PyBUF_READ
_VIEW_WRITE: Final = 0x200

# CDLL: taking pages away can wait for other threads' faults, and they may need the interpreter.
_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_mmap.restype = ctypes.c_void_p
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_view_of_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_of_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_view_of_memory.restype = ctypes.py_object


class Mapping:
    """`size` bytes of a file from `offset` on. `view`: all of them; release every other view of them before `close`."""

    __slots__ = ("address", "size", "view")

    def __init__(self, fd: int, offset: int, size: int, *, writable: bool) -> None:
        """Raises OSError."""
        self.address: int = 0
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _mmap(None, size, protection, mmap.MAP_SHARED, fd, offset)
        if address == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self.size = size
        self.view: memoryview = _view_of_memory(address, size, _VIEW_WRITE if writable else _VIEW_READ)
        self.address = address

    def close(self) -> None:
        """A second call does nothing."""
        address, self.address = self.address, 0
        if address:
            self.view.release()
            _munmap(address, self.size)

    def __del__(self) -> None:
        self.close()
