"""Leaf: receive and send datagrams, many with one system call, and stage those that publish. Stateless.

Compiled, these are loops around recvmmsg and sendmmsg; interpreted, recvfrom and sendto one by one. Both give the same,
but for runs of equal datagrams to or from one address, which only the compiled one sends as segments of one message
(UDP_SEGMENT), and receives as one (UDP_GRO).
An address is the 28 bytes of a `sockaddr_in6`, or those of a `sockaddr_in` and zeros. Load this module through
`shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from packets_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

if TYPE_CHECKING:
    # From packets_cy.pxd; they exist in the compiled module only.
    EAGAIN: int
    EINTR: int
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBUF_WRITABLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_GET_SIZE: Any
    PyByteArray_Resize: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    errno: int
    memcmp: Any
    memcpy: Any
    tr_join: Any
    tr_load32: Any
    tr_place: Any
    tr_receive: Any
    tr_send: Any
    tr_sending: Any
    tr_store16: Any
    tr_store32: Any

Datagrams = tuple[Any, Any, Any, Any]
"""Slots, and the places, addresses and lengths of the datagrams in them."""
NAME_BYTES = 28
ENTRY_BYTES = 40
"""Of a datagram to be sent: `broker.udp.table_cy` makes them."""
BATCH = 64
"""Messages received with one system call."""
JOINED = 128
"""Datagrams in one of them at most."""
TOPIC_BYTES_MAX = 1_024
FAILED = -1
"""In the place of a count: nothing can be read from the socket; the error is reported by the next system call."""

_TOPIC_MAX = cython.declare(cython.Py_ssize_t, TOPIC_BYTES_MAX)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def join(fd: int) -> bool:
    """Lets the kernel join datagrams of equal length from one address to one message (UDP_GRO); whether it does."""
    if cython.compiled:
        return bool(tr_join(fd) == 0)
    else:
        return False


def receive(fd: int, datagrams: Datagrams, stride: int, count: int) -> tuple[int, int, int]:
    """Receives up to `count` messages, BATCH at most, each into a slot of `stride` bytes.

    datagrams: the slots, and for each datagram its place in them, its address and its length; there is room for JOINED
    of them for each message. Returns how many messages, or FAILED, how many datagrams, and their bytes.
    """
    if cython.compiled:
        return _receive_pointers(fd, datagrams, stride, count)
    else:
        return _receive_slices(fd, datagrams, stride, count)


def stage(
    datagrams: Datagrams,
    start: int,
    count: int,
    table: bytes,
    default_stream: bytes,
    body_bytes_max: int,
    groups: dict[bytes, list[Any]],
) -> tuple[int, int]:
    """Makes frames of datagrams from number `start` on, until one is not `PUB` with a topic of printable ASCII without
    wildcards, or its body is longer than `body_bytes_max`, or its stream is not found in `table`.

    table: the rules of topics (`protocol.topic_table`), b"" without any; `default_stream` holds the topics that no rule
    places. `groups` get them: by stream its unstamped frames, in a bytearray, and how many. Those without a verb are
    passed over. Returns (the number of the first that is left, how many were passed over).
    """
    if cython.compiled:
        return _stage_pointers(datagrams, start, count, table, default_stream, body_bytes_max, groups)
    else:
        return _stage_slices(datagrams, start, count, table, default_stream, body_bytes_max, groups)


def send(
    fd: int, entries: Any, start: int, count: int, texts: Any, most: int, segments: bool
) -> tuple[int, int, int, int, bool, bool]:
    """Sends the datagrams of entries[start:count], `most` of them at most.

    `segments`: whether runs of equal length to one address may go as one message of segments. Returns (the number of
    the first that is left, datagrams sent, their bytes, datagrams that the system refused, whether the socket takes no
    more now, whether segments may be used further).
    """
    if cython.compiled:
        return _send_pointers(fd, entries, start, count, texts, most, segments)
    else:
        return _send_slices(fd, entries, start, count, texts, most, segments)


# Interpreted bodies.

if not cython.compiled:
    import socket
    import struct

    from tailrace.protocol.topic_table import place_by_rule
    from tailrace.shard.frame import HEADER_BYTES
    from tailrace.shard.names import REPLIES_PREFIX

    _WHITE = frozenset(b" \t\n\v\f\r")
    _VERBS = (b"PUB", b"SUB", b"UNSUB", b"PING")
    _IPV4, _IPV6 = struct.Struct("=H2s4s20x"), struct.Struct("=H2sI16sI")

    def _pack_name(address: tuple[Any, ...]) -> bytes:
        port = address[1].to_bytes(2, "big")
        if len(address) == 2:
            return _IPV4.pack(socket.AF_INET, port, socket.inet_pton(socket.AF_INET, address[0]))
        host = socket.inet_pton(socket.AF_INET6, address[0].partition("%")[0])
        return _IPV6.pack(socket.AF_INET6, port, 0, host, address[3])

    def _unpack_name(name: bytes) -> tuple[Any, ...]:
        port = int.from_bytes(name[2:4], "big")
        if int.from_bytes(name[:2], "little") == socket.AF_INET:
            return socket.inet_ntop(socket.AF_INET, name[4:8]), port
        return socket.inet_ntop(socket.AF_INET6, name[8:24]), port, 0, int.from_bytes(name[24:28], "little")

    def _receive_slices(fd: int, datagrams: Datagrams, stride: int, count: int) -> tuple[int, int, int]:
        slots, starts, names, lengths = datagrams
        sock = socket.socket(fileno=fd)
        got = whole = 0
        try:
            while got < min(count, BATCH):
                nbytes, address = sock.recvfrom_into(
                    memoryview(slots)[got * stride : (got + 1) * stride], stride, socket.MSG_DONTWAIT
                )
                starts[4 * got : 4 * got + 4] = (got * stride).to_bytes(4, "little")
                names[got * NAME_BYTES : (got + 1) * NAME_BYTES] = _pack_name(address)
                lengths[4 * got : 4 * got + 4] = nbytes.to_bytes(4, "little")
                got += 1
                whole += nbytes
        except BlockingIOError:
            return got, got, whole
        except OSError:
            return got or FAILED, got, whole
        finally:
            sock.detach()
        return got, got, whole

    def _stage_slices(
        datagrams: Datagrams,
        start: int,
        count: int,
        table: bytes,
        default_stream: bytes,
        body_bytes_max: int,
        groups: dict[bytes, list[Any]],
    ) -> tuple[int, int]:
        slots, starts, _names, lengths = datagrams
        junk = 0
        for number in range(start, count):
            length = int.from_bytes(lengths[4 * number : 4 * number + 4], "little")
            place = int.from_bytes(starts[4 * number : 4 * number + 4], "little")
            data = bytes(memoryview(slots)[place : place + length])
            if not data.startswith(_VERBS):
                junk += 1
                continue
            if data[:3] != b"PUB" or data[3:4] not in b" \t\n\v\f\r" or len(data) < 5:
                return number, junk
            begin = 4
            while begin < length and data[begin] in _WHITE:
                begin += 1
            end = begin
            while end < length and 32 < data[end] < 127 and data[end] not in b"+#$":
                end += 1
            if end == begin or end - begin > TOPIC_BYTES_MAX or (end < length and data[end] not in _WHITE):
                return number, junk
            topic, body_at = data[begin:end], end + (2 if data[end : end + 2] == b"\r\n" else 1)
            body = data[body_at:]
            placed = place_by_rule(table, topic, default_stream)
            if len(body) > body_bytes_max or placed is None or topic.count(b"/") > 127:
                return number, junk
            if topic.startswith(REPLIES_PREFIX):
                return number, junk
            _add_slices(groups, *placed, body)
        return count, junk

    def _add_slices(groups: dict[bytes, list[Any]], stream: bytes, topic: bytes, body: bytes) -> None:
        metadata = b""
        if topic:
            size = len(topic)
            if size < 32:
                head = bytes([0xA0 | size])
            else:
                head = b"\xd9%c" % size if size < 256 else b"\xda" + size.to_bytes(2, "big")
            metadata = b"\x81\xa1t" + head + topic
        group = groups.setdefault(stream, [bytearray(), 0])
        group[0] += (HEADER_BYTES + len(metadata) + len(body)).to_bytes(4, "little") + bytes(26)
        group[0] += len(metadata).to_bytes(2, "little") + metadata + body
        group[1] += 1

    def _send_slices(
        fd: int, entries: Any, start: int, count: int, texts: Any, most: int, segments: bool
    ) -> tuple[int, int, int, int, bool, bool]:
        sock = socket.socket(fileno=fd)
        sent = sent_bytes = lost = 0
        number = start
        try:
            while number < min(count, start + most):
                entry = bytes(entries[number * ENTRY_BYTES : (number + 1) * ENTRY_BYTES])
                place, length = int.from_bytes(entry[32:36], "little"), int.from_bytes(entry[36:40], "little")
                text = memoryview(texts)[place : place + length]
                try:
                    sent_bytes += sock.sendto(text, socket.MSG_DONTWAIT, _unpack_name(entry[:NAME_BYTES]))
                    sent += 1
                except BlockingIOError:
                    return number, sent, sent_bytes, lost, True, segments
                except OSError:
                    lost += 1
                number += 1
        finally:
            sock.detach()
        return number, sent, sent_bytes, lost, False, segments


# Compiled bodies.


@cython.cfunc
def _octets_of(buffer: Any) -> cython.p_uchar:
    """The bytes of a buffer that its holder keeps, and that does not change its size."""
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_WRITABLE)
    octets: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
    PyBuffer_Release(cython.address(view))
    return octets


@cython.cfunc
def _receive_pointers(fd: cython.int, datagrams: tuple, stride: cython.Py_ssize_t, count: cython.uint) -> tuple:
    found: cython.size_t = 0
    nbytes: cython.size_t = 0
    got: cython.int = tr_receive(
        fd,
        _octets_of(datagrams[0]),
        stride,
        cython.cast(cython.p_uint, _octets_of(datagrams[1])),
        _octets_of(datagrams[2]),
        cython.cast(cython.p_uint, _octets_of(datagrams[3])),
        count,
        len(datagrams[3]) // 4,
        cython.address(found),
        cython.address(nbytes),
    )
    if got < 0:
        return (0 if errno == EAGAIN else FAILED), 0, 0
    return got, found, nbytes


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_white(octet: cython.uint) -> cython.bint:
    return octet == 32 or 9 <= octet <= 13


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _is_request(data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.bint:
    """Whether it begins with a verb."""
    if length < 3:
        return False
    if data[0] == 80:
        if data[1] == 85:
            return data[2] == 66
        return length > 3 and data[1] == 73 and data[2] == 78 and data[3] == 71
    if data[0] == 83:
        return data[1] == 85 and data[2] == 66
    return length > 4 and data[0] == 85 and data[1] == 78 and data[2] == 83 and data[3] == 85 and data[4] == 66


@cython.cfunc
def _stage_pointers(
    datagrams: tuple,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    table: bytes,
    default_stream: bytes,
    body_bytes_max: cython.Py_ssize_t,
    groups: dict,
) -> tuple:
    slots: cython.p_const_uchar = _octets_of(datagrams[0])
    starts: cython.p_uint = cython.cast(cython.p_uint, _octets_of(datagrams[1]))
    lengths: cython.p_uint = cython.cast(cython.p_uint, _octets_of(datagrams[3]))
    number: cython.Py_ssize_t = start
    junk: cython.Py_ssize_t = 0
    while number < count:
        if not _is_request(slots + starts[number], lengths[number]):
            junk += 1
        elif not _stage_one(slots + starts[number], lengths[number], table, default_stream, body_bytes_max, groups):
            break
        number += 1
    return number, junk


@cython.cfunc
@cython.exceptval(check=False)
def _topic_start(data: cython.p_const_uchar, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The place behind a verb of three letters and blanks; 0 if no blank follows three letters."""
    begin: cython.Py_ssize_t = 4
    if length < 5 or not _is_white(data[3]):
        return 0
    while begin < length and _is_white(data[begin]):
        begin += 1
    return begin


