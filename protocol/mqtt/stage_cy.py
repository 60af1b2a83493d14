"""Leaf: stage runs of PUBLISH of MQTT as frames, pack and count PUBACKs. Stateless; bytes in, bytes out.

Compiled, the bodies are loops over pointers; interpreted, they are `struct` and slices. Both give the same bytes, which
property tests hold them to. What a body does not take is left to the codec. Load this module through
`shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from stage_cy.pxd)

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.protocol.topic_table import place_by_table
from tailrace.protocol.topics import LEVELS_MAX
from tailrace.shard.frame import HEADER_BYTES, MAX_FRAME_BYTES
from tailrace.shard.names import NAME_BYTES_MAX
from tailrace.shard.topics import TOPIC_BYTES_MAX

if TYPE_CHECKING:
    # From stage_cy.pxd; they exist in the compiled module only.
    Group: Any
    Packet: Any
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_FromStringAndSize: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    Staging: Any
    calloc: Any
    free: Any
    memcmp: Any
    memcpy: Any
    memset: Any
    realloc: Any
    tr_is_plain_topic: Any
    tr_place: Any
    tr_store32: Any
    tr_stream_hash: Any

PACKETS_MAX = 16_384
"""The most PUBLISHes of a run: the compiled body reserves memory for them."""
ACK_BYTES = 4
"""A PUBACK without a reason."""

_HEADER = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
_PACKETS_MAX = cython.declare(cython.Py_ssize_t, PACKETS_MAX)
_NAME_MAX = cython.declare(cython.Py_ssize_t, NAME_BYTES_MAX)
_TOPIC_MAX = cython.declare(cython.Py_ssize_t, TOPIC_BYTES_MAX)
_PUBACK = cython.declare(cython.int, 0x40)
_KEY = cython.declare(cython.ulonglong, int.from_bytes(os.urandom(8), "little"))

StagedGroup = tuple[bytes, int, bytearray]
"""A stream, the number of messages for it, and their unstamped frames."""


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def stage(
    buffer: bytes | bytearray | memoryview,
    start: int,
    end: int,
    has_properties: bool,
    packet_bytes_max: int,
    max_message_bytes: int,
    acked_max: int,
    table: bytes,
) -> tuple[int, list[StagedGroup], bytes, list[int]]:
    """Stage the run of whole PUBLISH packets that begins at buffer[start] and ends before `end`.

    Stops after PACKETS_MAX of them and at the first packet that is anything else: another type, QoS 2, retained, with
    a property (`has_properties`: of MQTT 5, so that it has their length), more than `acked_max` with QoS 1, larger than
    the two bounds, with another topic than printable ASCII without `$`, `|` and `*`, or one that ends in `/`, invalid
    or unfinished. A topic lies where the table (`protocol.topic_table`) places it; with b"" each is the name of a
    stream.

    Returns (the offset of that packet, groups, the identifiers of the packets with QoS 1, two bytes each, the group of
    each of these if there are several groups). Groups are in the order in which their streams came first.
    """
    max_message_bytes = min(max_message_bytes, MAX_FRAME_BYTES - HEADER_BYTES)
    if cython.compiled:
        return _stage_pointers(
            buffer, start, end, has_properties, packet_bytes_max, max_message_bytes, acked_max, table
        )
    else:
        return _stage_slices(buffer, start, end, has_properties, packet_bytes_max, max_message_bytes, acked_max, table)


def pack_acks(ids: bytes) -> bytes:
    """A PUBACK for each of these identifiers, two bytes each as in a packet."""
    if cython.compiled:
        return _pack_pointers(ids)
    else:
        return b"".join([b"\x40\x02" + ids[at : at + 2] for at in range(0, len(ids), 2)])


def count_acks(buffer: bytes | bytearray | memoryview, start: int, end: int) -> int:
    """The number of whole PUBACKs without a reason from buffer[start] on with identifiers one after the other, from
    that of the first; after 65,535 comes 1. 0 stands for an identifier that no packet has.
    """
    if cython.compiled:
        return _count_pointers(buffer, start, end)
    else:
        return _count_slices(buffer, start, end)


def _outside(start: int, end: int, size: int) -> ValueError:
    return ValueError(f"bytes {start} to {end} of a buffer of {size}")


# Interpreted bodies.

if not cython.compiled:
    import re
    import struct

    import msgpack

    _PLAIN_TOPIC = re.compile(rb"[!-\"%-),-{}~]*[!-\"%-),-.0-{}~]")

    def _stage_slices(
        buffer: bytes | bytearray | memoryview,
        start: int,
        end: int,
        has_properties: bool,
        packet_bytes_max: int,
        max_message_bytes: int,
        acked_max: int,
        table: bytes,
    ) -> tuple[int, list[StagedGroup], bytes, list[int]]:
        data = memoryview(buffer)
        if not 0 <= start <= end <= len(data):
            raise _outside(start, end, len(data))
        streams: dict[bytes, int] = {}
        counts: list[int] = []
        frames: list[bytearray] = []
        ids, owners = bytearray(), []
        for _ in range(PACKETS_MAX):
            packet = _cut(data, start, end, has_properties, packet_bytes_max)
            if packet is None:
                break
            stop, topic, packet_id, payload = packet
            placed = place_by_table(table, topic) if table else (topic, b"")
            if placed is None or (not placed[1] and len(topic) > NAME_BYTES_MAX):
                break
            metadata = _metadata(placed[1], bool(packet_id))
            if len(metadata) + len(payload) > max_message_bytes or (packet_id and len(ids) == 2 * acked_max):
                break
            key = streams.setdefault(placed[0], len(frames))
            if key == len(frames):
                frames.append(bytearray())
                counts.append(0)
            length = HEADER_BYTES + len(metadata) + len(payload)
            frames[key] += struct.pack("<I26xH", length, len(metadata)) + metadata + bytes(payload)
            counts[key] += 1
            if packet_id:
                ids += packet_id.to_bytes(2, "big")
                owners.append(key)
            start = stop
        groups = [(name, counts[key], frames[key]) for name, key in streams.items()]
        return start, groups, bytes(ids), owners if len(groups) > 1 else []

    def _cut(
        data: memoryview, start: int, end: int, has_properties: bool, packet_bytes_max: int
    ) -> tuple[int, bytes, int, memoryview] | None:
        """The end, topic, identifier and payload of a packet for `stage`."""
        if start == end or data[start] not in (0x30, 0x32, 0x3A):
            return None
        size = shift = 0
        at = start + 1
        while True:
            if at == end or shift > 21:
                return None
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if (not byte and shift > 7) or at + size > end or at + size - start > packet_bytes_max or size < 3:
            return None
        stop = at + size
        topic_end = at + 2 + (data[at] << 8 | data[at + 1])
        payload_at = topic_end + (2 if data[start] != 0x30 else 0) + has_properties
        if payload_at > stop or (has_properties and data[payload_at - 1]):
            return None
        topic = bytes(data[at + 2 : topic_end])
        if len(topic) > TOPIC_BYTES_MAX or not _PLAIN_TOPIC.fullmatch(topic) or topic.count(b"/") >= LEVELS_MAX:
            return None
        packet_id = 0
        if data[start] != 0x30:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if not packet_id:
                return None
        return stop, topic, packet_id, data[payload_at:stop]

    def _metadata(topic: bytes, acked: bool) -> bytes:
        keys: dict[str, Any] = {"t": topic.decode()} if topic else {}
        if not acked:
            keys["q"] = 0
        packed: bytes = msgpack.packb(keys) if keys else b""
        return packed

    def _count_slices(buffer: bytes | bytearray | memoryview, start: int, end: int) -> int:
        data = memoryview(buffer)
        if not 0 <= start <= end <= len(data):
            raise _outside(start, end, len(data))
        count = expected = 0
        while end - start >= ACK_BYTES and data[start] == _PUBACK and data[start + 1] == 2:
            packet_id = data[start + 2] << 8 | data[start + 3]
            if not packet_id or (count and packet_id != expected):
                break
            expected = packet_id % 0xFFFF + 1
            count += 1
            start += ACK_BYTES
        return count


# Compiled bodies: staging. One pass finds the packets and their groups, a second writes each to its group's frames.


@cython.cfunc
def _stage_pointers(
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    has_properties: cython.bint,
    packet_bytes_max: cython.Py_ssize_t,
    max_message_bytes: cython.Py_ssize_t,
    acked_max: cython.Py_ssize_t,
    table: bytes,
) -> tuple:
    view: Py_buffer
    staging: Staging
    rules: cython.p_const_uchar = cython.NULL
    if table:
        rules = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(table))
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    _begin(cython.address(staging))
    try:
        if start < 0 or start > end or end > view.len:
            raise _outside(start, end, view.len)
        first: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
        stop: cython.Py_ssize_t = _find_packets(
            cython.address(staging),
            first,
            start,
            end,
            has_properties,
            packet_bytes_max,
            max_message_bytes,
            acked_max,
            rules,
        )
        groups: list = _make_groups(cython.address(staging))
        _write_frames(cython.address(staging))
        ids: bytes = _make_ids(cython.address(staging))
        owners: list = _make_owners(cython.address(staging)) if staging.group_count > 1 else []
    finally:
        _end(cython.address(staging))
        PyBuffer_Release(cython.address(view))
    return stop, groups, ids, owners


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _begin(staging: cython.pointer(Staging)) -> cython.void:
    staging.packets = staging.first_packets
    staging.groups = staging.first_groups
    staging.slots = staging.first_slots
    staging.packet_count = staging.acked_count = staging.group_count = 0
    staging.packet_room = 64
    staging.group_room = 8
    staging.slot_count = 16
    memset(staging.first_slots, 0, 16 * cython.sizeof(cython.int))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _end(staging: cython.pointer(Staging)) -> cython.void:
    if staging.packets != staging.first_packets:
        free(staging.packets)
    if staging.groups != staging.first_groups:
        free(staging.groups)
    if staging.slots != staging.first_slots:
        free(staging.slots)


@cython.cfunc
@cython.exceptval(-1)
def _find_packets(
    staging: cython.pointer(Staging),
    first: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    has_properties: cython.bint,
    packet_bytes_max: cython.Py_ssize_t,
    max_message_bytes: cython.Py_ssize_t,
    acked_max: cython.Py_ssize_t,
    table: cython.p_const_uchar,
) -> cython.Py_ssize_t:
    """Fill `staging.packets`; returns where the run ends."""
    last: cython.Py_ssize_t = -1
    group: cython.Py_ssize_t
    packet: Packet
    while start < end and staging.packet_count < _PACKETS_MAX:
        if not _cut_pointers(cython.address(packet), first + start, end - start, has_properties, packet_bytes_max):
            break
        if packet.packet_id and staging.acked_count >= acked_max:
            break
        # Most packets are for the topic of the one before, or for the one that followed it before.
        if last >= 0 and _has_topic(cython.address(staging.groups[last]), cython.address(packet)):
            group = last
        elif last >= 0 and _has_topic(
            cython.address(staging.groups[staging.groups[last].next]), cython.address(packet)
        ):
            group = staging.groups[last].next
        else:
            group = _place(staging, cython.address(packet), table)
            if group < 0:
                break
        if not staging.groups[group].has_topic:
            packet.topic_length = 0
        if _metadata_bytes(cython.address(packet)) + packet.payload_length > max_message_bytes:
            break
        if last >= 0:
            staging.groups[last].next = group
        last = group
        packet.group = group
        _add_packet(staging, cython.address(packet))
        start += packet.size
    return start


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _cut_pointers(
    packet: cython.pointer(Packet),
    at: cython.p_const_uchar,
    left: cython.Py_ssize_t,
    has_properties: cython.bint,
    packet_bytes_max: cython.Py_ssize_t,
) -> cython.bint:
    """Cuts a packet up; returns whether it may be one for `stage`, but for the bytes of its topic."""
    first: cython.int = at[0]
    size: cython.Py_ssize_t = 0
    place: cython.Py_ssize_t = 1
    shift: cython.int = 0
    if first != 0x30 and first != 0x32 and first != 0x3A:
        return False
    while True:
        if place == left or shift > 21:
            return False
        size |= cython.cast(cython.Py_ssize_t, at[place] & 0x7F) << shift
        shift += 7
        place += 1
        if at[place - 1] < 0x80:
            break
    if (at[place - 1] == 0 and shift > 7) or size > left - place or place + size > packet_bytes_max or size < 3:
        return False
    packet.size = place + size
    packet.topic_length = at[place] << 8 | at[place + 1]
    packet.topic = at + place + 2
    used: cython.Py_ssize_t = 2 + packet.topic_length + (0 if first == 0x30 else 2) + has_properties
    if used > size or packet.topic_length == 0 or packet.topic_length > _TOPIC_MAX:
        return False
    packet.payload = at + place + used
    packet.payload_length = cython.cast(cython.uint, size - used)
    if has_properties and packet.payload[-1] != 0:
        return False
    packet.packet_id = 0
    if first != 0x30:
        packet.packet_id = packet.topic[packet.topic_length] << 8 | packet.topic[packet.topic_length + 1]
        if packet.packet_id == 0:
            return False
    return True


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has_topic(group: cython.pointer(Group), packet: cython.pointer(Packet)) -> cython.bint:
    return group.seen_length == packet.topic_length and memcmp(group.seen, packet.topic, packet.topic_length) == 0


@cython.cfunc
@cython.exceptval(-2)
def _place(
    staging: cython.pointer(Staging), packet: cython.pointer(Packet), table: cython.p_const_uchar
) -> cython.Py_ssize_t:
    """Returns the index of the group of a packet's stream, a new one if needed; -1 if the packet is not for `stage`."""
    stream: cython.p_const_uchar = packet.topic
    length: cython.uint = packet.topic_length
    placed: cython.int = 0
    if not tr_is_plain_topic(packet.topic, packet.topic_length):
        return -1
    if table != cython.NULL:
        placed = tr_place(table, packet.topic, packet.topic_length, cython.address(stream), cython.address(length))
    if placed < 0 or (placed == 0 and packet.topic_length > _NAME_MAX):
        return -1
    if placed == 0:
        stream, length = packet.topic, packet.topic_length
    index: cython.Py_ssize_t = _group_of(staging, stream, length)
    group: cython.pointer(Group) = cython.address(staging.groups[index])
    group.seen, group.seen_length = packet.topic, packet.topic_length
    group.has_topic = placed
    return index


