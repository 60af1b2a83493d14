"""Leaf: append a batch to the mapped ends of a stream's files. Stateless: the caller keeps the addresses.

Compiled, a SIGBUS at one of the stores is a result, FAULT. Interpreted it ends the process, so `shard.window` maps
nothing then. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from window_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

if TYPE_CHECKING:
    # From window_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyObject_GetBuffer: Any
    tr_file_clock_ns: Any
    tr_guard_install: Any
    tr_tagged: Any
    tr_window_append: Any
    uint64_t: Any

# Results of an append.
DONE = 0
"""It is committed."""
PAST = 1
"""It does not fit the window; nothing was stored."""
STALE = 2
"""The files' times are too old; nothing was stored."""
FAULT = 3
"""The kernel refused a store, and nothing is committed."""

# The words of a window, each of 8 bytes: address, start and end of the mapped part of the content; the same of the
# index; addresses of the words `end_offset` and `next_seq` in the header pages; from when until when (ns since the Unix
# epoch) appends need not change the files' times; appends that were stored since this was last set to 0.
WORDS = 11
FRESH_FROM_WORD = 8
STORED_WORD = 10
_WORDS = cython.declare(cython.Py_ssize_t, WORDS)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def install_guard() -> None:
    """Install the handler of SIGBUS, unless it is still installed. Raises OSError."""
    if cython.compiled:
        if tr_guard_install() != 0:
            raise OSError("SIGBUS cannot be handled")
    else:
        raise NotImplementedError("a fault ends an interpreted process")


def file_clock_ns() -> int:
    """The clock by which the kernel sets files' times."""
    if cython.compiled:
        return tr_file_clock_ns()
    else:
        return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)


def tagged(value: int) -> int:
    """As `shard.header.tagged`, for a value of at most 48 bits."""
    if cython.compiled:
        return tr_tagged(value)
    else:
        return header_tagged(value)


def append(
    words: bytearray,
    frames: bytes | bytearray | memoryview,
    entries: bytes | bytearray | memoryview,
    offset: int,
    index_offset: int,
    next_seq: int,
) -> int:
    """Copy stamped frames to `offset` of the content and their entries to `index_offset` of the index; commit them.

    `words`: WORDS of them; all their addresses must be mapped. Returns DONE, PAST, STALE or FAULT.
    """
    if cython.compiled:
        return _append_pointers(words, frames, entries, offset, index_offset, next_seq)
    else:
        return _append_slices(words, frames, entries, offset, index_offset, next_seq)


# Compiled bodies.


@cython.cfunc
def _append_pointers(
    words: bytearray,
    frames: object,
    entries: object,
    offset: cython.ulonglong,
    index_offset: cython.ulonglong,
    next_seq: cython.ulonglong,
) -> object:
    frames_view: Py_buffer
    entries_view: Py_buffer
    if len(words) < 8 * _WORDS:
        raise ValueError(f"{len(words)} bytes are too few words")
    PyObject_GetBuffer(frames, cython.address(frames_view), PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(entries, cython.address(entries_view), PyBUF_SIMPLE)
        outcome: cython.int = tr_window_append(
            cython.cast(cython.pointer(uint64_t), PyByteArray_AS_STRING(words)),
            cython.cast(cython.p_const_char, frames_view.buf),
            frames_view.len,
            cython.cast(cython.p_const_char, entries_view.buf),
            entries_view.len,
            offset,
            index_offset,
            next_seq,
        )
        PyBuffer_Release(cython.address(entries_view))
    finally:
        PyBuffer_Release(cython.address(frames_view))
    return outcome


# Interpreted bodies.

if not cython.compiled:
    import ctypes
    import struct
    import time

    from tailrace.shard.header import tagged as header_tagged

    _CLOCK_REALTIME_COARSE = 5  # Linux's number
    _WORDS_AT = struct.Struct(f"<{WORDS}Q").unpack_from
    _store_word = struct.Struct("<Q").pack_into

    def _append_slices(
        words: bytearray,
        frames: bytes | bytearray | memoryview,
        entries: bytes | bytearray | memoryview,
        offset: int,
        index_offset: int,
        next_seq: int,
    ) -> int:
        if len(words) < 8 * WORDS:
            raise ValueError(f"{len(words)} bytes are too few words")
        at, start, end, index_at, index_start, index_end, end_at, next_at, *fresh, stored = _WORDS_AT(words)
        if not start <= offset <= offset + len(frames) <= end:
            return PAST
        if not index_start <= index_offset <= index_offset + len(entries) <= index_end:
            return PAST
        if not fresh[0] <= file_clock_ns() < fresh[1]:
            return STALE
        ctypes.memmove(at + offset - start, bytes(frames), len(frames))
        ctypes.memmove(index_at + index_offset - index_start, bytes(entries), len(entries))
        ctypes.memmove(end_at, tagged(offset + len(frames)).to_bytes(8, "little"), 8)
        ctypes.memmove(next_at, tagged(next_seq).to_bytes(8, "little"), 8)
        _store_word(words, 8 * STORED_WORD, stored + 1)
        return DONE
