"""Leaf: read the sockets whose peers publish one message at a time, and send each its answer. Stateless.

Compiled, it makes the system calls without a Python statement between them; interpreted, it goes through `os` and
`socket`. Both give the same. Load this module through `shard.leaves`. docs/binary-protocol.md draws the envelopes.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from singles_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.protocol.mqtt.packets import MQTT_5
from tailrace.protocol.opcodes import Op
from tailrace.shard.frame import FLAG_PRODUCER, HEADER_BYTES, MAX_FRAME_BYTES
from tailrace.shard.leaves import load

if TYPE_CHECKING:
    # From singles_cy.pxd; they exist in the compiled module only.
    EAGAIN: int
    EINTR: int
    MSG_DONTWAIT: int
    MSG_NOSIGNAL: int
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBUF_WRITABLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_GET_SIZE: Any
    PyByteArray_Resize: Any
    PyBytes_AS_STRING: Any
    PyBytes_GET_SIZE: Any
    PyObject_GetBuffer: Any
    errno: int
    memcpy: Any
    memset: Any
    recv: Any
    send: Any
    tr_load16: Any
    tr_load32: Any
    tr_publish_payload: Any
    tr_store32: Any

HEAD_BYTES = 17
"""A PUBLISH to one stream up to its frames: opcode, body length, request, ack, replicas, streams, handle."""
ACK_MAX = 1
"""The largest ack (APPENDED) that is taken."""
TOGETHER_MAX = 16
"""Messages with QoS 0 of one read: with more of them the client sends as fast as it can, and is read more at once."""
NOTHING, FAILED = -1, -2
"""In the place of a count: nothing was there, or nothing fitted; the connection is broken."""

_HEAD = cython.declare(cython.Py_ssize_t, HEAD_BYTES)
_HEADER = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
_FRAME_MAX = cython.declare(cython.Py_ssize_t, MAX_FRAME_BYTES)
_ACK_MAX = cython.declare(cython.int, ACK_MAX)
_TOGETHER_MAX = cython.declare(cython.Py_ssize_t, TOGETHER_MAX)
_PUBLISH = cython.declare(cython.int, int(Op.PUBLISH))
_PRODUCER = cython.declare(cython.int, FLAG_PRODUCER)
_stage_lines = load("tailrace.protocol.line_cy").stage
_mqtt_cy = load("tailrace.protocol.mqtt.stage_cy")
_stage_packets, _count_acks = _mqtt_cy.stage, _mqtt_cy.count_acks

Group = tuple[bytearray, bytearray, list[Any]]
"""Of one stream: the unstamped frames, `protocol.publish_cy.REQUEST_BYTES` for each request, the clients.
Lines have no requests, and messages of MQTT with QoS 1 have two bytes each: their packet identifiers."""
SingleAcks = tuple[Any, int, int]
"""PUBACKs with identifiers one after the other: their client, the first identifier, their number."""
Numbered = tuple[bytes, bytearray, bytes, Any, int]
"""A publish that its producer has numbered: the stream, the frame, the request as in a group, its client, its ack."""


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def receive(
    clients: list[Any],
    buffer: bytearray | memoryview,
    max_message_bytes: int,
    groups: tuple[dict[bytes, Group], dict[bytes, Group]],
    numbered: list[Numbered] | None = None,
    is_placing: bool = False,
) -> tuple[int, int, int]:
    """Read the socket of each of these clients once, `read_bytes` at most, until one gives anything but a PUBLISH of a
    message.

    That is a whole envelope and no byte more, for one stream by a handle that its `handles` have, with an ack up to
    ACK_MAX and a valid frame of at most `max_message_bytes` of metadata and payload. It is added to the groups of its
    ack by the name of its stream, or to `numbered`; without that, a numbered one is anything else. is_placing: `placed`
    of a client has the handles of topics, whose frames get their metadata; one that has some already is anything else.
    A socket with nothing to read is passed over. Returns (the place of the client at which this stopped, the result
    of its read, the bytes of the reads before). The bytes read there are at the beginning of the buffer; 0 is the
    end of its input, FAILED an error. The place is len(clients) when all of them were read.
    """
    if cython.compiled:
        return _receive_pointers(clients, buffer, max_message_bytes, groups, numbered, is_placing)
    else:
        return _receive_slices(clients, buffer, max_message_bytes, groups, numbered, is_placing)


def receive_lines(
    clients: list[Any],
    buffer: bytearray | memoryview,
    max_message_bytes: int,
    groups: tuple[dict[bytes, Group], dict[bytes, Group]],
    table: bytes = b"",
) -> tuple[int, int, int]:
    """As `receive`, for connections that speak lines, until one gives anything but one `pub` line.

    That is what `line_cy.stage` takes with this table, whole and nothing behind it. It is added to the second of the
    groups if the codec of its client says `ack`, else to the first.
    """
    if cython.compiled:
        return _receive_line_pointers(clients, buffer, max_message_bytes, groups, table)
    else:
        return _receive_line_slices(clients, buffer, max_message_bytes, groups, table)


def receive_packets(
    clients: list[Any],
    buffer: bytearray | memoryview,
    packet_bytes_max: int,
    max_message_bytes: int,
    groups: tuple[dict[bytes, Group], dict[bytes, Group]],
    acks: list[SingleAcks],
    table: bytes = b"",
) -> tuple[int, int, int]:
    """As `receive`, for connections that speak MQTT, until one gives anything but a PUBLISH or PUBACKs in order.

    That is what `protocol.mqtt.stage_cy.stage` takes with this table, whole and nothing behind it, which is added to
    the groups of its QoS, or what `count_acks` counts, which is added to `acks`. With QoS 0 they may be up to
    TOGETHER_MAX messages for one stream; the client is then in its group as often. `last_publish` of a client is this
    function's, None at first: by it a message of the same topic as the last one need not be staged.
    """
    if cython.compiled:
        return _receive_packet_pointers(clients, buffer, packet_bytes_max, max_message_bytes, groups, acks, table)
    else:
        return _receive_packet_slices(clients, buffer, packet_bytes_max, max_message_bytes, groups, acks, table)


def send_each(fds: list[int], answers: list[bytes]) -> tuple[int, list[tuple[int, int]]]:
    """Send answer i to the socket fds[i]; a negative descriptor is passed over.

    Returns (the bytes sent, (place, bytes sent, NOTHING or FAILED) for each answer that was not sent whole).
    """
    if cython.compiled:
        return _send_pointers(fds, answers)
    else:
        return _send_slices(fds, answers)


# Interpreted bodies.

if not cython.compiled:
    import os
    import struct

    _PUBLISH_AT = struct.Struct("<BIIBBHI").unpack_from
    _FRAME_AT = struct.Struct("<I24xHH").unpack_from
    _PAIR = struct.Struct("<II").pack
    _LENGTH, _SHORT = struct.Struct("<I").pack, struct.Struct("<H").pack
    _UNPLACED = (b"", b"", b"")

    def _receive_slices(
        clients: list[Any],
        buffer: bytearray | memoryview,
        max_message_bytes: int,
        groups: tuple[dict[bytes, Group], dict[bytes, Group]],
        numbered: list[Numbered] | None,
        is_placing: bool,
    ) -> tuple[int, int, int]:
        nbytes = 0
        for place, client in enumerate(clients):
            try:
                count = os.readv(client.fd, [memoryview(buffer)[: client.read_bytes]])
            except BlockingIOError:
                continue
            except OSError:
                return place, FAILED, nbytes
            found = _single(buffer, count, max_message_bytes)
            if found is None or (found[3] and numbered is None):
                return place, count, nbytes
            ack, request, handle, flags = found
            frame = memoryview(buffer)[HEAD_BYTES:count]
            name, added = client.handles.get(handle), b""
            if name is None and is_placing:
                name, _topic, added = client.placed.get(handle, _UNPLACED)
            if not name or (added and not _has_room(frame, added)):
                return place, count, nbytes
            nbytes += count
            if flags and numbered is not None:
                numbered.append((name, bytearray(frame), _PAIR(request, 1), client, ack))
                continue
            frames, requests, publishers = groups[ack].setdefault(name, (bytearray(), bytearray(), []))
            frames += _with_metadata(frame, added) if added else frame
            requests += _PAIR(request, 1)
            publishers.append(client)
        return len(clients), 0, nbytes

    def _has_room(frame: memoryview, metadata: bytes) -> bool:
        """Whether this frame has none, and room for these bytes."""
        return not any(frame[30:32]) and len(frame) + len(metadata) <= MAX_FRAME_BYTES

    def _with_metadata(frame: memoryview, metadata: bytes) -> bytes:
        start = _LENGTH(len(frame) + len(metadata)) + bytes(frame[4:30]) + _SHORT(len(metadata))
        return start + metadata + frame[HEADER_BYTES:]

    def _single(buffer: bytearray | memoryview, count: int, max_message_bytes: int) -> tuple[int, int, int, int] | None:
        """Ack, request, handle and flags of a single publish."""
        if count < HEAD_BYTES + HEADER_BYTES:
            return None
        opcode, length, request, ack, replicas, streams, handle = _PUBLISH_AT(buffer)
        if (opcode, length, replicas, streams) != (Op.PUBLISH, count - 5, 0, 1) or ack > ACK_MAX:
            return None
        frame_bytes, flags, metadata_bytes = _FRAME_AT(buffer, HEAD_BYTES)
        size = frame_bytes - HEADER_BYTES
        if frame_bytes != count - HEAD_BYTES or not metadata_bytes <= size <= max_message_bytes:
            return None
        if flags > FLAG_PRODUCER or (flags and not metadata_bytes):
            return None
        first = buffer[HEAD_BYTES + HEADER_BYTES] if metadata_bytes else 0x80
        if frame_bytes > MAX_FRAME_BYTES or not (0x80 <= first <= 0x8F or first in (0xDE, 0xDF)):
            return None
        return ack, request, handle, flags

    def _receive_line_slices(
        clients: list[Any],
        buffer: bytearray | memoryview,
        max_message_bytes: int,
        groups: tuple[dict[bytes, Group], dict[bytes, Group]],
        table: bytes,
    ) -> tuple[int, int, int]:
        nbytes = 0
        for place, client in enumerate(clients):
            try:
                count = os.readv(client.fd, [memoryview(buffer)[: client.read_bytes]])
            except BlockingIOError:
                continue
            except OSError:
                return place, FAILED, nbytes
            stop, staged, _order = _stage_lines(buffer, 0, count, max_message_bytes, False, table)
            if stop != count or len(staged) != 1 or staged[0][1] != 1:
                return place, count, nbytes
            name, _messages, line_frames = staged[0]
            found = groups[1 if client.codec.ack else 0]
            if name in found:
                found[name][0].extend(line_frames)
                found[name][2].append(client)
            else:
                found[name] = (line_frames, bytearray(), [client])
            nbytes += count
        return len(clients), 0, nbytes

    def _receive_packet_slices(
        clients: list[Any],
        buffer: bytearray | memoryview,
        packet_bytes_max: int,
        max_message_bytes: int,
        groups: tuple[dict[bytes, Group], dict[bytes, Group]],
        acks: list[SingleAcks],
        table: bytes,
    ) -> tuple[int, int, int]:
        nbytes = 0
        for place, client in enumerate(clients):
            try:
                count = os.readv(client.fd, [memoryview(buffer)[: client.read_bytes]])
            except BlockingIOError:
                continue
            except OSError:
                return place, FAILED, nbytes
            acked = _count_acks(buffer, 0, count)
            if acked and 4 * acked == count:
                acks.append((client, buffer[2] << 8 | buffer[3], acked))
                nbytes += count
                continue
            options = client.codec.version == MQTT_5, packet_bytes_max, max_message_bytes, 1, table
            stop, staged, ids, _owners = _stage_packets(buffer, 0, count, *options)
            if not count or stop != count or len(staged) != 1 or staged[0][1] > (1 if ids else TOGETHER_MAX):
                return place, count, nbytes
            name, messages, packet_frames = staged[0]
            found = groups[1 if ids else 0]
            if name in found:
                found[name][0].extend(packet_frames)
                found[name][1].extend(ids)
                found[name][2].extend([client] * messages)
            else:
                found[name] = (packet_frames, bytearray(ids), [client] * messages)
            nbytes += count
        return len(clients), 0, nbytes

    def _send_slices(fds: list[int], answers: list[bytes]) -> tuple[int, list[tuple[int, int]]]:
        total, rest = 0, []
        for place, (fd, answer) in enumerate(zip(fds, answers, strict=True)):
            try:
                sent = NOTHING if fd < 0 else os.write(fd, answer)
            except BlockingIOError:
                sent = NOTHING
            except OSError:
                sent = FAILED
            total += max(sent, 0)
            if sent != len(answer):
                rest.append((place, sent))
        return total, rest


# Compiled bodies. The interpreter's lock is kept: no call waits, and to give it away would be to wait for it.


@cython.cfunc
def _receive_pointers(
    clients: list,
    buffer: object,
    max_message_bytes: cython.Py_ssize_t,
    groups: tuple,
    numbered: object,
    is_placing: cython.bint,
) -> tuple:
    view: Py_buffer
    place: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    nbytes: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t
    fd: cython.int
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    data: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    try:
        for place in range(len(clients)):
            client: Any = clients[place]
            fd = client.fd
            limit = client.read_bytes
            count = recv(fd, data, limit if 0 < limit < view.len else view.len, MSG_DONTWAIT)
            if count < 0:
                if errno in (EAGAIN, EINTR):
                    continue
                return place, FAILED, nbytes
            if not _is_single(data, count, max_message_bytes):
                return place, count, nbytes
            if numbered is None and tr_load16(data + _HEAD + 28) != 0:
                return place, count, nbytes
            name: object = cython.cast(dict, client.handles).get(tr_load32(data + 13))
            if name is None:
                topic: object = None
                if is_placing:
                    topic = cython.cast(dict, client.placed).get(tr_load32(data + 13))
                if topic is None or not _takes_metadata(data, count, cython.cast(tuple, topic)[2]):
                    return place, count, nbytes
                _add_placed(cython.cast(dict, groups[data[9]]), cython.cast(tuple, topic), data, count, client)
            elif tr_load16(data + _HEAD + 28) != 0:
                cython.cast(list, numbered).append(_numbered(name, data, count, client))
            else:
                _add(cython.cast(dict, groups[data[9]]), name, data, count, client)
            nbytes += count
        return len(clients), 0, nbytes
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_single(
    data: cython.p_const_uchar, count: cython.Py_ssize_t, max_message_bytes: cython.Py_ssize_t
) -> cython.bint:
    length: cython.Py_ssize_t = count - _HEAD
    metadata_bytes: cython.Py_ssize_t
    if length < _HEADER or length > _FRAME_MAX or length - _HEADER > max_message_bytes:
        return False
    if data[0] != _PUBLISH or tr_load32(data + 1) != count - 5 or tr_load32(data + _HEAD) != length:
        return False
    if data[9] > _ACK_MAX or data[10] != 0 or tr_load16(data + 11) != 1 or tr_load16(data + _HEAD + 28) > _PRODUCER:
        return False
    metadata_bytes = tr_load16(data + _HEAD + 30)
    if metadata_bytes == 0:
        return tr_load16(data + _HEAD + 28) == 0
    first: cython.int = data[_HEAD + _HEADER] if length > _HEADER else 0
    return metadata_bytes <= length - _HEADER and (0x80 <= first <= 0x8F or first == 0xDE or first == 0xDF)


@cython.cfunc
def _add(groups: dict, name: object, data: cython.p_const_uchar, count: cython.Py_ssize_t, client: object) -> object:
    group: tuple = _group_of(groups, name)
    _extend(group[0], data + _HEAD, count - _HEAD)
    return _add_request(group, data, client)


@cython.cfunc
@cython.exceptval(-1)
def _takes_metadata(data: cython.p_const_uchar, count: cython.Py_ssize_t, metadata: bytes) -> cython.bint:
    """Whether the frame has none, and room for these bytes."""
    return tr_load16(data + _HEAD + 30) == 0 and count - _HEAD + len(metadata) <= _FRAME_MAX


@cython.cfunc
def _add_placed(
    groups: dict, topic: tuple, data: cython.p_const_uchar, count: cython.Py_ssize_t, client: object
) -> object:
    """Adds a frame with the metadata of its topic."""
    group: tuple = _group_of(groups, topic[0])
    frames: bytearray = group[0]
    metadata: bytes = topic[2]
    added: cython.Py_ssize_t = len(metadata)
    start: cython.Py_ssize_t = PyByteArray_GET_SIZE(frames)
    _extend(frames, data + _HEAD, _HEADER)
    _extend(frames, cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(metadata)), added)
    _extend(frames, data + _HEAD + _HEADER, count - _HEAD - _HEADER)
    frame: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(frames)) + start
    tr_store32(frame, cython.cast(cython.uint, count - _HEAD + added))
    frame[30] = added & 255
    frame[31] = added >> 8
    return _add_request(group, data, client)


@cython.cfunc
def _group_of(groups: dict, name: object) -> tuple:
    found: object = groups.get(name)
    if found is None:
        found = groups[name] = (bytearray(), bytearray(), [])
    return cython.cast(tuple, found)


@cython.cfunc
def _add_request(group: tuple, data: cython.p_const_uchar, client: object) -> object:
    requests: bytearray = group[1]
    _extend(requests, data + 5, 8)
    tr_store32(
        cython.cast(cython.p_uchar, PyByteArray_AS_STRING(requests)) + PyByteArray_GET_SIZE(requests) - 4,
        1,  # message
    )
    cython.cast(list, group[2]).append(client)
    return None


@cython.cfunc
def _numbered(name: object, data: cython.p_const_uchar, count: cython.Py_ssize_t, client: object) -> tuple:
    frame: bytearray = bytearray()
    request: bytearray = bytearray()
    _extend(frame, data + _HEAD, count - _HEAD)
    _extend(request, data + 5, 8)
    tr_store32(cython.cast(cython.p_uchar, PyByteArray_AS_STRING(request)) + 4, 1)  # message
    return name, frame, bytes(request), client, cython.cast(cython.int, data[9])


@cython.cfunc
@cython.exceptval(-1)
def _extend(target: bytearray, data: cython.p_const_uchar, nbytes: cython.Py_ssize_t) -> cython.int:
    before: cython.Py_ssize_t = PyByteArray_GET_SIZE(target)
    PyByteArray_Resize(target, before + nbytes)
    memcpy(PyByteArray_AS_STRING(target) + before, data, nbytes)
    return 0


@cython.cfunc
def _receive_line_pointers(
    clients: list,
    buffer: object,
    max_message_bytes: object,
    groups: tuple,
    table: bytes,
) -> tuple:
    view: Py_buffer
    place: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    nbytes: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t
    fd: cython.int
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    data: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    try:
        for place in range(len(clients)):
            client: Any = clients[place]
            fd = client.fd
            limit = client.read_bytes
            count = recv(fd, data, limit if 0 < limit < view.len else view.len, MSG_DONTWAIT)
            if count < 0:
                if errno in (EAGAIN, EINTR):
                    continue
                return place, FAILED, nbytes
            staged: tuple = _stage_lines(buffer, 0, count, max_message_bytes, False, table)
            found: list = staged[1]
            if staged[0] != count or len(found) != 1 or cython.cast(tuple, found[0])[1] != 1:
                return place, count, nbytes
            _add_line(cython.cast(dict, groups[1 if client.codec.ack else 0]), cython.cast(tuple, found[0]), client)
            nbytes += count
        return len(clients), 0, nbytes
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
def _add_line(groups: dict, line: tuple, client: object) -> object:
    found: object = groups.get(line[0])
    if found is None:
        groups[line[0]] = (line[2], bytearray(), [client])
        return None
    group: tuple = cython.cast(tuple, found)
    frames: bytearray = line[2]
    _extend(group[0], cython.cast(cython.p_const_uchar, PyByteArray_AS_STRING(frames)), PyByteArray_GET_SIZE(frames))
    cython.cast(list, group[2]).append(client)
    return None


@cython.cfunc
def _receive_packet_pointers(
    clients: list,
    buffer: object,
    packet_bytes_max: object,
    max_message_bytes: object,
    groups: tuple,
    acks: list,
    table: bytes,
) -> tuple:
    view: Py_buffer
    place: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    nbytes: cython.Py_ssize_t = 0
    limit: cython.Py_ssize_t
    acked: cython.Py_ssize_t
    messages: cython.Py_ssize_t
    packet_max: cython.Py_ssize_t = packet_bytes_max
    message_max: cython.Py_ssize_t = max_message_bytes
    fd: cython.int
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    data: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    try:
        for place in range(len(clients)):
            client: Any = clients[place]
            fd = client.fd
            limit = client.read_bytes
            count = recv(fd, data, limit if 0 < limit < view.len else view.len, MSG_DONTWAIT)
            if count < 0:
                if errno in (EAGAIN, EINTR):
                    continue
                return place, FAILED, nbytes
            if count >= 4 and data[0] == 0x40:
                acked = _count_acks(buffer, 0, count)
                if 4 * acked != count:
                    return place, count, nbytes
                acks.append((client, data[2] << 8 | data[3], acked))
                nbytes += count
                continue
            known: object = client.last_publish
            if (
                known is not None
                and count <= packet_max
                and _add_known(groups, cython.cast(tuple, known), table, data, count, message_max, client)
            ):
                nbytes += count
                continue
            has_properties: object = client.codec.version == MQTT_5
            staged: tuple = _stage_packets(
                buffer, 0, count, has_properties, packet_bytes_max, max_message_bytes, 1, table
            )
            found: list = staged[1]
            ids: bytes = staged[2]
            if count == 0 or staged[0] != count or len(found) != 1:
                return place, count, nbytes
            group: tuple = found[0]
            messages = group[1]
            if messages > (1 if ids else _TOGETHER_MAX):
                return place, count, nbytes
            if messages == 1:
                client.last_publish = _known(table, data, group, bool(ids), has_properties)
            _add_packets(cython.cast(dict, groups[1 if ids else 0]), group, ids, client, messages)
            nbytes += count
        return len(clients), 0, nbytes
    finally:
        PyBuffer_Release(cython.address(view))


@cython.cfunc
def _known(table: bytes, data: cython.p_const_uchar, group: tuple, qos: cython.int, has_properties: object) -> tuple:
    """What `_add_known` needs of this PUBLISH, which is staged: the table, its topic with the length, QoS, whether it
    has properties, its stream, its metadata.
    """
    frames: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(group[2]))
    at: cython.Py_ssize_t = 2
    while data[at - 1] & 0x80:
        at += 1
    topic: bytes = data[at : at + 2 + (data[at] << 8 | data[at + 1])]
    metadata: bytes = frames[_HEADER : _HEADER + tr_load16(frames + 30)]
    return table, topic, qos, has_properties, group[0], metadata


@cython.cfunc
@cython.exceptval(-1)
def _add_known(
    groups: tuple,
    known: tuple,
    table: bytes,
    data: cython.p_const_uchar,
    count: cython.Py_ssize_t,
    message_max: cython.Py_ssize_t,
    client: object,
) -> cython.bint:
    """Adds a PUBLISH like the one that is known. False if it isn't one."""
    topic: bytes = known[1]
    qos: cython.int = known[2]
    has_properties: cython.int = known[3]
    metadata: bytes = known[5]
    added: cython.Py_ssize_t = len(metadata)
    if known[0] is not table:
        return False
    at: cython.Py_ssize_t = tr_publish_payload(
        data, count, cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(topic)), len(topic), qos, has_properties
    )
    size: cython.Py_ssize_t = added + count - at
    if at == 0 or size > message_max or size > _FRAME_MAX - _HEADER:
        return False
    group: tuple = _group_of(cython.cast(dict, groups[qos]), known[4])
    frames: bytearray = group[0]
    start: cython.Py_ssize_t = PyByteArray_GET_SIZE(frames)
    PyByteArray_Resize(frames, start + _HEADER + size)
    frame: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(frames)) + start
    memset(frame, 0, _HEADER)
    tr_store32(frame, cython.cast(cython.uint, _HEADER + size))
    frame[30] = added & 255
    frame[31] = added >> 8
    memcpy(frame + _HEADER, PyBytes_AS_STRING(metadata), added)
    memcpy(frame + _HEADER + added, data + at, count - at)
    if qos:
        _extend(group[1], data + at - has_properties - 2, 2)
    cython.cast(list, group[2]).append(client)
    return True