@cython.cfunc
@cython.exceptval(-2)
def _group_of(staging: cython.pointer(Staging), name: cython.p_const_uchar, length: cython.uint) -> cython.Py_ssize_t:
    hashed: cython.ulonglong = tr_stream_hash(name, length, _KEY)
    slot: cython.Py_ssize_t = hashed & (staging.slot_count - 1)
    index: cython.Py_ssize_t
    group: cython.pointer(Group)
    while staging.slots[slot] != 0:
        index = staging.slots[slot] - 1
        group = cython.address(staging.groups[index])
        if group.hash == hashed and group.name_length == length and memcmp(group.name, name, length) == 0:
            return index
        slot = (slot + 1) & (staging.slot_count - 1)
    index = staging.group_count
    if index == staging.group_room:
        _grow_groups(staging)
    group = cython.address(staging.groups[index])
    group.name, group.name_length, group.hash = name, length, hashed
    group.count = group.nbytes = 0
    group.next = index
    staging.group_count = index + 1
    _take_slot(staging, index)
    return index


@cython.cfunc
@cython.exceptval(-1)
def _grow_groups(staging: cython.pointer(Staging)) -> cython.int:
    """Room for four times as many groups, and a hash table for them. MemoryError."""
    index: cython.Py_ssize_t
    room: cython.Py_ssize_t = staging.group_room * 4
    slots: cython.p_int = cython.cast(cython.p_int, calloc(2 * room, cython.sizeof(cython.int)))
    if slots == cython.NULL:
        raise MemoryError
    if staging.slots != staging.first_slots:
        free(staging.slots)
    staging.slots = slots
    staging.slot_count = 2 * room
    held: cython.pointer(Group) = cython.NULL if staging.groups == staging.first_groups else staging.groups
    groups: cython.pointer(Group) = cython.cast(cython.pointer(Group), realloc(held, room * cython.sizeof(Group)))
    if groups == cython.NULL:
        raise MemoryError
    if held == cython.NULL:
        memcpy(groups, staging.first_groups, staging.group_count * cython.sizeof(Group))
    staging.groups = groups
    staging.group_room = room
    for index in range(staging.group_count):
        _take_slot(staging, index)
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _take_slot(staging: cython.pointer(Staging), index: cython.Py_ssize_t) -> cython.void:
    slot: cython.Py_ssize_t = staging.groups[index].hash & (staging.slot_count - 1)
    while staging.slots[slot] != 0:
        slot = (slot + 1) & (staging.slot_count - 1)
    staging.slots[slot] = index + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _metadata_bytes(packet: cython.pointer(Packet)) -> cython.Py_ssize_t:
    """The size of a msgpack map with the topic, if there is one, and the QoS, if it is 0."""
    size: cython.Py_ssize_t = 0 if packet.packet_id else 3
    if packet.topic_length:
        size += packet.topic_length + 3
        if packet.topic_length > 31:
            size += 1 if packet.topic_length < 256 else 2
    return size + 1 if size else 0


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _add_packet(staging: cython.pointer(Staging), packet: cython.pointer(Packet)) -> cython.int:
    if staging.packet_count == staging.packet_room:
        _grow_packets(staging)
    staging.packets[staging.packet_count] = packet[0]
    staging.packet_count += 1
    if packet.packet_id:
        staging.acked_count += 1
    group: cython.pointer(Group) = cython.address(staging.groups[packet.group])
    group.count += 1
    group.nbytes += _HEADER + _metadata_bytes(packet) + packet.payload_length
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _grow_packets(staging: cython.pointer(Staging)) -> cython.int:
    """Room for four times as many packets. MemoryError."""
    room: cython.Py_ssize_t = staging.packet_room * 4
    held: cython.pointer(Packet) = cython.NULL if staging.packets == staging.first_packets else staging.packets
    packets: cython.pointer(Packet) = cython.cast(cython.pointer(Packet), realloc(held, room * cython.sizeof(Packet)))
    if packets == cython.NULL:
        raise MemoryError
    if held == cython.NULL:
        memcpy(packets, staging.first_packets, staging.packet_count * cython.sizeof(Packet))
    staging.packets = packets
    staging.packet_room = room
    return 0


