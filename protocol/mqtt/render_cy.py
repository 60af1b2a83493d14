"""Leaf: render frames as PUBLISH packets of MQTT. Stateless; bytes in, bytes out.

Compiled, the bodies are loops over pointers; interpreted, they are `struct` and slices. Both give the same bytes, which
property tests hold them to. What a body does not take is left to `protocol.mqtt.publishes`. Load this module through
`shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from render_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.frame import HEADER_BYTES
from tailrace.shard.topics import TOPIC_BYTES_MAX

if TYPE_CHECKING:
    # From render_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_FromStringAndSize: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    Rendered: Any
    free: Any
    malloc: Any
    memcpy: Any
    tr_is_ascii: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_store64: Any

PLACE_BYTES = 8
"""What `render` gives for each place, and each seq: a u64, little-endian."""

_HEADER = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
_TOPIC_MAX = cython.declare(cython.Py_ssize_t, TOPIC_BYTES_MAX)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def render(
    frames: bytes, stream: bytes, qos_max: int, properties: bytes, packet_bytes_max: int
) -> tuple[bytes, int, bytes, bytes, bytes, bytes] | None:
    """These whole frames as PUBLISH packets, with the same `properties` in each (with their length; b"" before MQTT 5).

    None if a frame has metadata with any other key than its topic, its QoS and the numbers of a producer, or not in the
    shortest form. Returns (packets, their number, and of each packet with an identifier: the place of that, the end of
    the packet, the seq, the number of packets up to it). Packets above `packet_bytes_max` are left out.
    """
    if cython.compiled:
        return _render_pointers(frames, stream, qos_max, properties, packet_bytes_max)
    else:
        return _render_slices(frames, stream, qos_max, properties, packet_bytes_max)


def with_identifiers(data: bytes, places: Any, count: int, end: int, first_id: int) -> bytearray:
    """A copy of data[:end] with identifiers from `first_id` on at the first `count` places, of an array of u64.

    After 65,535 comes 1. ValueError when one of the places or `end` is outside.
    """
    if not 0 <= end <= len(data):
        raise ValueError(f"{end} bytes of {len(data)}")
    if cython.compiled:
        return _fill_pointers(data, places, count, end, first_id)
    else:
        return _fill_slices(data, places, count, end, first_id)


def _outside(place: int, end: int) -> ValueError:
    return ValueError(f"an identifier at {place} of {end} bytes")


# Interpreted bodies.

if not cython.compiled:
    import struct

    _HEADER_AT = struct.Struct("<IIQQIHH").unpack_from

    def _render_slices(
        frames: bytes, stream: bytes, qos_max: int, properties: bytes, packet_bytes_max: int
    ) -> tuple[bytes, int, bytes, bytes, bytes, bytes] | None:
        out: list[bytes] = []
        places, ends, seqs, numbers = bytearray(), bytearray(), bytearray(), bytearray()
        size = messages = at = 0
        while at < len(frames):
            length, _crc, seq, _time, _epoch, _flags, metadata_bytes = _HEADER_AT(frames, at)
            payload_at = at + HEADER_BYTES + metadata_bytes
            known = _read_metadata(frames[at + HEADER_BYTES : payload_at])
            if known is None:
                return None
            topic, qos = known[0] or stream, min(known[1], qos_max)
            payload = frames[payload_at : at + length]
            at += length
            field = len(topic).to_bytes(2, "big") + topic
            body_bytes = len(field) + (2 if qos else 0) + len(properties) + len(payload)
            start = bytes((0x30 | qos << 1,)) + _varint(body_bytes)
            if len(start) + body_bytes > packet_bytes_max:
                continue
            messages += 1
            out += (start, field, b"\0\0" if qos else b"", properties, payload)
            if qos:
                places += (size + len(start) + len(field)).to_bytes(8, "little")
                ends += (size + len(start) + body_bytes).to_bytes(8, "little")
                seqs += seq.to_bytes(8, "little")
                numbers += messages.to_bytes(8, "little")
            size += len(start) + body_bytes
        return b"".join(out), messages, bytes(places), bytes(ends), bytes(seqs), bytes(numbers)

    def _varint(value: int) -> bytes:
        out = bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
        return bytes(out)

    def _read_metadata(metadata: bytes) -> tuple[bytes, int] | None:
        """Topic and QoS; None if `render` does not take this metadata."""
        if not metadata:
            return b"", 1
        if not 0x80 <= metadata[0] <= 0x8F:
            return None
        topic, qos, seen, at = b"", 1, set(), 1
        for _ in range(metadata[0] & 15):
            key, kind, at = metadata[at : at + 2], metadata[at + 2 : at + 3], at + 3
            if key in seen or not kind:
                return None
            seen.add(key)
            first = kind[0]
            if key == b"\xa1t":
                wide = {0xD9: 1, 0xDA: 2}.get(first, 0)
                size = int.from_bytes(metadata[at : at + wide], "big") if wide else first & 31
                at += wide
                topic, at = metadata[at : at + size], at + size
                if not (wide or first & 0xE0 == 0xA0) or not 0 < size <= TOPIC_BYTES_MAX or not topic.isascii():
                    return None
            elif key == b"\xa1q":
                qos = first
                if qos > 2:
                    return None
            elif key == b"\xa1p" and first == 0xC4:
                at += 1 + sum(metadata[at : at + 1])
            elif key == b"\xa1n" and (first < 0x80 or 0xCC <= first <= 0xCF):
                at += 0 if first < 0x80 else 1 << (first - 0xCC)
            else:
                return None
        return (topic, qos) if at == len(metadata) else None

    def _fill_slices(data: bytes, places: Any, count: int, end: int, first_id: int) -> bytearray:
        copy = bytearray(data[:end])
        for place in places[:count]:
            if place > end - 2:
                raise _outside(place, end)
            copy[place : place + 2] = first_id.to_bytes(2, "big")
            first_id = first_id % 0xFFFF + 1
        return copy


# Compiled bodies.


@cython.cfunc
def _render_pointers(
    frames: bytes,
    stream: bytes,
    qos_max: cython.int,
    properties: bytes,
    packet_bytes_max: cython.Py_ssize_t,
) -> object:
    source: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(frames))
    left: cython.Py_ssize_t = len(frames)
    room: cython.Py_ssize_t = left // _HEADER + 1
    packets: cython.pointer(Rendered) = cython.cast(cython.pointer(Rendered), malloc(room * cython.sizeof(Rendered)))
    if packets == cython.NULL:
        raise MemoryError
    one: cython.pointer(Rendered)
    length: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    with_id: cython.Py_ssize_t = 0
    try:
        while left >= _HEADER:
            length = tr_load32(source)
            one = packets + count
            one.topic = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(stream))
            one.topic_length = len(stream)
            if length < _HEADER or length > left or not _read_pointers(one, source):
                return None
            one.payload_length = cython.cast(cython.uint, length - _HEADER - tr_load16(source + 30))
            one.payload = source + length - one.payload_length
            one.seq = tr_load64(source + 8)
            if one.qos > qos_max:
                one.qos = qos_max
            size = 2 + one.topic_length + (2 if one.qos else 0) + len(properties) + one.payload_length
            one.body = cython.cast(cython.uint, size)
            size += 2 if size < 0x80 else 3 if size < 0x4000 else 4 if size < 0x200000 else 5
            if size <= packet_bytes_max:
                count += 1
                total += size
                with_id += 1 if one.qos else 0
            source += length
            left -= length
        return _write_packets(packets, count, total, with_id, properties)
    finally:
        free(packets)


@cython.cfunc
@cython.exceptval(check=False)
def _read_pointers(one: cython.pointer(Rendered), frame: cython.p_const_uchar) -> cython.bint:
    """Topic and QoS of a frame's metadata; returns whether `render` takes it."""
    at: cython.p_const_uchar = frame + _HEADER
    end: cython.p_const_uchar = at + tr_load16(frame + 30)
    keys: cython.int
    size: cython.Py_ssize_t
    seen: cython.int = 0
    bit: cython.int
    one.qos = 1
    if end == at:
        return True
    if end - frame > tr_load32(frame) or not 0x80 <= at[0] <= 0x8F:
        return False
    keys = at[0] & 15
    at += 1
    while keys:
        keys -= 1
        if end - at < 3 or at[0] != 0xA1:
            return False
        bit = 1 if at[1] == 0x74 else 2 if at[1] == 0x71 else 4 if at[1] == 0x70 else 8 if at[1] == 0x6E else 0
        if bit == 0 or seen & bit:
            return False
        seen |= bit
        if bit == 1:
            if at[2] & 0xE0 == 0xA0:
                size = at[2] & 31
                at += 3
            elif at[2] == 0xD9 and end - at > 3:
                size = at[3]
                at += 4
            elif at[2] == 0xDA and end - at > 4:
                size = at[3] << 8 | at[4]
                at += 5
            else:
                return False
            if size == 0 or size > _TOPIC_MAX or size > end - at or not tr_is_ascii(at, size):
                return False
            one.topic = at
            one.topic_length = cython.cast(cython.uint, size)
            at += size
        elif bit == 2:
            if at[2] > 2:
                return False
            one.qos = at[2]
            at += 3
        elif bit == 4:
            if at[2] != 0xC4 or end - at < 4 or end - at - 4 < at[3]:
                return False
            at += 4 + at[3]
        else:
            size = 0
            if at[2] >= 0x80:
                if not 0xCC <= at[2] <= 0xCF:
                    return False
                size = 1 << (at[2] - 0xCC)
            at += 3
            if size > end - at:
                return False
            at += size
    return at == end


