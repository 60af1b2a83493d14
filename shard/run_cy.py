"""Leaf: the runs of producers among frames: mark one, find those there are, read whose one is. Stateless; bytes in,
bytes out.

Compiled, the bodies are loops over pointers; interpreted, they are `struct` and slices. Both give the same, which a
property test holds them to. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from run_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.frame import FLAG_CONTINUES, FLAG_PRODUCER, HEADER_BYTES, MAX_FRAME_BYTES, MAX_METADATA_BYTES

if TYPE_CHECKING:
    # From run_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    memcpy: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_store16: Any
    tr_store32: Any
    tr_store64: Any

_FRAME_MAX = cython.declare(cython.uint, MAX_FRAME_BYTES)
_HEADER = cython.declare(cython.uint, HEADER_BYTES)
_PRODUCER = cython.declare(cython.uint, FLAG_PRODUCER)
_CONTINUES = cython.declare(cython.uint, FLAG_CONTINUES)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def mark_run(frames: bytes | bytearray | memoryview, metadata: bytes) -> bytearray:
    """A copy of whole unstamped frames as one run: the first with this metadata instead of its own, and all flagged.

    ValueError without any frame, or if the lengths do not add up to len(frames), or are over the limits.
    """
    if len(metadata) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata of {len(metadata)} bytes: at most {MAX_METADATA_BYTES}")
    if cython.compiled:
        return _mark_pointers(frames, metadata)
    else:
        return _mark_slices(frames, metadata)


def find_flagged(frames: bytes | bytearray | memoryview, start: int, end: int) -> list[tuple[int, int, int, bytes]]:
    """The runs among the whole stamped frames in frames[start:end]: (seq, timestamp_us, messages, metadata) of each.

    If the walk begins in the middle of a run, the rest of it comes first, without metadata. Only lengths are read:
    check the frames first; the walk ends at a length that does not fit. ValueError as for `shard.frame_cy.check`.
    """
    if cython.compiled:
        return _find_pointers(frames, start, end)
    else:
        return _find_slices(frames, start, end)


def read_run(buffer: bytes | bytearray | memoryview, start: int, end: int) -> tuple[bytes, int] | None:
    """Reads the producer's id and the number in the metadata buffer[start:end], if they come first and are short.

    That is how `shard.numbering` writes them. None for any other metadata, which may have them elsewhere.
    ValueError as for `shard.frame_cy.check`.
    """
    if cython.compiled:
        return _read_pointers(buffer, start, end)
    else:
        return _read_slices(buffer, start, end)


def _oversize(length: int) -> ValueError:
    return ValueError(f"a frame of {length} bytes: at most {MAX_FRAME_BYTES}")


def _misfit(position: int, length: int, size: int) -> ValueError:
    return ValueError(f"the frame at byte {position} of {size} has a length of {length} bytes")


# Interpreted bodies.

if not cython.compiled:
    import struct

    _HEADER_AT = struct.Struct("<IIQQIHH").unpack_from
    _PACK_HEADER = struct.Struct("<IIQQIHH").pack

    def _mark_slices(frames: bytes | bytearray | memoryview, metadata: bytes) -> bytearray:
        source = bytes(frames)
        position, size = 0, len(source)
        pieces: list[bytes] = []
        while position < size or not pieces:
            length, _, _, _, _, _, metadata_bytes = _HEADER_AT(source, position) if size - position >= 32 else (0,) * 7
            end = position + length
            if not 32 <= length <= MAX_FRAME_BYTES or end > size or metadata_bytes > length - 32:
                raise _misfit(position, length, size)
            if pieces:
                pieces += (
                    _PACK_HEADER(length, 0, 0, 0, 0, FLAG_CONTINUES, metadata_bytes),
                    source[position + 32 : end],
                )
            else:
                new_length = length - metadata_bytes + len(metadata)
                if new_length > MAX_FRAME_BYTES:
                    raise _oversize(new_length)
                header = _PACK_HEADER(new_length, 0, 0, 0, 0, FLAG_PRODUCER, len(metadata))
                pieces += (header, metadata, source[32 + metadata_bytes : end])
            position = end
        return bytearray().join(pieces)

    def _find_slices(frames: bytes | bytearray | memoryview, start: int, end: int) -> list[tuple[int, int, int, bytes]]:
        if not 0 <= start <= end <= len(frames):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(frames)}")
        found: list[tuple[int, int, int, bytes]] = []
        position, seq, timestamp_us, count, metadata = start, 0, 0, 0, b""
        is_first = True
        while end - position >= 32:
            length, _, its_seq, at_us, _, flags, metadata_bytes = _HEADER_AT(frames, position)
            if not 32 <= length <= min(MAX_FRAME_BYTES, end - position) or metadata_bytes > length - 32:
                break
            if flags & FLAG_CONTINUES and (count or is_first):
                if not count:
                    seq, timestamp_us = its_seq, at_us
                count += 1
            else:
                if count:
                    found.append((seq, timestamp_us, count, metadata))
                    count = 0
                if flags & FLAG_PRODUCER:
                    seq, timestamp_us, count = its_seq, at_us, 1
                    metadata = bytes(frames[position + 32 : position + 32 + metadata_bytes])
            is_first = False
            position += length
        if count:
            found.append((seq, timestamp_us, count, metadata))
        return found

    def _read_slices(buffer: bytes | bytearray | memoryview, start: int, end: int) -> tuple[bytes, int] | None:
        if not 0 <= start <= end <= len(buffer):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(buffer)}")
        data = bytes(memoryview(buffer)[start:end])
        if len(data) < 8 or not 0x82 <= data[0] <= 0x8F or data[1:4] != b"\xa1p\xc4":
            return None
        after = 5 + data[4]
        if not 0 < data[4] <= 32 or data[after : after + 2] != b"\xa1n" or len(data) < after + 3:
            return None
        kind, place = data[after + 2], after + 3
        if kind < 0x80:
            return data[5:after], kind
        if not 0xCC <= kind <= 0xCF or len(data) < place + (1 << (kind - 0xCC)):
            return None
        number = int.from_bytes(data[place : place + (1 << (kind - 0xCC))], "big")
        return (data[5:after], number) if number < 1 << 63 else None


# Compiled bodies.


@cython.cfunc
def _mark_pointers(frames: object, metadata: bytes) -> bytearray:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    source: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    frame: cython.p_uchar
    size: cython.Py_ssize_t = view.len
    added: cython.Py_ssize_t
    position: cython.Py_ssize_t = 0
    length: cython.uint = 0
    metadata_bytes: cython.uint = 0
    whole: cython.uint = len(metadata)
    try:
        if size >= 32:
            length, metadata_bytes = tr_load32(source), tr_load16(source + 30)
        if length < _HEADER or length > _FRAME_MAX or length > size or metadata_bytes > length - _HEADER:
            raise _misfit(0, length, size)
        added = cython.cast(cython.Py_ssize_t, whole) - metadata_bytes
        if length + added > _FRAME_MAX:
            raise _oversize(length + added)
        marked: bytearray = bytearray(size + added)
        frame = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(marked))
        tr_store32(frame, cython.cast(cython.uint, length + added))
        tr_store16(frame + 28, _PRODUCER)
        tr_store16(frame + 30, whole)
        memcpy(frame + 32, PyBytes_AS_STRING(metadata), whole)
        memcpy(frame + 32 + whole, source + 32 + metadata_bytes, size - 32 - metadata_bytes)
        position = length
        frame += length + added
        while position < size:
            length = 0
            if size - position >= 32:
                length = tr_load32(frame)
            if length < _HEADER or length > _FRAME_MAX or length > size - position:
                raise _misfit(position, length, size)
            if tr_load16(frame + 30) > length - _HEADER:
                raise _misfit(position, length, size)
            tr_store32(frame + 4, 0)
            tr_store64(frame + 8, 0)
            tr_store64(frame + 16, 0)
            tr_store32(frame + 24, 0)
            tr_store16(frame + 28, _CONTINUES)
            frame += length
            position += length
    finally:
        PyBuffer_Release(cython.address(view))
    return marked


@cython.cfunc
def _find_pointers(frames: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> list:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    frame: cython.p_uchar = cython.cast(cython.p_uchar, view.buf) + start
    left: cython.Py_ssize_t = end - start
    length: cython.uint
    flags: cython.uint
    metadata_bytes: cython.uint
    count: cython.Py_ssize_t = 0
    seq: cython.ulonglong = 0
    timestamp_us: cython.ulonglong = 0
    metadata: bytes = b""
    is_first: cython.bint = True
    found: list = []
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"bytes {start} to {end} of a buffer of {view.len}")
        while left >= 32:
            length, flags, metadata_bytes = tr_load32(frame), tr_load16(frame + 28), tr_load16(frame + 30)
            if length < _HEADER or length > _FRAME_MAX or length > left or metadata_bytes > length - _HEADER:
                break
            if flags & _CONTINUES and (count or is_first):
                if not count:
                    seq, timestamp_us = tr_load64(frame + 8), tr_load64(frame + 16)
                count += 1
            elif count or flags:
                if count:
                    found.append((seq, timestamp_us, count, metadata))
                    count = 0
                if flags & _PRODUCER:
                    seq, timestamp_us, count = tr_load64(frame + 8), tr_load64(frame + 16), 1
                    metadata = PyBytes_FromStringAndSize(cython.cast(cython.p_char, frame) + 32, metadata_bytes)
            is_first = False
            frame += length
            left -= length
        if count:
            found.append((seq, timestamp_us, count, metadata))
    finally:
        PyBuffer_Release(cython.address(view))
    return found


@cython.cfunc
def _read_pointers(buffer: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> object:
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    data: cython.p_uchar = cython.cast(cython.p_uchar, view.buf) + start
    size: cython.Py_ssize_t = end - start
    after: cython.Py_ssize_t
    width: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t
    number: cython.ulonglong = 0
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"bytes {start} to {end} of a buffer of {view.len}")
        if size < 8 or data[0] < 0x82 or data[0] > 0x8F or data[1] != 0xA1 or data[2] != 0x70 or data[3] != 0xC4:
            return None
        after = 5 + data[4]
        if data[4] == 0 or data[4] > 32 or size < after + 3 or data[after] != 0xA1 or data[after + 1] != 0x6E:
            return None
        if data[after + 2] < 0x80:
            number = data[after + 2]
        else:
            if data[after + 2] < 0xCC or data[after + 2] > 0xCF:
                return None
            width = 1 << (data[after + 2] - 0xCC)
            if size < after + 3 + width:
                return None
            for place in range(after + 3, after + 3 + width):
                number = (number << 8) | data[place]
            if number >> 63:
                return None
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, data) + 5, after - 5), number
    finally:
        PyBuffer_Release(cython.address(view))