@cython.cfunc
def _make_groups(staging: cython.pointer(Staging)) -> list:
    """The groups as Python has them, their frames to be written yet. Those without a packet were found too late."""
    groups: list = []
    index: cython.Py_ssize_t
    group: cython.pointer(Group)
    for index in range(staging.group_count):
        group = cython.address(staging.groups[index])
        if group.count == 0:
            break
        frames: bytearray = PyByteArray_FromStringAndSize(cython.NULL, group.nbytes)
        group.out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(frames))
        name: bytes = PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, group.name), group.name_length)
        groups.append((name, group.count, frames))
    staging.group_count = len(groups)
    return groups


@cython.cfunc
@cython.exceptval(check=False)
def _write_frames(staging: cython.pointer(Staging)) -> cython.void:
    index: cython.Py_ssize_t
    packet: cython.pointer(Packet)
    group: cython.pointer(Group)
    out: cython.p_uchar
    metadata_bytes: cython.Py_ssize_t
    for index in range(staging.packet_count):
        packet = cython.address(staging.packets[index])
        group = cython.address(staging.groups[packet.group])
        out = group.out
        metadata_bytes = _metadata_bytes(packet)
        memset(out + 4, 0, 26)
        tr_store32(out, cython.cast(cython.uint, _HEADER + metadata_bytes + packet.payload_length))
        out[30], out[31] = metadata_bytes & 255, metadata_bytes >> 8
        out += _HEADER
        if metadata_bytes:
            out = _write_metadata(out, packet)
        memcpy(out, packet.payload, packet.payload_length)
        group.out = out + packet.payload_length


