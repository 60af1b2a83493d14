"""Leaf: make, measure, stamp, check, admit and take apart whole frames; CRC-32C. Stateless; bytes in, bytes out.

Compiled, the bodies are loops over pointers and the processor's CRC instruction (frame_cy.pxd). Interpreted, they are
`struct`, slices and list comprehensions over the google-crc32c wheel. Both give the same bytes, which a property test
holds them to. Load this module through `shard.leaves`.

A frame's length is believed only after it was compared with the bytes that are there and with MAX_FRAME_BYTES.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from frame_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.frame import (
    FAULT_CRC,
    FAULT_EPOCH,
    FAULT_FLAGS,
    FAULT_LENGTH,
    FAULT_METADATA,
    FAULT_SEQ,
    FAULT_SHORT,
    FAULT_SIZE,
    FAULT_TIME,
    FLAG_CONTINUES,
    FLAG_PRODUCER,
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    MAX_FRAME_BYTES,
    MAX_METADATA_BYTES,
    RUN_METADATA_BYTES,
)

if TYPE_CHECKING:
    # From frame_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBUF_WRITABLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_FromStringAndSize: Any
    PyByteArray_Resize: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    crc32c_by_tables: Any
    crc32c_extend: Any
    crc32c_name: Any
    memcpy: Any
    tr_count_frames: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_sound_ahead: Any
    tr_stamp_run: Any
    tr_store16: Any
    tr_store32: Any
    tr_store64: Any

_FRAME_MAX = cython.declare(cython.uint, MAX_FRAME_BYTES)
_HEADER = cython.declare(cython.uint, HEADER_BYTES)
_ENTRY = cython.declare(cython.uint, INDEX_ENTRY_BYTES)
_PRODUCER = cython.declare(cython.uint, FLAG_PRODUCER)
_CONTINUES = cython.declare(cython.uint, FLAG_CONTINUES)
_RUN_METADATA = cython.declare(cython.uint, RUN_METADATA_BYTES)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def crc_instruction() -> str:
    """Returns the checksum's implementation: "sse4.2", "armv8", "tables", or "google-crc32c" when interpreted."""
    if cython.compiled:
        return bytes(crc32c_name()).decode()
    else:
        return "google-crc32c"


def crc32c(data: bytes | bytearray | memoryview) -> int:
    """CRC-32C (Castagnoli) of the bytes of any contiguous buffer."""
    if cython.compiled:
        return _crc_pointers(data, False)
    else:
        return int(_crc32c_value(bytes(data)))


def crc32c_tables(data: bytes | bytearray | memoryview) -> int:
    """The same by the tables of machines without the instruction, so that a test can hold the two equal."""
    if cython.compiled:
        return _crc_pointers(data, True)
    else:
        return crc32c(data)


def stamp(frames: bytearray | memoryview, seq: int, timestamp_us: int, epoch: int, offset: int) -> bytearray:
    """Stamp whole unstamped frames in place: seq, seq+1, …, one timestamp and epoch, and each its checksum.

    Gives their index entries, 24 bytes each, with content offsets counted from `offset`. The caller knows from their
    number how many frames there were. ValueError when a length is impossible, or the lengths do not add up to
    len(frames); the frames may then be half stamped.
    """
    if cython.compiled:
        return _stamp_pointers(frames, seq, timestamp_us, epoch, offset)
    else:
        return _stamp_slices(frames, seq, timestamp_us, epoch, offset)


def check(frames: bytes | bytearray | memoryview, start: int, end: int, seq: int) -> tuple[int, int, str]:
    """Walk whole stamped frames in frames[start:end] that should be seq, seq+1, …

    Gives (count, bytes, fault): how many whole and right frames there are, how many bytes they take, and what stopped
    the walk: "" (the end), or one of the FAULT_ constants of `shard.frame`. ValueError if start:end is outside the
    buffer.
    """
    if cython.compiled:
        return _check_pointers(frames, start, end, seq)
    else:
        return _check_slices(frames, start, end, seq)


def index_entries(frames: bytes | bytearray | memoryview, start: int, end: int, offset: int) -> bytearray:
    """The index entries of the whole stamped frames in frames[start:end], the first of them at content `offset`.

    Only lengths are looked at: `check` the frames first. ValueError as for `stamp`.
    """
    if cython.compiled:
        return _entries_pointers(frames, start, end, offset)
    else:
        return _entries_slices(frames, start, end, offset)


