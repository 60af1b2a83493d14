"""Leaf: stage runs of PUBLISH envelopes as frames, and pack their answers. Stateless; bytes in, bytes out.

Compiled, the bodies are loops over pointers; interpreted, they are `struct` and slices. Both give the same bytes, which
a property test holds them to. Load this module through `shard.leaves`. docs/binary-protocol.md draws the envelopes.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from publish_cy.pxd)

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.protocol.opcodes import Op
from tailrace.shard.frame import HEADER_BYTES, MAX_FRAME_BYTES

if TYPE_CHECKING:
    # From publish_cy.pxd; they exist in the compiled module only.
    Group: Any
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_FromStringAndSize: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    Request: Any
    Staging: Any
    Topic: Any
    calloc: Any
    free: Any
    malloc: Any
    memcpy: Any
    tr_handle_hash: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_store32: Any
    tr_store64: Any

HEAD_BYTES = 17
"""A PUBLISH to one stream up to its frames: opcode, body length, request, ack, replicas, streams, handle."""
ACK_MAX = 2
"""The largest ack (SYNCED) that `stage` takes: those that need no number of replicas."""
REQUESTS_MAX = 16_384
"""The most requests of a run: the compiled body reserves memory for those that its bytes may hold, 2 MiB at most."""
REQUEST_BYTES = 8
"""What `stage` gives for each request of a group, little-endian: u32 request, u32 messages."""

_HEAD = cython.declare(cython.Py_ssize_t, HEAD_BYTES)
_ENVELOPE_HEAD = cython.declare(cython.Py_ssize_t, 5)
_BODY_HEAD = cython.declare(cython.Py_ssize_t, HEAD_BYTES - 5)
_HEADER = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
_FRAME_MAX = cython.declare(cython.Py_ssize_t, MAX_FRAME_BYTES)
_REQUESTS_MAX = cython.declare(cython.Py_ssize_t, REQUESTS_MAX)
_ACK_MAX = cython.declare(cython.int, ACK_MAX)
_PUBLISH = cython.declare(cython.int, int(Op.PUBLISH))
_PUBLISHED = cython.declare(cython.int, int(Op.PUBLISHED))
_ANSWER = cython.declare(cython.Py_ssize_t, 25)
_KEY = cython.declare(cython.ulonglong, int.from_bytes(os.urandom(8), "little"))


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def stage(
    buffer: bytes | bytearray | memoryview,
    start: int,
    end: int,
    max_message_bytes: int,
    body_max_bytes: int,
    placed: Mapping[int, tuple[bytes, bytes, bytes]] | None = None,
) -> tuple[int, int, list[tuple[int, int, bytearray, bytes]]]:
    """Stage the run of whole PUBLISH envelopes that begins at buffer[start] and ends before `end`.

    Stops after REQUESTS_MAX of them, and at the first envelope that is anything else: another message, one for several
    streams, with another ack than the first or one above ACK_MAX, with a body above `body_max_bytes`, an unfinished
    one, or one with a frame that is invalid, numbered by its producer, or has over `max_message_bytes` of metadata and
    payload. Returns (the offset of that envelope, ack, groups). A group is (handle, messages, their unstamped frames,
    REQUEST_BYTES for each request), one per handle, in order of first appearance. ValueError if start:end is not in
    the buffer.

    The handles in `placed` are those of topics, with the stream, the topic and the metadata of its messages. All that
    is published to topics of one stream is one group, by the handle that came first, and its frames have their
    metadata. This also stops at a request to such a handle with a frame that has metadata already, or is too large for
    more.
    """
    if cython.compiled:
        return _stage_pointers(buffer, start, end, max_message_bytes, body_max_bytes, placed or {})
    else:
        return _stage_slices(buffer, start, end, max_message_bytes, body_max_bytes, placed or {})


def pack_answers(requests: bytes, first_seq: int, subscribers: int) -> bytes:
    """Returns a PUBLISHED for each request of a group that `stage` gave, whose messages begin at `first_seq`."""
    if cython.compiled:
        return _pack_pointers(requests, first_seq, subscribers)
    else:
        return _pack_slices(requests, first_seq, subscribers)


def _outside(start: int, end: int, size: int) -> ValueError:
    return ValueError(f"bytes {start} to {end} of a buffer of {size}")


# Interpreted bodies.

if not cython.compiled:
    import struct

    _PUBLISH_AT = struct.Struct("<BIIBBHI").unpack_from
    _FRAME_AT = struct.Struct("<I24xHH").unpack_from
    _PAIR = struct.Struct("<II")
    _LENGTH_AT, _LENGTH_PACK = struct.Struct("<I").unpack_from, struct.Struct("<I").pack
    _SHORT_PACK = struct.Struct("<H").pack
    _UNPLACED = (b"", b"", b"")
    _PACK_ANSWER = struct.Struct("<BIIQII").pack

    _Groups = dict[int | bytes, tuple[int, list[int], bytearray, bytearray]]

    def _stage_slices(
        buffer: bytes | bytearray | memoryview,
        start: int,
        end: int,
        max_message_bytes: int,
        body_max_bytes: int,
        placed: Mapping[int, tuple[bytes, bytes, bytes]],
    ) -> tuple[int, int, list[tuple[int, int, bytearray, bytes]]]:
        view = memoryview(buffer)
        if not 0 <= start <= end <= len(view):
            raise _outside(start, end, len(view))
        run_ack = -1
        groups: _Groups = {}  # by handle, or by the stream of topics
        for _ in range(REQUESTS_MAX):
            if end - start <= HEAD_BYTES:
                break
            opcode, length, request, ack, replicas, streams, handle = _PUBLISH_AT(view, start)
            stop = start + 5 + length
            if opcode != _PUBLISH or length > body_max_bytes or stop > end or streams != 1 or replicas:
                break
            if ack != run_ack and (run_ack >= 0 or ack > ACK_MAX):
                break
            stream, _topic, metadata = placed.get(handle, _UNPLACED)
            messages = _count_frames(view, start + HEAD_BYTES, stop, max_message_bytes, len(metadata))
            if not messages:
                break
            run_ack = ack
            group = groups.get(stream or handle)
            if group is None:
                group = groups[stream or handle] = (handle, [0], bytearray(), bytearray())
            group[1][0] += messages
            frames = view[start + HEAD_BYTES : stop]
            group[2].extend(_with_metadata(frames, metadata) if metadata else frames)
            group[3].extend(_PAIR.pack(request, messages))
            start = stop
        found = [(handle, count[0], frames, bytes(requests)) for handle, count, frames, requests in groups.values()]
        return start, max(run_ack, 0), found

    def _with_metadata(frames: memoryview, metadata: bytes) -> bytes:
        """These frames, which have none, with this metadata."""
        made: list[bytes | memoryview] = []
        at = 0
        while at < len(frames):
            (length,) = _LENGTH_AT(frames, at)
            made += (
                _LENGTH_PACK(length + len(metadata)),
                frames[at + 4 : at + 30],
                _SHORT_PACK(len(metadata)),
                metadata,
            )
            made.append(frames[at + HEADER_BYTES : at + length])
            at += length
        return b"".join(made)

    def _count_frames(view: memoryview, position: int, end: int, max_message_bytes: int, added_bytes: int) -> int:
        """Returns the number of frames; 0 unless all of view[position:end] are frames that can be staged, and can have
        metadata of `added_bytes`.
        """
        count = 0
        while position < end:
            if end - position < HEADER_BYTES:
                return 0
            length, flags, metadata_bytes = _FRAME_AT(view, position)
            size = length - HEADER_BYTES
            if flags or length + added_bytes > MAX_FRAME_BYTES or not metadata_bytes <= size <= max_message_bytes:
                return 0
            if metadata_bytes and added_bytes:
                return 0
            if position + length > end or (metadata_bytes and not _is_map(view[position + HEADER_BYTES])):
                return 0
            position += length
            count += 1
        return count

    def _is_map(first: int) -> bool:
        """Whether this byte begins a msgpack map."""
        return 0x80 <= first <= 0x8F or first in (0xDE, 0xDF)

    def _pack_slices(requests: bytes, first_seq: int, subscribers: int) -> bytes:
        answers = []
        for request, messages in _PAIR.iter_unpack(requests):
            answers.append(_PACK_ANSWER(_PUBLISHED, _ANSWER - 5, request, first_seq, messages, subscribers))
            first_seq += messages
        return b"".join(answers)


# Compiled bodies: one pass finds the requests and their groups, a second copies each to its group's frames.


@cython.cfunc
def _stage_pointers(
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    max_message_bytes: cython.Py_ssize_t,
    body_max_bytes: cython.Py_ssize_t,
    placed: dict,
) -> tuple:
    view: Py_buffer
    staging: Staging
    ack: cython.int = 0
    groups: list = []
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    staging.requests = cython.NULL
    staging.groups = cython.NULL
    staging.slots = cython.NULL
    staging.topics = cython.NULL
    staging.request_count = staging.group_count = 0
    try:
        if start < 0 or start > end or end > view.len:
            raise _outside(start, end, view.len)
        _allocate(cython.address(staging), (end - start) // (_HEAD + _HEADER), len(placed) > 0)
        first: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
        stop: cython.Py_ssize_t = _find_requests(
            cython.address(staging), first, start, end, max_message_bytes, body_max_bytes, placed, {}
        )
        if stop > start:
            ack = first[start + 9]
            groups = _make_groups(cython.address(staging))
            if staging.topics != cython.NULL:
                _write_placed(cython.address(staging))
            else:
                _write_groups(cython.address(staging))
    finally:
        free(staging.requests)
        free(staging.groups)
        free(staging.slots)
        free(staging.topics)
        PyBuffer_Release(cython.address(view))
    return stop, ack, groups


@cython.cfunc
@cython.exceptval(-1)
def _allocate(staging: cython.pointer(Staging), room: cython.Py_ssize_t, has_topics: cython.bint) -> cython.int:
    """Room for as many requests as fit into the bytes, each with a group of its own. MemoryError; the caller frees."""
    room = min(room, _REQUESTS_MAX)
    staging.room = room
    staging.slot_count = 2
    while staging.slot_count < 2 * room:
        staging.slot_count *= 2
    staging.requests = cython.cast(cython.pointer(Request), malloc((room + 1) * cython.sizeof(Request)))
    staging.groups = cython.cast(cython.pointer(Group), malloc((room + 1) * cython.sizeof(Group)))
    staging.slots = cython.cast(cython.p_int, calloc(staging.slot_count, cython.sizeof(cython.int)))
    if staging.requests == cython.NULL or staging.groups == cython.NULL or staging.slots == cython.NULL:
        raise MemoryError
    if has_topics:
        staging.topics = cython.cast(cython.pointer(Topic), malloc((room + 1) * cython.sizeof(Topic)))
        if staging.topics == cython.NULL:
            raise MemoryError
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _find_requests(
    staging: cython.pointer(Staging),
    first: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    max_message_bytes: cython.Py_ssize_t,
    body_max_bytes: cython.Py_ssize_t,
    placed: dict,
    streams: dict,
) -> cython.Py_ssize_t:
    """Fill `staging.requests`; returns where the run ends."""
    at: cython.p_const_uchar = first + start
    limit: cython.p_const_uchar = first + end
    ack: cython.int = -1
    length: cython.Py_ssize_t
    messages: cython.Py_ssize_t
    handle: cython.uint
    last: cython.Py_ssize_t = -1  # the group of the request before
    group: cython.Py_ssize_t
    while limit - at > _HEAD and at[0] == _PUBLISH and staging.request_count < staging.room:
        length = tr_load32(at + 1)
        if length > body_max_bytes or length > limit - at - _ENVELOPE_HEAD or length <= _BODY_HEAD:
            break
        if at[10] != 0 or tr_load16(at + 11) != 1 or at[9] > _ACK_MAX or (ack >= 0 and at[9] != ack):
            break
        messages = _count_pointers(at + _HEAD, length - _BODY_HEAD, max_message_bytes)
        if messages == 0:
            break
        handle = tr_load32(at + 13)
        # Most requests are for the stream of the one before, or for the one that followed it before.
        if last >= 0 and staging.groups[last].handle == handle:
            group = last
        elif last >= 0 and staging.groups[staging.groups[last].next].handle == handle:
            group = staging.groups[last].next
        else:
            group = _group_of(staging, handle, placed, streams)
        if staging.topics != cython.NULL and not _takes_metadata(
            at + _HEAD, length - _BODY_HEAD, staging.topics[group].metadata_bytes
        ):
            break
        ack = at[9]
        if last >= 0:
            staging.groups[last].next = cython.cast(cython.uint, group)
        last = group
        _add_request(staging, at, length, messages, group)
        at += _ENVELOPE_HEAD + length
    return at - first


@cython.cfunc
@cython.exceptval(check=False)
def _count_pointers(
    frame: cython.p_const_uchar, left: cython.Py_ssize_t, max_message_bytes: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Returns the number of frames; 0 unless all of these bytes are frames that can be staged."""
    count: cython.Py_ssize_t = 0
    length: cython.Py_ssize_t
    metadata_bytes: cython.Py_ssize_t
    while left > 0:
        if left < _HEADER:
            return 0
        length = tr_load32(frame)
        metadata_bytes = tr_load16(frame + 30)
        if tr_load16(frame + 28) != 0 or length > _FRAME_MAX or length > left:
            return 0
        if length - _HEADER < metadata_bytes or length - _HEADER > max_message_bytes:
            return 0
        if metadata_bytes and not (0x80 <= frame[32] <= 0x8F or frame[32] == 0xDE or frame[32] == 0xDF):
            return 0
        frame += length
        left -= length
        count += 1
    return count


