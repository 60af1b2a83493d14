"""Leaf: send one chunk to many sockets, each copy with packet identifiers of its own. Stateless.

Compiled, it makes the system calls without a Python statement between them; interpreted, it goes through `os`. Both
give the same. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from copies_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

if TYPE_CHECKING:
    # From copies_cy.pxd; they exist in the compiled module only.
    EAGAIN: int
    EINTR: int
    MSG_DONTWAIT: int
    MSG_NOSIGNAL: int
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_FromStringAndSize: Any
    PyBytes_AS_STRING: Any
    PyObject_GetBuffer: Any
    errno: int
    send: Any
    tr_load64: Any

NOTHING, FAILED = -1, -2
"""In the place of a count: nothing fitted; the connection is broken."""


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def send_copies(fds: list[int], data: bytes, places: Any, count: int, end: int, first_ids: list[int]) -> list[int]:
    """Send data[:end] to each of these sockets, with identifiers of its own at the first `count` places, of an array of
    u64: from first_ids[i] on, after 65,535 comes 1. Returns how many bytes each has taken, or NOTHING or FAILED.

    ValueError, with nothing sent, when one of the places or `end` is outside, or there is not an identifier for each.
    """
    if len(first_ids) != len(fds) or not 0 <= end <= len(data):
        raise ValueError(f"{len(first_ids)} identifiers for {len(fds)} sockets, {end} bytes of {len(data)}")
    if cython.compiled:
        return _send_pointers(fds, data, places, count, end, first_ids)
    else:
        return _send_slices(fds, data, places, count, end, first_ids)


def _outside(place: int, end: int) -> ValueError:
    return ValueError(f"an identifier at {place} of {end} bytes")


# Interpreted bodies.

if not cython.compiled:
    import os

    def _send_slices(fds: list[int], data: bytes, places: Any, count: int, end: int, first_ids: list[int]) -> list[int]:
        found: list[int] = []
        copy = bytearray(data[:end])
        for place in places[:count]:
            if place > end - 2:
                raise _outside(place, end)
        for fd, first_id in zip(fds, first_ids, strict=True):
            for index, place in enumerate(places[:count]):
                copy[place : place + 2] = ((first_id + index - 1) % 0xFFFF + 1).to_bytes(2, "big")
            try:
                sent = os.write(fd, copy)
            except BlockingIOError:
                sent = NOTHING
            except OSError:
                sent = FAILED
            found.append(sent)
        return found


# Compiled bodies. The interpreter's lock is kept: no call waits, and to give it away would be to wait for it.


@cython.cfunc
def _send_pointers(
    fds: list, data: bytes, places: object, count: cython.Py_ssize_t, end: cython.Py_ssize_t, first_ids: list
) -> list:
    view: Py_buffer
    place: cython.p_const_uchar
    client: cython.Py_ssize_t
    index: cython.Py_ssize_t
    sent: cython.Py_ssize_t
    at: cython.ulonglong
    number: cython.uint
    fd: cython.int
    found: list = []
    copy: bytearray = PyByteArray_FromStringAndSize(PyBytes_AS_STRING(data), end)
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(copy))
    PyObject_GetBuffer(places, cython.address(view), PyBUF_SIMPLE)
    try:
        place = cython.cast(cython.p_const_uchar, view.buf)
        count = min(count, view.len // 8)
        for index in range(count):
            at = tr_load64(place + 8 * index)
            if end < 2 or at > cython.cast(cython.ulonglong, end) - 2:  # a sum could begin again at 0
                raise _outside(at, end)
        for client in range(len(fds)):
            number = first_ids[client]
            for index in range(count):
                at = tr_load64(place + 8 * index)
                out[at], out[at + 1] = number >> 8, number & 255
                number = number % 0xFFFF + 1
            fd = fds[client]
            sent = send(fd, out, end, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                sent = NOTHING if errno in (EAGAIN, EINTR) else FAILED
            found.append(sent)
    finally:
        PyBuffer_Release(cython.address(view))
    return found