def admit(
    frames: bytes | bytearray | memoryview, seq: int, timestamp_us: int, epoch: int, offset: int
) -> tuple[bytearray, int, str, int]:
    """Walk whole stamped frames that are to follow a message of this timestamp and epoch, being seq, seq+1, …

    Gives (entries, bytes, fault, flags): the index entries of the frames that may be taken, the first at content
    `offset`, how many bytes those frames have, what stopped the walk: as for `check`, or FAULT_TIME, or FAULT_EPOCH,
    and the flags that any of those frames has.
    """
    if cython.compiled:
        return _admit_pointers(frames, seq, timestamp_us, epoch, offset)
    else:
        return _admit_slices(frames, seq, timestamp_us, epoch, offset)


def measure(frames: bytes | bytearray | memoryview, start: int, end: int, max_message_bytes: int) -> tuple[int, str]:
    """Walk the unstamped frames that somebody sent as frames[start:end], before they are stamped.

    Returns (count, fault): the number of whole, acceptable frames, and the reason why the walk stopped: "" (the end),
    FAULT_SHORT, FAULT_LENGTH, FAULT_SIZE (metadata and payload over `max_message_bytes`), FAULT_FLAGS or
    FAULT_METADATA. Checksum, seq, timestamp and epoch may be anything: `stamp` writes them. There are no flags, or
    those of one run: FLAG_PRODUCER of the first frame and FLAG_CONTINUES of the others. ValueError as for `check`.
    """
    if cython.compiled:
        return _measure_pointers(frames, start, end, max_message_bytes)
    else:
        return _measure_slices(frames, start, end, max_message_bytes)


def parse(
    frames: bytes | bytearray | memoryview, start: int, end: int, check_crc: bool, gaps: bool = False
) -> list[tuple[int, int, int, int, bytes, bytes]]:
    """Take the whole stamped frames in frames[start:end] apart: (seq, timestamp_us, epoch, flags, metadata, payload).

    ValueError names the first frame that is not whole, has a wrong checksum (looked at only with `check_crc`) or is not
    the next after the one before it, or with `gaps` a later one; and as for `check`.
    """
    if cython.compiled:
        return _parse_pointers(frames, start, end, check_crc, gaps)
    else:
        return _parse_slices(frames, start, end, check_crc, gaps)


def pack_frames(payloads: list[bytes], metadata: bytes) -> bytearray:
    """The unstamped frames of these messages back to back, each with the same metadata.

    ValueError when one of them would be longer than MAX_FRAME_BYTES, or the metadata than MAX_METADATA_BYTES. TypeError
    for a payload that is not bytes.
    """
    if len(metadata) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata of {len(metadata)} bytes: at most {MAX_METADATA_BYTES}")
    if cython.compiled:
        return _pack_pointers(payloads, metadata)
    else:
        return _pack_slices(payloads, metadata)


def _oversize(length: int) -> ValueError:
    return ValueError(f"a frame of {length} bytes: at most {MAX_FRAME_BYTES}")


def _misfit(position: int, length: int, size: int) -> ValueError:
    return ValueError(f"the frame at byte {position} of {size} has a length of {length} bytes")


def _unfit(position: int, size: int, fault: str) -> ValueError:
    return ValueError(f"the frame at byte {position} of {size} is wrong: {fault}")


# Interpreted bodies.

