"""Leaf: find the newest frame of each topic, or read the log of last values. Stateless.

Compiled, the bodies are loops over pointers; interpreted, they are `struct` and slices. Both give the same, which a
property test holds them to. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from last_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.topics import is_retained, topic_in

if TYPE_CHECKING:
    # From last_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    tr_is_retained: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_topic: Any

MARK_BYTES = 16
_MARK_SIZE = cython.declare(cython.uint, MARK_BYTES)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def newest(
    frames: bytes | bytearray | memoryview, start: int, stream: bytes, retained_only: bool, most: int
) -> tuple[dict[bytes, tuple[int, int, bool]], int, int]:
    """The newest frame of each topic in frames[start:], which are whole and checked; `stream` is the topic of a message
    without one.

    `retained_only`: of the messages that are to be retained. The walk ends before the frame that would bring a topic
    beyond `most` of them. Gives (of each topic the place of the frame, its length, and whether it has no payload; where
    the walk has ended; the frames that were looked at). ValueError if `start` is not in the buffer.
    """
    if cython.compiled:
        return _newest_pointers(frames, start, stream, retained_only, most)
    else:
        return _newest_slices(frames, start, stream, retained_only, most)


def records(
    frames: bytes | bytearray | memoryview, start: int, stream: bytes, most: int
) -> tuple[list[tuple[bytes, int, int, bool, bool, bool]], int]:
    """At most `most` records of frames[start:], whole frames of a log of last values.

    The payload of such a frame is a frame of the stream, or a mark: MARK_BYTES with a seq, an epoch and a kind. Gives
    (of each the topic, the seq and the epoch in the stream, whether it is to be retained, whether it has no payload,
    and whether the record has metadata, or b"", the seq, the epoch and whether the kind is not 0; where the walk has
    ended). ValueError for a payload that is neither, or if `start` is not in the buffer.
    """
    if cython.compiled:
        return _records_pointers(frames, start, stream, most)
    else:
        return _records_slices(frames, start, stream, most)


def _outside(start: int, size: int) -> ValueError:
    return ValueError(f"byte {start} of a buffer of {size}")


def _wrong(at: int) -> ValueError:
    return ValueError(f"the frame at byte {at} has no record of a last value")


# Interpreted bodies.

if not cython.compiled:
    import struct

    _HEADER_AT = struct.Struct("<IIQQIHH").unpack_from
    _MARK_AT = struct.Struct("<QII").unpack_from

    def _newest_slices(
        frames: bytes | bytearray | memoryview, start: int, stream: bytes, retained_only: bool, most: int
    ) -> tuple[dict[bytes, tuple[int, int, bool]], int, int]:
        if not 0 <= start <= len(frames):
            raise _outside(start, len(frames))
        found: dict[bytes, tuple[int, int, bool]] = {}
        position, count = start, 0
        while len(frames) - position >= 32:
            length, _, _, _, _, _, metadata_bytes = _HEADER_AT(frames, position)
            if not 32 <= length <= len(frames) - position or metadata_bytes > length - 32:
                break
            metadata = bytes(frames[position + 32 : position + 32 + metadata_bytes])
            if not retained_only or is_retained(metadata):
                topic = topic_in(metadata) or stream
                if topic not in found and len(found) >= most:
                    break
                found[topic] = (position, length, length == 32 + metadata_bytes)
            position += length
            count += 1
        return found, position, count

    def _records_slices(
        frames: bytes | bytearray | memoryview, start: int, stream: bytes, most: int
    ) -> tuple[list[tuple[bytes, int, int, bool, bool, bool]], int]:
        if not 0 <= start <= len(frames):
            raise _outside(start, len(frames))
        found: list[tuple[bytes, int, int, bool, bool, bool]] = []
        position = start
        while len(found) < most and len(frames) - position >= 32:
            length, _, _, _, _, _, own_bytes = _HEADER_AT(frames, position)
            if not 32 <= length <= len(frames) - position or own_bytes > length - 32:
                break
            at, size = position + 32 + own_bytes, length - 32 - own_bytes
            if size == MARK_BYTES:
                seq, epoch, kind = _MARK_AT(frames, at)
                found.append((b"", seq, epoch, kind != 0, False, False))
                position += length
                continue
            if size < 32:
                raise _wrong(position)
            inner_bytes, _, seq, _, epoch, _, metadata_bytes = _HEADER_AT(frames, at)
            if inner_bytes != size or metadata_bytes > size - 32:
                raise _wrong(position)
            metadata = bytes(frames[at + 32 : at + 32 + metadata_bytes])
            topic = topic_in(metadata) or stream
            found.append((topic, seq, epoch, is_retained(metadata), size == 32 + metadata_bytes, own_bytes != 0))
            position += length
        return found, position


# Compiled bodies.


@cython.cfunc
def _newest_pointers(
    frames: object, start: cython.Py_ssize_t, stream: bytes, retained_only: cython.bint, most: cython.Py_ssize_t
) -> tuple:
    view: Py_buffer
    frame: cython.p_const_uchar
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    length: cython.uint
    metadata_bytes: cython.uint
    position: cython.Py_ssize_t = start
    count: cython.Py_ssize_t = 0
    found: dict = {}
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    try:
        if start < 0 or start > view.len:
            raise _outside(start, view.len)
        while view.len - position >= 32:
            frame = cython.cast(cython.p_const_uchar, view.buf) + position
            length = tr_load32(frame)
            metadata_bytes = tr_load16(frame + 30)
            if length < 32 or length > view.len - position or metadata_bytes > length - 32:
                break
            if metadata_bytes or not retained_only:
                topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
                if not retained_only or tr_is_retained(frame + 32, metadata_bytes, topic, topic_bytes):
                    name: bytes = stream
                    if topic != cython.NULL:
                        name = PyBytes_FromStringAndSize(cython.cast(cython.p_char, topic), topic_bytes)
                    if len(found) >= most and name not in found:
                        break
                    found[name] = (position, length, length == 32 + metadata_bytes)
            position += length
            count += 1
    finally:
        PyBuffer_Release(cython.address(view))
    return found, position, count


@cython.cfunc
def _records_pointers(frames: object, start: cython.Py_ssize_t, stream: bytes, most: cython.Py_ssize_t) -> tuple:
    view: Py_buffer
    frame: cython.p_const_uchar
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    length: cython.uint
    size: cython.uint
    own_bytes: cython.uint
    metadata_bytes: cython.uint
    position: cython.Py_ssize_t = start
    found: list = []
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    try:
        if start < 0 or start > view.len:
            raise _outside(start, view.len)
        while len(found) < most and view.len - position >= 32:
            frame = cython.cast(cython.p_const_uchar, view.buf) + position
            length = tr_load32(frame)
            own_bytes = tr_load16(frame + 30)
            if length < 32 or length > view.len - position or own_bytes > length - 32:
                break
            size = length - 32 - own_bytes
            frame += 32 + own_bytes
            if size == _MARK_SIZE:
                found.append((b"", tr_load64(frame), tr_load32(frame + 8), tr_load32(frame + 12) != 0, False, False))
                position += length
                continue
            if size < 32:
                raise _wrong(position)
            metadata_bytes = tr_load16(frame + 30)
            if tr_load32(frame) != size or metadata_bytes > size - 32:
                raise _wrong(position)
            topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
            name: bytes = stream
            if topic != cython.NULL:
                name = PyBytes_FromStringAndSize(cython.cast(cython.p_char, topic), topic_bytes)
            retained: cython.bint = tr_is_retained(frame + 32, metadata_bytes, topic, topic_bytes)
            is_empty: cython.bint = size == 32 + metadata_bytes
            found.append((name, tr_load64(frame + 8), tr_load32(frame + 24), retained, is_empty, own_bytes != 0))
            position += length
    finally:
        PyBuffer_Release(cython.address(view))
    return found, position