@cython.cfunc
@cython.exceptval(check=False)
def _takes_metadata(
    frame: cython.p_const_uchar, left: cython.Py_ssize_t, added_bytes: cython.Py_ssize_t
) -> cython.bint:
    """Whether these whole frames have none, and room for these bytes, if there are any."""
    while added_bytes and left > 0:
        if tr_load16(frame + 30) != 0 or tr_load32(frame) + added_bytes > _FRAME_MAX:
            return False
        left -= tr_load32(frame)
        frame += tr_load32(frame)
    return True


@cython.cfunc
@cython.exceptval(-1)
def _group_of(staging: cython.pointer(Staging), handle: cython.uint, placed: dict, streams: dict) -> cython.Py_ssize_t:
    """Returns the index of the handle's group, a new one if needed."""
    index: cython.Py_ssize_t
    slot: cython.Py_ssize_t = tr_handle_hash(handle, _KEY) & (staging.slot_count - 1)
    while staging.slots[slot] != 0:
        index = staging.slots[slot] - 1
        if staging.groups[index].handle == handle:
            return index
        slot = (slot + 1) & (staging.slot_count - 1)
    index = staging.group_count
    staging.group_count += 1
    staging.slots[slot] = cython.cast(cython.int, index + 1)
    group: cython.pointer(Group) = cython.address(staging.groups[index])
    group.handle = handle
    group.requests = group.messages = group.nbytes = 0
    group.next = cython.cast(cython.uint, index)
    if staging.topics != cython.NULL:
        _place(cython.address(staging.topics[index]), index, placed.get(handle), streams)
    return index