@cython.cfunc
@cython.exceptval(check=False)
def _write_metadata(out: cython.p_uchar, packet: cython.pointer(Packet)) -> cython.p_uchar:
    """Writes the map {"t": topic, "q": 0}, or a part of it; returns where the payload belongs."""
    length: cython.uint = packet.topic_length
    out[0] = 0x80 | (1 if length else 0) + (0 if packet.packet_id else 1)
    out += 1
    if length:
        out[0], out[1] = 0xA1, 0x74  # "t"
        out += 2
        if length < 32:
            out[0] = 0xA0 | length
        elif length < 256:
            out[0], out[1] = 0xD9, length
            out += 1
        else:
            out[0], out[1], out[2] = 0xDA, length >> 8, length & 255
            out += 2
        memcpy(out + 1, packet.topic, length)
        out += 1 + length
    if packet.packet_id == 0:
        out[0], out[1], out[2] = 0xA1, 0x71, 0  # "q"
        out += 3
    return out


@cython.cfunc
def _make_ids(staging: cython.pointer(Staging)) -> bytes:
    index: cython.Py_ssize_t
    ids: bytes = PyBytes_FromStringAndSize(cython.NULL, 2 * staging.acked_count)
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(ids))
    for index in range(staging.packet_count):
        if staging.packets[index].packet_id:
            out[0], out[1] = staging.packets[index].packet_id >> 8, staging.packets[index].packet_id & 255
            out += 2
    return ids


