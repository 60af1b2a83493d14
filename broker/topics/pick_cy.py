"""Leaf: pick the frames whose topics match a filter, or find the filters of each frame. Stateless.

Compiled, the bodies are loops over pointers; interpreted, they are `struct` and slices. Both give the same bytes, which
a property test holds them to. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from pick_cy.pxd)

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.frame import FAULT_CRC, FAULT_LENGTH, FAULT_SEQ, MAX_FRAME_BYTES
from tailrace.shard.topics import topic_in

if TYPE_CHECKING:
    # From pick_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    crc32c_extend: Any
    free: Any
    malloc: Any
    memcpy: Any
    tr_filter_matches: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_topic: Any

_FRAME_MAX = cython.declare(cython.uint, MAX_FRAME_BYTES)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def matches(topic_filter: bytes, topic: bytes) -> bool:
    """Whether a valid filter matches a topic."""
    if cython.compiled:
        return _matches_pointers(topic_filter, topic)
    else:
        return _matches_slices(topic_filter, topic)


def pick(
    content: bytes | bytearray | memoryview,
    size: int,
    next_seq: int,
    limit_seq: int,
    stream: bytes,
    topic_filter: bytes,
    limit_bytes: int,
) -> tuple[bytes, int, int, int, str]:
    """Copies the stamped frames of content[:size] whose topics match a valid filter; `stream` is the topic of a message
    without one.

    Frames must be next_seq, next_seq+1, … with the right checksums. The walk ends before `limit_seq`, at a frame that
    is not whole, before the frame with which the copies would have more than `limit_bytes` (but never before the first
    of them), or at a fault. Gives (copies, how many of them, frames that were looked at, content bytes of those,
    fault): fault is "" or one of FAULT_LENGTH, FAULT_CRC, FAULT_SEQ of `shard.frame`. ValueError if the buffer is
    shorter.
    """
    if cython.compiled:
        return _pick_pointers(content, size, next_seq, limit_seq, stream, topic_filter, limit_bytes)
    else:
        return _pick_slices(content, size, next_seq, limit_seq, stream, topic_filter, limit_bytes)


def walk(
    content: bytes | bytearray | memoryview,
    size: int,
    next_seq: int,
    limit_seq: int,
    stream: bytes,
    known: dict[bytes, tuple[int, ...]],
    find: Callable[[bytes], tuple[int, ...]],
    is_checked: bool,
) -> tuple[list[tuple[tuple[int, ...], int, int]], int, int, str]:
    """Finds the filters of the stamped frames of content[:size]; `stream` is the topic of a message without one.

    The numbers of a topic's filters are those in `known`, or those that `find` returns. Frames are as for `pick`, and
    the walk ends as there; `is_checked`: without a look at their checksums. Gives (of each frame that a filter matches
    its numbers, its place and its length, frames that were looked at, content bytes of those, fault).
    ValueError if the buffer is shorter.
    """
    if cython.compiled:
        return _walk_pointers(content, size, next_seq, limit_seq, stream, known, find, is_checked)
    else:
        return _walk_slices(content, size, next_seq, limit_seq, stream, known, find, is_checked)


def match_runs(
    content: bytes | bytearray | memoryview, size: int, next_seq: int, stream: bytes, topic_filter: bytes, runs_max: int
) -> tuple[list[tuple[int, int]], int]:
    """Finds which of the stamped frames of content[:size] match a valid filter; `stream` is the topic of a message
    without one.

    The caller has checked the frames, and that they are next_seq, next_seq+1, … The walk ends at a frame that is not
    whole, and before a match that would begin a run beyond `runs_max`. Gives (first and last seq of each run of
    matches, frames that were looked at). ValueError if the buffer is shorter.
    """
    if cython.compiled:
        return _match_runs_pointers(content, size, next_seq, stream, topic_filter, runs_max)
    else:
        return _match_runs_slices(content, size, next_seq, stream, topic_filter, runs_max)


def _outside(size: int, nbytes: int) -> ValueError:
    return ValueError(f"{size} bytes of a buffer of {nbytes}")


# Interpreted bodies.

if not cython.compiled:
    import struct

    from google_crc32c import value as _crc32c_value

    _HEADER_AT = struct.Struct("<IIQQIHH").unpack_from

    def _matches_slices(topic_filter: bytes, topic: bytes) -> bool:
        if topic.startswith(b"$") and topic_filter[:1] in (b"+", b"#"):
            return False
        wanted, levels = topic_filter.split(b"/"), topic.split(b"/")
        if wanted[-1] == b"#":
            del wanted[-1]
            del levels[len(wanted) :]
        if len(wanted) != len(levels):
            return False
        return all(one in (b"+", other) for one, other in zip(wanted, levels, strict=True))

    def _pick_slices(
        content: bytes | bytearray | memoryview,
        size: int,
        next_seq: int,
        limit_seq: int,
        stream: bytes,
        topic_filter: bytes,
        limit_bytes: int,
    ) -> tuple[bytes, int, int, int, str]:
        if not 0 <= size <= len(content):
            raise _outside(size, len(content))
        source = bytes(content[:size])
        position, seq, copied, fault = 0, next_seq, 0, ""
        copies: list[bytes] = []
        while seq < limit_seq and size - position >= 32:
            length, crc, number, _, _, _, metadata_bytes = _HEADER_AT(source, position)
            if not 32 <= length <= MAX_FRAME_BYTES or metadata_bytes > length - 32:
                fault = FAULT_LENGTH
                break
            stop = position + length
            if stop > size:
                break
            if _crc32c_value(source[position + 8 : stop]) != crc:
                fault = FAULT_CRC
                break
            if number != seq:
                fault = FAULT_SEQ
                break
            topic = topic_in(source[position + 32 : position + 32 + metadata_bytes]) or stream
            if _matches_slices(topic_filter, topic):
                if copies and copied + length > limit_bytes:
                    break
                copies.append(source[position:stop])
                copied += length
            position = stop
            seq += 1
        return b"".join(copies), len(copies), seq - next_seq, position, fault

    def _walk_slices(
        content: bytes | bytearray | memoryview,
        size: int,
        next_seq: int,
        limit_seq: int,
        stream: bytes,
        known: dict[bytes, tuple[int, ...]],
        find: Callable[[bytes], tuple[int, ...]],
        is_checked: bool,
    ) -> tuple[list[tuple[tuple[int, ...], int, int]], int, int, str]:
        if not 0 <= size <= len(content):
            raise _outside(size, len(content))
        source = bytes(content[:size])
        position, seq, fault = 0, next_seq, ""
        hits: list[tuple[tuple[int, ...], int, int]] = []
        while seq < limit_seq and size - position >= 32:
            length, crc, number, _, _, _, metadata_bytes = _HEADER_AT(source, position)
            if not 32 <= length <= MAX_FRAME_BYTES or metadata_bytes > length - 32:
                fault = FAULT_LENGTH
                break
            stop = position + length
            if stop > size:
                break
            if not is_checked and _crc32c_value(source[position + 8 : stop]) != crc:
                fault = FAULT_CRC
                break
            if number != seq:
                fault = FAULT_SEQ
                break
            topic = topic_in(source[position + 32 : position + 32 + metadata_bytes]) or stream
            numbers = known.get(topic)
            if numbers is None:
                numbers = find(topic)
            if numbers:
                hits.append((numbers, position, length))
            position = stop
            seq += 1
        return hits, seq - next_seq, position, fault

    def _match_runs_slices(
        content: bytes | bytearray | memoryview,
        size: int,
        next_seq: int,
        stream: bytes,
        topic_filter: bytes,
        runs_max: int,
    ) -> tuple[list[tuple[int, int]], int]:
        if not 0 <= size <= len(content):
            raise _outside(size, len(content))
        source = bytes(content[:size])
        position, seq = 0, next_seq
        runs: list[tuple[int, int]] = []
        while size - position >= 32:
            length, _, _, _, _, _, metadata_bytes = _HEADER_AT(source, position)
            if not 32 <= length <= size - position or metadata_bytes > length - 32:
                break
            topic = topic_in(source[position + 32 : position + 32 + metadata_bytes]) or stream
            if _matches_slices(topic_filter, topic):
                if runs and runs[-1][1] == seq - 1:
                    runs[-1] = (runs[-1][0], seq)
                elif len(runs) == runs_max:
                    break
                else:
                    runs.append((seq, seq))
            position += length
            seq += 1
        return runs, seq - next_seq


# Compiled bodies.


@cython.cfunc
def _matches_pointers(topic_filter: bytes, topic: bytes) -> object:
    return (
        tr_filter_matches(
            cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(topic_filter)),
            len(topic_filter),
            cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(topic)),
            len(topic),
        )
        != 0
    )


@cython.cfunc
def _pick_pointers(
    content: object,
    size: cython.Py_ssize_t,
    next_seq: cython.ulonglong,
    limit_seq: cython.ulonglong,
    stream: bytes,
    topic_filter: bytes,
    limit_bytes: cython.Py_ssize_t,
) -> tuple:
    view: Py_buffer
    frame: cython.p_const_uchar
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    length: cython.uint
    metadata_bytes: cython.uint
    position: cython.Py_ssize_t = 0
    copied: cython.Py_ssize_t = 0
    messages: cython.Py_ssize_t = 0
    seq: cython.ulonglong = next_seq
    wanted: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(topic_filter))
    wanted_bytes: cython.size_t = len(topic_filter)
    name: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(stream))
    name_bytes: cython.size_t = len(stream)
    fault: str = ""
    PyObject_GetBuffer(content, cython.address(view), PyBUF_SIMPLE)
    out: cython.p_uchar = cython.NULL
    try:
        if size < 0 or size > view.len:
            raise _outside(size, view.len)
        out = cython.cast(cython.p_uchar, malloc(size + 1))
        if out == cython.NULL:
            raise MemoryError
        while seq < limit_seq and size - position >= 32:
            frame = cython.cast(cython.p_const_uchar, view.buf) + position
            length = tr_load32(frame)
            metadata_bytes = tr_load16(frame + 30)
            if length < 32 or length > _FRAME_MAX or metadata_bytes > length - 32:
                fault = FAULT_LENGTH
                break
            if length > size - position:
                break
            if crc32c_extend(0, frame + 8, length - 8) != tr_load32(frame + 4):
                fault = FAULT_CRC
                break
            if tr_load64(frame + 8) != seq:
                fault = FAULT_SEQ
                break
            topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
            if topic == cython.NULL:
                topic = name
                topic_bytes = name_bytes
            if tr_filter_matches(wanted, wanted_bytes, topic, topic_bytes):
                if messages and copied + length > limit_bytes:
                    break
                memcpy(out + copied, frame, length)
                copied += length
                messages += 1
            position += length
            seq += 1
        copies: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, out), copied)
    finally:
        free(out)
        PyBuffer_Release(cython.address(view))
    return copies, messages, seq - next_seq, position, fault


@cython.cfunc
def _walk_pointers(
    content: object,
    size: cython.Py_ssize_t,
    next_seq: cython.ulonglong,
    limit_seq: cython.ulonglong,
    stream: bytes,
    known: dict,
    find: Callable[[bytes], tuple[int, ...]],
    is_checked: cython.bint,
) -> tuple:
    view: Py_buffer
    frame: cython.p_const_uchar
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    length: cython.uint
    metadata_bytes: cython.uint
    position: cython.Py_ssize_t = 0
    seq: cython.ulonglong = next_seq
    fault: str = ""
    hits: list = []
    PyObject_GetBuffer(content, cython.address(view), PyBUF_SIMPLE)
    try:
        if size < 0 or size > view.len:
            raise _outside(size, view.len)
        while seq < limit_seq and size - position >= 32:
            frame = cython.cast(cython.p_const_uchar, view.buf) + position
            length = tr_load32(frame)
            metadata_bytes = tr_load16(frame + 30)
            if length < 32 or length > _FRAME_MAX or metadata_bytes > length - 32:
                fault = FAULT_LENGTH
                break
            if length > size - position:
                break
            if not is_checked and crc32c_extend(0, frame + 8, length - 8) != tr_load32(frame + 4):
                fault = FAULT_CRC
                break
            if tr_load64(frame + 8) != seq:
                fault = FAULT_SEQ
                break
            topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
            name: bytes = stream
            if topic != cython.NULL:
                name = PyBytes_FromStringAndSize(cython.cast(cython.p_char, topic), topic_bytes)
            numbers = known.get(name)
            if numbers is None:
                numbers = find(name)
            if numbers:
                hits.append((numbers, position, length))
            position += length
            seq += 1
    finally:
        PyBuffer_Release(cython.address(view))
    return hits, seq - next_seq, position, fault


@cython.cfunc
def _match_runs_pointers(
    content: object,
    size: cython.Py_ssize_t,
    next_seq: cython.ulonglong,
    stream: bytes,
    topic_filter: bytes,
    runs_max: cython.Py_ssize_t,
) -> tuple:
    view: Py_buffer
    frame: cython.p_const_uchar
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    length: cython.uint
    metadata_bytes: cython.uint
    position: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    seq: cython.ulonglong = next_seq
    first: cython.ulonglong = 0
    in_run: cython.bint = False
    wanted: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(topic_filter))
    wanted_bytes: cython.size_t = len(topic_filter)
    name: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(stream))
    name_bytes: cython.size_t = len(stream)
    runs: list = []
    PyObject_GetBuffer(content, cython.address(view), PyBUF_SIMPLE)
    try:
        if size < 0 or size > view.len:
            raise _outside(size, view.len)
        while size - position >= 32:
            frame = cython.cast(cython.p_const_uchar, view.buf) + position
            length = tr_load32(frame)
            metadata_bytes = tr_load16(frame + 30)
            if length < 32 or length > size - position or metadata_bytes > length - 32:
                break
            topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
            if topic == cython.NULL:
                topic = name
                topic_bytes = name_bytes
            if tr_filter_matches(wanted, wanted_bytes, topic, topic_bytes):
                if not in_run:
                    if count == runs_max:
                        break
                    in_run = True
                    first = seq
                    count += 1
            elif in_run:
                in_run = False
                runs.append((first, seq - 1))
            position += length
            seq += 1
        if in_run:
            runs.append((first, seq - 1))
    finally:
        PyBuffer_Release(cython.address(view))
    return runs, seq - next_seq