if not cython.compiled:
    import struct

    from google_crc32c import value as _crc32c_value

    _LENGTH_AT = struct.Struct("<I").unpack_from
    _CRC_INTO = struct.Struct("<I").pack_into
    _STAMP_INTO = struct.Struct("<QQI").pack_into
    _HEADER_AT = struct.Struct("<IIQQIHH").unpack_from
    _PACK_HEADER = struct.Struct("<IIQQIHH").pack
    _U64_MASK = 2**64 - 1

    def _stamp_slices(
        frames: bytearray | memoryview, seq: int, timestamp_us: int, epoch: int, offset: int
    ) -> bytearray:
        source = bytes(frames)
        position, size, entries = 0, len(source), []
        length_at, stamp_into, crc_into = _LENGTH_AT, _STAMP_INTO, _CRC_INTO
        crc_of, entry = _crc32c_value, INDEX_ENTRY.pack
        while position < size:
            length = length_at(source, position)[0] if size - position >= 32 else 0
            end = position + length
            if not 32 <= length <= MAX_FRAME_BYTES or end > size:
                raise _misfit(position, length, size)
            if source[position + 30] + 256 * source[position + 31] > length - 32:
                raise _misfit(position, length, size)
            stamp_into(frames, position + 8, seq, timestamp_us, epoch)
            crc_into(frames, position + 4, crc_of(bytes(frames[position + 8 : end])))
            entries.append(entry(timestamp_us, offset + position, length, epoch))
            position = end
            seq += 1
        return bytearray(b"".join(entries))

    def _check_slices(frames: bytes | bytearray | memoryview, start: int, end: int, seq: int) -> tuple[int, int, str]:
        if not 0 <= start <= end <= len(frames):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(frames)}")
        source = bytes(memoryview(frames)[start:end])
        position, size, first = 0, len(source), seq
        header_at, crc_of = _HEADER_AT, _crc32c_value
        while position < size:
            if size - position < 32:
                return seq - first, position, FAULT_SHORT
            length, crc, number, _, _, _, metadata_bytes = header_at(source, position)
            if not 32 <= length <= MAX_FRAME_BYTES or metadata_bytes > length - 32:
                return seq - first, position, FAULT_LENGTH
            if length > size - position:
                return seq - first, position, FAULT_SHORT
            if crc_of(source[position + 8 : position + length]) != crc:
                return seq - first, position, FAULT_CRC
            if number != seq:
                return seq - first, position, FAULT_SEQ
            position += length
            seq += 1
        return seq - first, position, ""

    def _entries_slices(frames: bytes | bytearray | memoryview, start: int, end: int, offset: int) -> bytearray:
        if not 0 <= start <= end <= len(frames):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(frames)}")
        source = bytes(memoryview(frames)[start:end])
        position, size, entries = 0, len(source), []
        while position < size:
            header = _HEADER_AT(source, position) if size - position >= 32 else (0,)
            if not 32 <= header[0] <= min(MAX_FRAME_BYTES, size - position) or header[6] > header[0] - 32:
                raise _misfit(position, header[0], size)
            entries.append(INDEX_ENTRY.pack(header[3], offset + position, header[0], header[4]))
            position += header[0]
        return bytearray(b"".join(entries))

    def _admit_slices(
        frames: bytes | bytearray | memoryview, seq: int, timestamp_us: int, epoch: int, offset: int
    ) -> tuple[bytearray, int, str, int]:
        source = bytes(frames)
        _, size, fault = _check_slices(source, 0, len(source), seq)
        position, entries, found = 0, [], 0
        epoch = max(epoch, 1)
        while position < size:
            length, _, _, at_us, its_epoch, flags, _ = _HEADER_AT(source, position)
            if at_us < timestamp_us:
                fault = FAULT_TIME
                break
            if its_epoch < epoch:
                fault = FAULT_EPOCH
                break
            timestamp_us, epoch = at_us, its_epoch
            found |= flags
            entries.append(INDEX_ENTRY.pack(at_us, offset + position, length, its_epoch))
            position += length
        return bytearray(b"".join(entries)), position, fault, found

    def _measure_slices(
        frames: bytes | bytearray | memoryview, start: int, end: int, max_message_bytes: int
    ) -> tuple[int, str]:
        if not 0 <= start <= end <= len(frames):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(frames)}")
        position, count, header_at = start, 0, _HEADER_AT
        expected = 0
        while position < end:
            if end - position < 32:
                return count, FAULT_SHORT
            length, _, _, _, _, flags, metadata_bytes = header_at(frames, position)
            if not 32 <= length <= MAX_FRAME_BYTES or metadata_bytes > length - 32:
                return count, FAULT_LENGTH
            if length > end - position:
                return count, FAULT_SHORT
            begins = flags == FLAG_PRODUCER and not count
            if length - 32 > max_message_bytes + (RUN_METADATA_BYTES if begins else 0):
                return count, FAULT_SIZE
            if begins:
                expected = FLAG_CONTINUES
            elif flags != expected:
                return count, FAULT_FLAGS
            if begins and not metadata_bytes:
                return count, FAULT_METADATA
            if metadata_bytes and not (0x80 <= (first := frames[position + 32]) <= 0x8F or first in (0xDE, 0xDF)):
                return count, FAULT_METADATA
            position += length
            count += 1
        return count, ""

    def _parse_slices(
        frames: bytes | bytearray | memoryview, start: int, end: int, check_crc: bool, gaps: bool
    ) -> list[tuple[int, int, int, int, bytes, bytes]]:
        if not 0 <= start <= end <= len(frames):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(frames)}")
        source = bytes(memoryview(frames)[start:end])
        position, size, expected, found = 0, len(source), 0, []
        header_at, crc_of = _HEADER_AT, _crc32c_value
        while position < size:
            if size - position < 32:
                raise _unfit(position, size, FAULT_SHORT)
            length, crc, seq, timestamp_us, epoch, flags, metadata_bytes = header_at(source, position)
            if not 32 <= length <= MAX_FRAME_BYTES or metadata_bytes > length - 32:
                raise _unfit(position, size, FAULT_LENGTH)
            after = position + length
            if after > size:
                raise _unfit(position, size, FAULT_SHORT)
            if check_crc and crc_of(source[position + 8 : after]) != crc:
                raise _unfit(position, size, FAULT_CRC)
            if position and (seq < expected if gaps else seq != expected):
                raise _unfit(position, size, FAULT_SEQ)
            payload = position + 32 + metadata_bytes
            found.append((seq, timestamp_us, epoch, flags, source[position + 32 : payload], source[payload:after]))
            position = after
            expected = (seq + 1) & _U64_MASK
        return found

    def _pack_slices(payloads: list[bytes], metadata: bytes) -> bytearray:
        beside, header = HEADER_BYTES + len(metadata), _PACK_HEADER
        pieces: list[bytes] = []
        for payload in payloads:
            if type(payload) is not bytes:
                raise TypeError(f"a payload is bytes, not {type(payload).__name__}")
            length = beside + len(payload)
            if length > MAX_FRAME_BYTES:
                raise _oversize(length)
            pieces += (header(length, 0, 0, 0, 0, 0, len(metadata)), metadata, payload)
        return bytearray().join(pieces)