@cython.cfunc
@cython.exceptval(-1)
def _place(topic: cython.pointer(Topic), index: cython.uint, place: object, streams: dict) -> cython.int:
    """The group of a topic: its messages go to the first group of its stream. `placed` keeps the metadata."""
    topic.target = index
    topic.metadata_bytes = 0
    if place is None:
        return 0
    metadata: bytes = cython.cast(tuple, place)[2]
    topic.target = streams.setdefault(cython.cast(tuple, place)[0], index)
    topic.metadata = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(metadata))
    topic.metadata_bytes = len(metadata)
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _add_request(
    staging: cython.pointer(Staging),
    envelope: cython.p_const_uchar,
    length: cython.Py_ssize_t,
    messages: cython.Py_ssize_t,
    group: cython.Py_ssize_t,
) -> cython.void:
    request: cython.pointer(Request) = cython.address(staging.requests[staging.request_count])
    request.frames = envelope + _HEAD
    request.nbytes = length - _BODY_HEAD
    request.number = tr_load32(envelope + 5)
    request.messages = cython.cast(cython.uint, messages)
    request.group = group
    staging.request_count += 1
    target: cython.pointer(Group) = cython.address(staging.groups[group])
    if staging.topics != cython.NULL:
        target = cython.address(staging.groups[staging.topics[group].target])
        target.nbytes += messages * staging.topics[group].metadata_bytes
    target.requests += 1
    target.messages += messages
    target.nbytes += request.nbytes