@cython.cfunc
def _make_owners(staging: cython.pointer(Staging)) -> list:
    owners: list = []
    index: cython.Py_ssize_t
    for index in range(staging.packet_count):
        if staging.packets[index].packet_id:
            owners.append(staging.packets[index].group)
    return owners


# Compiled bodies: acknowledgements.


@cython.cfunc
def _pack_pointers(ids: bytes) -> bytes:
    count: cython.Py_ssize_t = len(ids) // 2
    acks: bytes = PyBytes_FromStringAndSize(cython.NULL, 4 * count)
    source: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(ids))
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(acks))
    _: cython.Py_ssize_t
    for _ in range(count):
        out[0], out[1], out[2], out[3] = _PUBACK, 2, source[0], source[1]
        source += 2
        out += 4
    return acks


@cython.cfunc
def _count_pointers(buffer: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> object:
    view: Py_buffer
    count: cython.Py_ssize_t = 0
    packet_id: cython.uint
    expected: cython.uint = 0
    at: cython.p_const_uchar
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    try:
        if start < 0 or start > end or end > view.len:
            raise _outside(start, end, view.len)
        at = cython.cast(cython.p_const_uchar, view.buf) + start
        while end - start >= 4 and at[0] == _PUBACK and at[1] == 2:
            packet_id = at[2] << 8 | at[3]
            if packet_id == 0 or (count and packet_id != expected):
                break
            expected = packet_id % 0xFFFF + 1
            count += 1
            at += 4
            start += 4
    finally:
        PyBuffer_Release(cython.address(view))
    return count
