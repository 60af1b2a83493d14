"""Leaf: append a batch to the mapped ends of a stream's files, stamped by itself or here. Stateless: the caller keeps
the addresses.

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

from tailrace.shard.frame import INDEX_ENTRY_BYTES, MAX_FRAME_BYTES

if TYPE_CHECKING:
    # From window_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBUF_WRITABLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyObject_GetBuffer: Any
    tr_file_clock_ns: Any
    tr_guard_install: Any
    tr_stamp_run: Any
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
STAMPED_MAX, STAMPED_BYTES_MAX = 40, 1_280
"""Frames that `append_unstamped` takes."""
_STAMPED_BYTES_MAX = cython.declare(cython.Py_ssize_t, STAMPED_BYTES_MAX)
_STAMPED_MAX = cython.declare(cython.Py_ssize_t, STAMPED_MAX)
_ENTRY = cython.declare(cython.Py_ssize_t, INDEX_ENTRY_BYTES)
_FRAME_MAX = cython.declare(cython.uint, MAX_FRAME_BYTES)


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


def append_unstamped(
    words: bytearray,
    frames: bytearray | memoryview,
    count: int,
    seq: int,
    timestamp_us: int,
    epoch: int,
    offset: int,
    index_offset: int,
) -> int:
    """As `append`, of `count` whole unstamped frames, which are stamped as by `frame_cy.stamp`.

    PAST also stands for frames that are not that, and for more than are taken. After any result but DONE they may be
    stamped and appended again.
    """
    if cython.compiled:
        return _stamp_pointers(words, frames, count, seq, timestamp_us, epoch, offset, index_offset)
    else:
        return _stamp_slices(words, frames, count, seq, timestamp_us, epoch, offset, index_offset)


# Compiled bodies.


@cython.cfunc
def _stamp_pointers(
    words: bytearray,
    frames: object,
    count: cython.Py_ssize_t,
    seq: cython.ulonglong,
    timestamp_us: cython.ulonglong,
    epoch: cython.uint,
    offset: cython.ulonglong,
    index_offset: cython.ulonglong,
) -> object:
    entries: cython.uchar[960]  # STAMPED_MAX of them
    view: Py_buffer
    position: cython.size_t = 0
    outcome: cython.int = PAST
    if len(words) < 8 * _WORDS:
        raise ValueError(f"{len(words)} bytes are too few words")
    window: cython.pointer(uint64_t) = cython.cast(cython.pointer(uint64_t), PyByteArray_AS_STRING(words))
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_WRITABLE)
    try:
        if 0 < count <= _STAMPED_MAX and view.len <= _STAMPED_BYTES_MAX and offset + view.len <= window[2]:
            first: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
            stamped: cython.Py_ssize_t = tr_stamp_run(
                first,
                view.len,
                _FRAME_MAX,
                cython.address(position),
                entries,
                count,
                seq,
                timestamp_us,
                epoch,
                offset,
            )
            if stamped == count and position == cython.cast(cython.size_t, view.len):
                outcome = tr_window_append(
                    window,
                    cython.cast(cython.p_const_char, first),
                    view.len,
                    cython.cast(cython.p_const_char, cython.address(entries[0])),
                    count * _ENTRY,
                    offset,
                    index_offset,
                    seq + count,
                )
    finally:
        PyBuffer_Release(cython.address(view))
    return outcome


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
    from tailrace.shard.leaves import load

    _CLOCK_REALTIME_COARSE = 5  # Linux's number
    _WORDS_AT = struct.Struct(f"<{WORDS}Q").unpack_from
    _store_word = struct.Struct("<Q").pack_into
    _stamp = load("tailrace.shard.frame_cy").stamp

    def _stamp_slices(
        words: bytearray,
        frames: bytearray | memoryview,
        count: int,
        seq: int,
        timestamp_us: int,
        epoch: int,
        offset: int,
        index_offset: int,
    ) -> int:
        if len(words) < 8 * WORDS:
            raise ValueError(f"{len(words)} bytes are too few words")
        if not 0 < count <= STAMPED_MAX or len(frames) > STAMPED_BYTES_MAX:
            return PAST
        try:
            entries = _stamp(frames, seq, timestamp_us, epoch, offset)
        except ValueError:
            return PAST
        if len(entries) != count * INDEX_ENTRY_BYTES:
            return PAST
        return _append_slices(words, frames, entries, offset, index_offset, seq + count)

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