@cython.cfunc
def _make_groups(staging: cython.pointer(Staging)) -> list:
    """The groups as Python has them, their bytes to be written yet."""
    groups: list = []
    index: cython.Py_ssize_t
    group: cython.pointer(Group)
    for index in range(staging.group_count):
        group = cython.address(staging.groups[index])
        if group.requests == 0:  # another one has its messages
            continue
        frames: bytearray = PyByteArray_FromStringAndSize(cython.NULL, group.nbytes)
        numbers: bytes = PyBytes_FromStringAndSize(cython.NULL, group.requests * REQUEST_BYTES)
        group.out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(frames))
        group.numbers = cython.cast(cython.p_uchar, PyBytes_AS_STRING(numbers))
        groups.append((group.handle, group.messages, frames, numbers))
    return groups


@cython.cfunc
@cython.exceptval(check=False)
def _write_groups(staging: cython.pointer(Staging)) -> cython.void:
    index: cython.Py_ssize_t
    request: cython.pointer(Request)
    group: cython.pointer(Group)
    for index in range(staging.request_count):
        request = cython.address(staging.requests[index])
        group = cython.address(staging.groups[request.group])
        memcpy(group.out, request.frames, request.nbytes)
        group.out += request.nbytes
        tr_store32(group.numbers, request.number)
        tr_store32(group.numbers + 4, request.messages)
        group.numbers += 8