@cython.cfunc
def _add_packets(groups: dict, packets: tuple, ids: bytes, client: object, messages: cython.Py_ssize_t) -> object:
    group: tuple = _group_of(groups, packets[0])
    frames: bytearray = packets[2]
    _: cython.Py_ssize_t
    _extend(group[0], cython.cast(cython.p_const_uchar, PyByteArray_AS_STRING(frames)), PyByteArray_GET_SIZE(frames))
    _extend(group[1], cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(ids)), PyBytes_GET_SIZE(ids))
    for _ in range(messages):
        cython.cast(list, group[2]).append(client)
    return None


@cython.cfunc
def _send_pointers(fds: list, answers: list) -> tuple:
    place: cython.Py_ssize_t
    sent: cython.Py_ssize_t
    size: cython.Py_ssize_t
    total: cython.Py_ssize_t = 0
    fd: cython.int
    rest: list = []
    if len(answers) != len(fds):
        raise ValueError(f"{len(answers)} answers for {len(fds)} sockets")
    for place in range(len(fds)):
        fd = fds[place]
        answer: bytes = answers[place]
        size = PyBytes_GET_SIZE(answer)
        sent = NOTHING
        if fd >= 0:
            sent = send(fd, PyBytes_AS_STRING(answer), size, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent < 0:
                sent = NOTHING if errno in (EAGAIN, EINTR) else FAILED
            else:
                total += sent
        if sent != size:
            rest.append((place, sent))
    return total, rest