@cython.cfunc
def _write_packets(
    packets: cython.pointer(Rendered),
    count: cython.Py_ssize_t,
    total: cython.Py_ssize_t,
    with_id: cython.Py_ssize_t,
    properties: bytes,
) -> tuple:
    data: bytes = PyBytes_FromStringAndSize(cython.NULL, total)
    places: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * with_id)
    ends: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * with_id)
    seqs: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * with_id)
    numbers: bytes = PyBytes_FromStringAndSize(cython.NULL, 8 * with_id)
    begin: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(data))
    out: cython.p_uchar = begin
    index: cython.Py_ssize_t
    offset: cython.Py_ssize_t = 0
    rest: cython.uint
    one: cython.pointer(Rendered)
    for index in range(count):
        one = packets + index
        out[0] = 0x30 | one.qos << 1
        out += 1
        rest = one.body
        while rest > 0x7F:
            out[0] = rest & 0x7F | 0x80
            rest >>= 7
            out += 1
        out[0], out[1], out[2] = rest, one.topic_length >> 8, one.topic_length & 255
        memcpy(out + 3, one.topic, one.topic_length)
        out += 3 + one.topic_length
        if one.qos:
            _store_at(places, offset, out - begin)
            out[0] = out[1] = 0
            out += 2
        memcpy(out, PyBytes_AS_STRING(properties), len(properties))
        out += len(properties)
        memcpy(out, one.payload, one.payload_length)
        out += one.payload_length
        if one.qos:
            _store_at(ends, offset, out - begin)
            _store_at(seqs, offset, one.seq)
            _store_at(numbers, offset, index + 1)
            offset += 8
    return data, count, places, ends, seqs, numbers


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _store_at(target: bytes, offset: cython.Py_ssize_t, value: cython.ulonglong) -> cython.void:
    tr_store64(cython.cast(cython.p_uchar, PyBytes_AS_STRING(target)) + offset, value)


@cython.cfunc
def _fill_pointers(
    data: bytes, places: object, count: cython.Py_ssize_t, end: cython.Py_ssize_t, first_id: cython.uint
) -> bytearray:
    view: Py_buffer
    place: cython.p_const_uchar
    index: cython.Py_ssize_t
    at: cython.ulonglong
    copy: bytearray = PyByteArray_FromStringAndSize(PyBytes_AS_STRING(data), end)
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(copy))
    PyObject_GetBuffer(places, cython.address(view), PyBUF_SIMPLE)
    try:
        place = cython.cast(cython.p_const_uchar, view.buf)
        for index in range(min(count, view.len // 8)):
            at = tr_load64(place + 8 * index)
            if end < 2 or at > cython.cast(cython.ulonglong, end) - 2:  # a sum could begin again at 0
                raise _outside(at, end)
            out[at], out[at + 1] = first_id >> 8, first_id & 255
            first_id = first_id % 0xFFFF + 1
    finally:
        PyBuffer_Release(cython.address(view))
    return copy