@cython.cfunc
@cython.exceptval(check=False)
def _write_placed(staging: cython.pointer(Staging)) -> cython.void:
    """As `_write_groups`, where some handles are those of topics."""
    index: cython.Py_ssize_t
    request: cython.pointer(Request)
    topic: cython.pointer(Topic)
    group: cython.pointer(Group)
    for index in range(staging.request_count):
        request = cython.address(staging.requests[index])
        topic = cython.address(staging.topics[request.group])
        group = cython.address(staging.groups[topic.target])
        if topic.metadata_bytes:
            group.out = _write_frames(group.out, request, topic)
        else:
            memcpy(group.out, request.frames, request.nbytes)
            group.out += request.nbytes
        tr_store32(group.numbers, request.number)
        tr_store32(group.numbers + 4, request.messages)
        group.numbers += 8


@cython.cfunc
@cython.exceptval(check=False)
def _write_frames(
    out: cython.p_uchar, request: cython.pointer(Request), topic: cython.pointer(Topic)
) -> cython.p_uchar:
    """Writes the frames of a request with the metadata of its topic; returns where they end."""
    frame: cython.p_const_uchar = request.frames
    end: cython.p_const_uchar = frame + request.nbytes
    length: cython.Py_ssize_t
    while frame < end:
        length = tr_load32(frame)
        memcpy(out, frame, _HEADER)
        tr_store32(out, cython.cast(cython.uint, length + topic.metadata_bytes))
        out[30] = topic.metadata_bytes & 255
        out[31] = topic.metadata_bytes >> 8
        memcpy(out + _HEADER, topic.metadata, topic.metadata_bytes)
        memcpy(out + _HEADER + topic.metadata_bytes, frame + _HEADER, length - _HEADER)
        out += length + topic.metadata_bytes
        frame += length
    return out


@cython.cfunc
def _pack_pointers(requests: bytes, first_seq: cython.ulonglong, subscribers: cython.uint) -> bytes:
    count: cython.Py_ssize_t = len(requests) // REQUEST_BYTES
    answers: bytes = PyBytes_FromStringAndSize(cython.NULL, count * _ANSWER)
    source: cython.p_const_uchar = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(requests))
    out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(answers))
    _: cython.Py_ssize_t
    for _ in range(count):
        out[0] = _PUBLISHED
        tr_store32(out + 1, 20)
        memcpy(out + 5, source, 4)
        tr_store64(out + 9, first_seq)
        memcpy(out + 17, source + 4, 4)
        tr_store32(out + 21, subscribers)
        first_seq += tr_load32(source + 4)
        source += 8
        out += _ANSWER
    return answers