@cython.cfunc
@cython.exceptval(check=False)
def _topic_length(data: cython.p_const_uchar, begin: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The length of a topic of printable ASCII without wildcards; 0 for others, and for what begins as replies do."""
    end: cython.Py_ssize_t = begin
    levels: cython.Py_ssize_t = 0
    while end < length and 32 < data[end] < 127 and data[end] != 43 and data[end] != 35 and data[end] != 36:
        levels += data[end] == 47
        end += 1
    if end - begin > _TOPIC_MAX or levels > 127 or (end < length and not _is_white(data[end])):
        return 0
    if data[begin] == 114 and end - begin > 8 and not memcmp(data + begin, cython.cast(cython.p_char, b"reply-to/"), 9):
        return 0
    return end - begin


@cython.cfunc
@cython.exceptval(-1)
def _stage_one(
    data: cython.p_const_uchar,
    length: cython.Py_ssize_t,
    table: bytes,
    default_stream: bytes,
    body_bytes_max: cython.Py_ssize_t,
    groups: dict,
) -> cython.bint:
    begin: cython.Py_ssize_t
    end: cython.Py_ssize_t
    body_at: cython.Py_ssize_t
    placed: cython.int
    found: cython.p_const_uchar = cython.NULL
    found_bytes: cython.uint = 0
    stream: bytes = default_stream
    begin = _topic_start(data, length)
    if not begin or data[0] != 80 or data[1] != 85:
        return False
    end = begin + _topic_length(data, begin, length)
    if end == begin:
        return False
    body_at = end + (2 if end + 1 < length and data[end] == 13 and data[end + 1] == 10 else 1)
    if body_at > length:
        body_at = length
    if length - body_at > body_bytes_max:
        return False
    if len(table):
        placed = tr_place(
            cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(table)),
            data + begin,
            end - begin,
            cython.address(found),
            cython.address(found_bytes),
        )
        if placed < 0:
            return False
        if found != cython.NULL:
            stream = PyBytes_FromStringAndSize(cython.cast(cython.p_char, found), found_bytes)
            if not placed:
                return _add(groups, stream, data, 0, data + body_at, length - body_at)
    return _add(groups, stream, data + begin, end - begin, data + body_at, length - body_at)


@cython.cfunc
@cython.exceptval(-1)
def _add(
    groups: dict,
    stream: bytes,
    topic: cython.p_const_uchar,
    topic_bytes: cython.Py_ssize_t,
    body: cython.p_const_uchar,
    body_bytes: cython.Py_ssize_t,
) -> cython.bint:
    """Adds a frame to the group of its stream."""
    group: Any = groups.get(stream)
    head: cython.Py_ssize_t = 0
    if group is None:
        group = groups[stream] = [bytearray(), 0]
    frames: bytearray = group[0]
    if topic_bytes:
        head = 4 + (topic_bytes >= 32) + (topic_bytes >= 256)
    before: cython.Py_ssize_t = PyByteArray_GET_SIZE(frames)
    PyByteArray_Resize(frames, before + 32 + head + topic_bytes + body_bytes)
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(frames)) + before
    place: cython.Py_ssize_t
    for place in range(32):
        out[place] = 0
    tr_store32(out, 32 + head + topic_bytes + body_bytes)
    tr_store16(out + 30, head + topic_bytes)
    if topic_bytes:
        out[32], out[33], out[34] = 0x81, 0xA1, 116
        if topic_bytes < 32:
            out[35] = 0xA0 | topic_bytes
        elif topic_bytes < 256:
            out[35], out[36] = 0xD9, topic_bytes
        else:
            out[35], out[36], out[37] = 0xDA, topic_bytes >> 8, topic_bytes & 255
        memcpy(out + 32 + head, topic, topic_bytes)
    memcpy(out + 32 + head + topic_bytes, body, body_bytes)
    group[1] += 1
    return True


@cython.cfunc
def _send_pointers(
    fd: cython.int,
    entries: object,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    texts: object,
    most: cython.Py_ssize_t,
    segments: cython.bint,
) -> tuple:
    entry_view: Py_buffer
    text_view: Py_buffer
    sending: tr_sending
    sending.next, sending.sent, sending.sent_bytes, sending.lost = start, 0, 0, 0
    sending.blocked, sending.segments = 0, segments
    PyObject_GetBuffer(entries, cython.address(entry_view), PyBUF_SIMPLE)
    PyObject_GetBuffer(texts, cython.address(text_view), PyBUF_SIMPLE)
    try:
        tr_send(
            fd,
            cython.cast(cython.p_const_uchar, entry_view.buf),
            count,
            cython.cast(cython.p_const_uchar, text_view.buf),
            most,
            cython.address(sending),
        )
    finally:
        PyBuffer_Release(cython.address(text_view))
        PyBuffer_Release(cython.address(entry_view))
    left = sending.next, sending.sent, sending.sent_bytes, sending.lost
    return (*left, bool(sending.blocked), bool(sending.segments))