# Compiled bodies.


@cython.cfunc
def _crc_pointers(data: object, tables: cython.bint) -> object:
    view: Py_buffer
    value: cython.uint
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    source: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    if tables:
        value = crc32c_by_tables(0, source, view.len)
    else:
        value = crc32c_extend(0, source, view.len)
    PyBuffer_Release(cython.address(view))
    return value


@cython.cfunc
def _stamp_pointers(
    frames: object,
    seq: cython.ulonglong,
    timestamp_us: cython.ulonglong,
    epoch: cython.uint,
    offset: cython.ulonglong,
) -> bytearray:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_WRITABLE)
    first: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    size: cython.size_t = view.len
    position: cython.size_t = 0
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = 0  # for this number of entries
    length: cython.size_t
    entry: cython.p_uchar
    try:
        entries: bytearray = PyByteArray_FromStringAndSize(cython.NULL, 0)
        while position < size:
            length = tr_load32(first + position) if size - position >= 32 else 0
            if count < room or length < 32:
                raise _misfit(position, length, size)
            room += (size - position + length - 1) // length  # as many as there are if all are as long as this one
            PyByteArray_Resize(entries, room * _ENTRY)
            entry = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(entries)) + count * _ENTRY
            count += tr_stamp_run(
                first,
                size,
                _FRAME_MAX,
                cython.address(position),
                entry,
                room - count,
                seq + count,
                timestamp_us,
                epoch,
                offset,
            )
        PyByteArray_Resize(entries, count * _ENTRY)
    finally:
        PyBuffer_Release(cython.address(view))
    return entries


