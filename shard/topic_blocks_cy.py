"""Leaf: the blocks of a topic index, made from frames and searched for topics. Stateless.

A block stands for the frames that begin in one piece of BLOCK_BYTES of the content. It has a Bloom filter of the keys
of their topics: a key for each of the first prefixes of whole levels, and one for all of the topic. Compiled, the
bodies are loops over pointers; interpreted, they are `struct` and slices. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from topic_blocks_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.frame import FAULT_CRC, FAULT_LENGTH, FAULT_SEQ, MAX_FRAME_BYTES
from tailrace.shard.topics import topic_in

if TYPE_CHECKING:
    # From topic_blocks_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    calloc: Any
    crc32c_extend: Any
    free: Any
    malloc: Any
    tr_block_add: Any
    tr_block_has: Any
    tr_block_seal: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_store32: Any
    tr_store64: Any
    tr_topic: Any
    tr_topic_keys: Any

BLOCK_BYTES = 16_384
"""Of content, in which the frames of one block begin."""
RECORD_BYTES = 256
"""Of a block: crc32c, crc32c of the last frame before its end (u32 each), seq and offset of its first frame (u64 each),
bytes and number of its frames (u32 each), then the bits.
"""
RECORD_HEAD_BYTES = 32
KEYS_MAX = 5
"""Of a topic: those of its first four prefixes, and its own."""

_BLOCK = cython.declare(cython.ulonglong, BLOCK_BYTES)
_RECORD = cython.declare(cython.Py_ssize_t, RECORD_BYTES)
_FRAME_MAX = cython.declare(cython.uint, MAX_FRAME_BYTES)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def topic_keys(topic: bytes) -> bytes:
    """The keys of a topic, or of the first levels of one, 8 bytes each."""
    if cython.compiled:
        return _keys_pointers(topic)
    else:
        return _keys_slices(topic)


def build(
    content: bytes | bytearray | memoryview,
    size: int,
    next_seq: int,
    limit_seq: int,
    offset: int,
    stream: bytes,
    salt: int,
) -> tuple[bytes, int, int, str]:
    """Makes the blocks of the stamped frames of content[:size], which stands at `offset` of the log and begins with the
    first frame of a block; `stream` is the topic of a message without one.

    Frames must be next_seq, next_seq+1, … with the right checksums. The walk ends before `limit_seq`, at a frame that
    is not whole, or at a fault. A block is whole once a frame is seen that begins behind it. Gives (records of the
    whole blocks, seq of the first frame behind them, content bytes of the frames before it, fault as of
    `broker.topics.pick_cy.pick`). `salt` goes into the checksums. ValueError if the buffer is shorter.
    """
    if cython.compiled:
        return _build_pointers(content, size, next_seq, limit_seq, offset, stream, salt)
    else:
        return _build_slices(content, size, next_seq, limit_seq, offset, stream, salt)


def find(records: bytes, first_number: int, salt: int, keys: bytes) -> tuple[bytes, int, int, bool]:
    """Finds the blocks that may have a message with all of these keys, at least one; none without keys.

    `first_number` is the number of the first record's block. Gives (for each run of such blocks first seq, first
    offset, end seq and end offset, as u64; seq and offset behind the last block; whether all checksums are right).
    """
    if cython.compiled:
        return _find_pointers(records, first_number, salt, keys)
    else:
        return _find_slices(records, first_number, salt, keys)


def _outside(size: int, nbytes: int) -> ValueError:
    return ValueError(f"{size} bytes of a buffer of {nbytes}")


# Interpreted bodies.

if not cython.compiled:
    import struct

    from google_crc32c import value as _crc32c_value

    _HEADER_AT = struct.Struct("<IIQQIHH").unpack_from
    _RECORD_HEAD = struct.Struct("<IIQQII")
    _RUN = struct.Struct("<QQQQ")
    _BITS = 8 * (RECORD_BYTES - RECORD_HEAD_BYTES)
    _WORD = (1 << 64) - 1

    def _mix(key: int) -> int:
        key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        key = (key ^ key >> 27) * 0x94D049BB133111EB & _WORD
        return key ^ key >> 31

    def _key_list(topic: bytes) -> list[int]:
        keys: list[int] = []
        key = 0xCBF29CE484222325
        for byte in topic:
            if byte == 0x2F and len(keys) < KEYS_MAX - 1:
                keys.append(_mix(key))
            key = (key ^ byte) * 0x100000001B3 & _WORD
        keys.append(_mix(key))
        return keys

    def _mask(keys: list[int]) -> int:
        mask = 0
        for key in keys:
            for shift in (0, 16, 32, 48):
                mask |= 1 << ((key >> shift & 0xFFFF) * _BITS >> 16)
        return mask

    def _keys_slices(topic: bytes) -> bytes:
        return b"".join(key.to_bytes(8, "little") for key in _key_list(topic))

    def _record(last_crc: int, seq: int, offset: int, nbytes: int, frames: int, mask: int, sealed: int) -> bytes:
        body = _RECORD_HEAD.pack(0, last_crc, seq, offset, nbytes, frames)[4:] + mask.to_bytes(_BITS // 8, "little")
        return ((_crc32c_value(body) ^ sealed) & 0xFFFFFFFF).to_bytes(4, "little") + body

    def _build_slices(
        content: bytes | bytearray | memoryview,
        size: int,
        next_seq: int,
        limit_seq: int,
        offset: int,
        stream: bytes,
        salt: int,
    ) -> tuple[bytes, int, int, str]:
        if not 0 <= size <= len(content):
            raise _outside(size, len(content))
        source = bytes(content[:size])
        records: list[bytes] = []
        position = start = mask = last_crc = 0
        seq = start_seq = next_seq
        block, fault = offset // BLOCK_BYTES, ""
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
            while block < (offset + position) // BLOCK_BYTES:
                sealed = salt + block
                records.append(
                    _record(last_crc, start_seq, offset + start, position - start, seq - start_seq, mask, sealed)
                )
                start, start_seq, mask = position, seq, 0
                block += 1
            topic = topic_in(source[position + 32 : position + 32 + metadata_bytes]) or stream
            mask |= _mask(_key_list(topic))
            last_crc = crc
            position = stop
            seq += 1
        return b"".join(records), start_seq, start, fault

    def _find_slices(records: bytes, first_number: int, salt: int, keys: bytes) -> tuple[bytes, int, int, bool]:
        wanted = _mask([int.from_bytes(keys[at : at + 8], "little") for at in range(0, len(keys), 8)])
        runs: list[tuple[int, int, int, int]] = []
        end_seq = end_offset = 0
        for number in range(len(records) // RECORD_BYTES):
            record = records[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
            crc, _, seq, offset, nbytes, frames = _RECORD_HEAD.unpack_from(record)
            if crc != (_crc32c_value(record[4:]) ^ salt + first_number + number) & 0xFFFFFFFF:
                return b"", 0, 0, False
            mask = int.from_bytes(record[RECORD_HEAD_BYTES:], "little")
            if wanted and mask & wanted == wanted:
                if runs and runs[-1][3] == offset:
                    seq, offset = runs.pop()[:2]
                    runs.append((seq, offset, end_seq + frames, end_offset + nbytes))
                else:
                    runs.append((seq, offset, seq + frames, offset + nbytes))
                end_seq, end_offset = runs[-1][2:]
            else:
                end_seq, end_offset = seq + frames, offset + nbytes
        return b"".join(_RUN.pack(*run) for run in runs), end_seq, end_offset, True


# Compiled bodies.


@cython.cfunc
def _keys_pointers(topic: bytes) -> bytes:
    keys: cython.p_ulonglong = cython.cast(cython.p_ulonglong, malloc(64))
    if keys == cython.NULL:
        raise MemoryError
    try:
        count: cython.int = tr_topic_keys(
            cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(topic)), len(topic), cython.cast("uint64_t *", keys)
        )
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, keys), 8 * count)
    finally:
        free(keys)


@cython.cfunc
def _build_pointers(
    content: object,
    size: cython.Py_ssize_t,
    next_seq: cython.ulonglong,
    limit_seq: cython.ulonglong,
    offset: cython.ulonglong,
    stream: bytes,
    salt: cython.ulonglong,
) -> tuple:
    view: Py_buffer
    frame: cython.p_const_uchar
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    length: cython.uint
    metadata_bytes: cython.uint
    last_crc: cython.uint = 0
    position: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t = 0
    seq: cython.ulonglong = next_seq
    start_seq: cython.ulonglong = next_seq
    block: cython.ulonglong = offset // _BLOCK
    name: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(stream))
    record: cython.p_uchar
    fault: str = ""
    PyObject_GetBuffer(content, cython.address(view), PyBUF_SIMPLE)
    out: cython.p_uchar = cython.NULL
    try:
        if size < 0 or size > view.len:
            raise _outside(size, view.len)
        out = cython.cast(cython.p_uchar, calloc((offset + size) // _BLOCK - block + 1, _RECORD))
        if out == cython.NULL:
            raise MemoryError
        record = out
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
            while block < (offset + position) // _BLOCK:
                record = tr_block_seal(
                    record, last_crc, start_seq, offset + start, position - start, seq - start_seq, salt + block
                )
                start = position
                start_seq = seq
                block += 1
            topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
            if topic == cython.NULL:
                topic = name
                topic_bytes = len(stream)
            tr_block_add(record + 32, topic, topic_bytes)
            last_crc = tr_load32(frame + 4)
            position += length
            seq += 1
        records: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, out), record - out)
    finally:
        free(out)
        PyBuffer_Release(cython.address(view))
    return records, start_seq, start, fault


@cython.cfunc
def _find_pointers(records: bytes, first_number: cython.ulonglong, salt: cython.ulonglong, keys: bytes) -> tuple:
    count: cython.Py_ssize_t = len(records) // _RECORD
    source: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(records))
    wanted: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(keys))
    key_count: cython.size_t = len(keys) // 8
    record: cython.p_const_uchar
    run: cython.p_uchar
    number: cython.Py_ssize_t
    runs: cython.Py_ssize_t = 0
    seq: cython.ulonglong
    offset: cython.ulonglong
    end_seq: cython.ulonglong = 0
    end_offset: cython.ulonglong = 0
    is_right: cython.bint = True
    out: cython.p_uchar = cython.cast(cython.p_uchar, malloc(32 * (count + 1)))
    if out == cython.NULL:
        raise MemoryError
    try:
        for number in range(count):
            record = source + number * _RECORD
            if tr_load32(record) != crc32c_extend(0, record + 4, 252) ^ cython.cast(
                cython.uint, salt + first_number + number
            ):
                is_right = False
                runs = 0
                end_seq = 0
                end_offset = 0
                break
            seq = tr_load64(record + 8)
            offset = tr_load64(record + 16)
            end_seq = seq + tr_load32(record + 28)
            end_offset = offset + tr_load32(record + 24)
            if tr_block_has(record + 32, wanted, key_count):
                run = out + 32 * runs
                if runs and tr_load64(run - 8) == offset:
                    run -= 32
                else:
                    tr_store64(run, seq)
                    tr_store64(run + 8, offset)
                    runs += 1
                tr_store64(run + 16, end_seq)
                tr_store64(run + 24, end_offset)
        found: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_char, out), 32 * runs)
    finally:
        free(out)
    return found, end_seq, end_offset, is_right