@cython.cfunc
@cython.exceptval(-1)
def _count_pointers(first: cython.p_uchar, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Returns the number of frames that fill `size` bytes exactly; ValueError as `stamp`."""
    count: cython.Py_ssize_t = tr_count_frames(first, size, _FRAME_MAX)
    if count < 0:
        raise _misfit(~count, tr_load32(first + ~count) if size - ~count >= _HEADER else 0, size)
    return count


@cython.cfunc
def _check_pointers(frames: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t, seq: cython.ulonglong) -> tuple:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    first: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    position: cython.Py_ssize_t = start
    count: cython.Py_ssize_t = 0
    length: cython.uint
    fault: str = ""
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"bytes {start} to {end} of a buffer of {view.len}")
        while position < end:
            if end - position < 32:
                fault = FAULT_SHORT
                break
            length = tr_load32(first + position)
            if length < _HEADER or length > _FRAME_MAX or tr_load16(first + position + 30) > length - _HEADER:
                fault = FAULT_LENGTH
                break
            if length > end - position:
                fault = FAULT_SHORT
                break
            if crc32c_extend(0, first + position + 8, length - 8) != tr_load32(first + position + 4):
                fault = FAULT_CRC
                break
            if tr_load64(first + position + 8) != seq + count:
                fault = FAULT_SEQ
                break
            position += length
            count += 1
    finally:
        PyBuffer_Release(cython.address(view))
    return count, position - start, fault


@cython.cfunc
def _entries_pointers(
    frames: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t, offset: cython.ulonglong
) -> bytearray:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    position: cython.Py_ssize_t = 0
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"bytes {start} to {end} of a buffer of {view.len}")
        first: cython.p_uchar = cython.cast(cython.p_uchar, view.buf) + start
        entries: bytearray = bytearray(_count_pointers(first, end - start) * _ENTRY)
        entry: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(entries))
        while position < end - start:
            tr_store64(entry, tr_load64(first + position + 16))
            tr_store64(entry + 8, offset + position)
            tr_store32(entry + 16, tr_load32(first + position))
            tr_store32(entry + 20, tr_load32(first + position + 24))
            entry += 24
            position += tr_load32(first + position)
    finally:
        PyBuffer_Release(cython.address(view))
    return entries


@cython.cfunc
def _admit_pointers(
    frames: object,
    seq: cython.ulonglong,
    timestamp_us: cython.ulonglong,
    epoch: cython.uint,
    offset: cython.ulonglong,
) -> tuple:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    frame: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    position: cython.Py_ssize_t = 0
    length: cython.uint
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t = 0  # for this number of entries
    sound: cython.int = 0  # the number of next frames that were read together, and have their checksums
    flags: cython.uint = 0
    fault: str = ""
    entry: cython.p_uchar
    if epoch == 0:
        epoch = 1
    try:
        entries: bytearray = PyByteArray_FromStringAndSize(cython.NULL, 0)
        while position < view.len:
            if view.len - position < 32:
                fault = FAULT_SHORT
                break
            length = tr_load32(frame)
            if length < _HEADER or length > _FRAME_MAX or tr_load16(frame + 30) > length - _HEADER:
                fault = FAULT_LENGTH
                break
            if length > view.len - position:
                fault = FAULT_SHORT
                break
            if not sound:
                sound = tr_sound_ahead(frame, view.len - position, _FRAME_MAX)
            if sound:
                sound -= 1
            elif crc32c_extend(0, frame + 8, length - 8) != tr_load32(frame + 4):
                fault = FAULT_CRC
                break
            if tr_load64(frame + 8) != seq:
                fault = FAULT_SEQ
                break
            if tr_load64(frame + 16) < timestamp_us:
                fault = FAULT_TIME
                break
            if tr_load32(frame + 24) < epoch:
                fault = FAULT_EPOCH
                break
            timestamp_us = tr_load64(frame + 16)
            epoch = tr_load32(frame + 24)
            flags |= tr_load16(frame + 28)
            if count == room:  # as many more as there are if the others are as long as this one
                room += (view.len - position) // length
                PyByteArray_Resize(entries, room * _ENTRY)
            entry = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(entries)) + count * _ENTRY
            tr_store64(entry, timestamp_us)
            tr_store64(entry + 8, offset + position)
            tr_store32(entry + 16, length)
            tr_store32(entry + 20, epoch)
            count += 1
            frame += length
            position += length
            seq += 1
        PyByteArray_Resize(entries, count * _ENTRY)
    finally:
        PyBuffer_Release(cython.address(view))
    return entries, position, fault, flags


@cython.cfunc
def _measure_pointers(
    frames: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t, max_message_bytes: cython.Py_ssize_t
) -> tuple:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    frame: cython.p_uchar = cython.cast(cython.p_uchar, view.buf) + start
    left: cython.Py_ssize_t = end - start
    count: cython.Py_ssize_t = 0
    room: cython.Py_ssize_t
    length: cython.uint
    flags: cython.uint
    expected: cython.uint = 0
    metadata_bytes: cython.uint
    fault: str = ""
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"bytes {start} to {end} of a buffer of {view.len}")
        while left > 0:
            if left < 32:
                fault = FAULT_SHORT
                break
            length = tr_load32(frame)
            metadata_bytes = tr_load16(frame + 30)
            if length < _HEADER or length > _FRAME_MAX or metadata_bytes > length - _HEADER:
                fault = FAULT_LENGTH
                break
            if length > left:
                fault = FAULT_SHORT
                break
            flags = tr_load16(frame + 28)
            room = max_message_bytes
            if flags == _PRODUCER and not count:
                expected = _PRODUCER
                room += _RUN_METADATA
            if length - _HEADER > room:
                fault = FAULT_SIZE
                break
            if flags != expected:
                fault = FAULT_FLAGS
                break
            if flags == _PRODUCER:
                expected = _CONTINUES
                if not metadata_bytes:
                    fault = FAULT_METADATA
                    break
            if metadata_bytes and not (0x80 <= frame[32] <= 0x8F or frame[32] == 0xDE or frame[32] == 0xDF):
                fault = FAULT_METADATA
                break
            frame += length
            left -= length
            count += 1
    finally:
        PyBuffer_Release(cython.address(view))
    return count, fault


@cython.cfunc
def _parse_pointers(
    frames: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t, check_crc: cython.bint, gaps: cython.bint
) -> list:
    view: Py_buffer
    PyObject_GetBuffer(frames, cython.address(view), PyBUF_SIMPLE)
    frame: cython.p_uchar = cython.cast(cython.p_uchar, view.buf) + start
    position: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t = end - start
    length: cython.uint
    seq: cython.ulonglong
    expected: cython.ulonglong = 0
    fault: str = ""
    found: list = []
    try:
        if start < 0 or start > end or end > view.len:
            raise ValueError(f"bytes {start} to {end} of a buffer of {view.len}")
        while position < size:
            if size - position < 32:
                fault = FAULT_SHORT
                break
            length = tr_load32(frame)
            if length < _HEADER or length > _FRAME_MAX or tr_load16(frame + 30) > length - _HEADER:
                fault = FAULT_LENGTH
                break
            if length > size - position:
                fault = FAULT_SHORT
                break
            if check_crc and crc32c_extend(0, frame + 8, length - 8) != tr_load32(frame + 4):
                fault = FAULT_CRC
                break
            seq = tr_load64(frame + 8)
            if position and seq != expected and (seq < expected or not gaps):
                fault = FAULT_SEQ
                break
            found.append(_parted(frame, seq, length))
            expected = seq + 1
            frame += length
            position += length
    finally:
        PyBuffer_Release(cython.address(view))
    if fault:
        raise _unfit(position, size, fault)
    return found


@cython.cfunc
@cython.inline
def _parted(frame: cython.p_uchar, seq: cython.ulonglong, length: cython.uint) -> tuple:
    """One message, as `parse` returns it."""
    metadata_bytes: cython.uint = tr_load16(frame + 30)
    start: cython.p_char = cython.cast(cython.p_char, frame) + 32
    metadata: bytes = PyBytes_FromStringAndSize(start, metadata_bytes)
    payload: bytes = PyBytes_FromStringAndSize(start + metadata_bytes, length - 32 - metadata_bytes)
    return seq, tr_load64(frame + 16), tr_load32(frame + 24), tr_load16(frame + 28), metadata, payload


@cython.cfunc
def _pack_pointers(payloads: list, metadata: bytes) -> bytearray:
    payload: bytes
    metadata_bytes: cython.uint = len(metadata)
    beside: cython.Py_ssize_t = _HEADER + metadata_bytes
    size: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    for payload in payloads:
        length = beside + len(payload)
        if length > _FRAME_MAX:
            raise _oversize(length)
        size += length
    frames: bytearray = bytearray(size)
    frame: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(frames))
    for payload in payloads:
        length = beside + len(payload)
        tr_store32(frame, length)
        tr_store16(frame + 30, metadata_bytes)
        memcpy(frame + 32, PyBytes_AS_STRING(metadata), metadata_bytes)
        memcpy(frame + beside, PyBytes_AS_STRING(payload), length - beside)
        frame += length
    return frames
