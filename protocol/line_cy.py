"""Leaf: stage `pub` lines as frames. Stateless; bytes in, bytes out.

Compiled, the bodies are loops over pointers; interpreted, they are bytes methods, `struct` and list comprehensions.
Both give the same bytes, which a property test holds them to. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from line_cy.pxd)

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.protocol.line_heads import HEAD_BYTES_MAX as HEAD_BYTES_MAX
from tailrace.protocol.line_heads import UNSTAMPED, frame_with_metadata, frames_of, parse_head, topic_of
from tailrace.protocol.topic_table import place_by_table
from tailrace.protocol.topics import LEVELS_MAX, topic_metadata
from tailrace.shard.names import DEAD_SUFFIX, name_bytes_valid

if TYPE_CHECKING:
    # From line_cy.pxd; they exist in the compiled module only.
    Group: Any
    Head: Any
    Message: Any
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyByteArray_AS_STRING: Any
    PyByteArray_FromStringAndSize: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    Staging: Any
    Topic: Any
    calloc: Any
    free: Any
    memchr: Any
    memcmp: Any
    memcpy: Any
    memset: Any
    realloc: Any
    tr_is_pub: Any
    tr_is_topic: Any
    tr_name_hash: Any
    tr_place: Any
    tr_prefetch: Any
    tr_store32: Any

_HEAD_MAX = cython.declare(cython.Py_ssize_t, HEAD_BYTES_MAX)
_AHEAD = cython.declare(cython.Py_ssize_t, 8)
_LEVELS_MAX = cython.declare(cython.Py_ssize_t, LEVELS_MAX)
_KEY = cython.declare(cython.ulonglong, int.from_bytes(os.urandom(8), "little"))


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def stage(
    buffer: bytes | bytearray | memoryview,
    start: int,
    end: int,
    max_message_bytes: int,
    want_order: bool,
    table: bytes = b"",
) -> tuple[int, list[tuple[bytes, int, bytearray]], list[int]]:
    """Stage the run of complete `pub NAME |payload` and `pub NAME topic TOPIC |payload` lines that begins at
    buffer[start] and ends before `end`.

    Stops at the first line that is anything else: another command, an invalid or reserved name, one with `/` and `%`,
    an invalid topic, a payload with its metadata above `max_message_bytes`, a head above HEAD_BYTES_MAX, a missing line
    end. Returns (the offset where it stopped, groups, order). A group is (name, messages, their unstamped frames), one
    per stream, in order of first appearance; `order` is the index of each message's group when `want_order`, else
    empty. ValueError if start:end is not in the buffer.

    With a `table` (`protocol.topic_table`) a NAME that it places in a stream is a topic there. Then this also stops at
    a line with such a name and a TOPIC, and at names that the table does not tell about.
    """
    if cython.compiled:
        return _stage_pointers(buffer, start, end, max_message_bytes, want_order, table)
    else:
        return _stage_slices(buffer, start, end, max_message_bytes, want_order, table)


def find_lf(buffer: bytes | bytearray | memoryview, start: int, end: int) -> int:
    """Returns the offset of the first LF in buffer[start:end], or -1. ValueError if start:end is not in the buffer."""
    if cython.compiled:
        return _find_lf_pointers(buffer, start, end)
    else:
        return _find_lf_slices(buffer, start, end)


def _outside(start: int, end: int, size: int) -> ValueError:
    return ValueError(f"bytes {start} to {end} of a buffer of {size}")


# Interpreted bodies.

if not cython.compiled:
    _WINDOW_BYTES = 2_048
    _WINDOW_BYTES_MAX = 1 << 17

    class _Gathered(dict[bytes, int]):
        """The groups staged so far. As a dictionary: the index of the stream that a line's head, without the bar,
        names.

        `payloads` are each stream's, in order of first appearance; `order` is the stream's index of each message.
        `metadata` is that of the heads that have any.
        """

        def __init__(self, table: bytes) -> None:
            self.table = table
            self.index: dict[bytes, int] = {}
            self.payloads: list[list[bytes]] = []
            self.order: list[int] = []
            self.metadata: dict[bytes, bytes] = {}

        def __missing__(self, head: bytes) -> int:
            parsed = _parse(head + b"|", self.table)
            if parsed is None:
                raise LookupError("not for `stage`")
            if parsed[1]:
                self.metadata[head] = parsed[1]
            key = self[head] = self.group(parsed[0])
            return key

        def group(self, name: bytes) -> int:
            key = self.index.get(name)
            if key is None:
                key = self.index[name] = len(self.payloads)
                self.payloads.append([])
            return key

        def groups(self) -> list[tuple[bytes, int, bytearray]]:
            return [
                (name, len(payloads), frames_of(payloads))
                for name, payloads in zip(self.index, self.payloads, strict=True)
                if payloads  # only the last streams can have none: those first named behind the line it stopped at
            ]

    def _parse(head: bytes, table: bytes) -> tuple[bytes, bytes] | None:
        """The stream's name and the metadata, if this is the head of a line for `stage`, up to and with the bar."""
        parsed = parse_head(head)
        if parsed is None or not table:
            return parsed
        placed = place_by_table(table, parsed[0])
        if placed is None or (placed[1] and parsed[1]):
            return None
        stream, topic = placed
        return (stream, topic_metadata(topic)) if topic else parsed

    def _stage_slices(
        buffer: bytes | bytearray | memoryview,
        start: int,
        end: int,
        max_message_bytes: int,
        want_order: bool,
        table: bytes,
    ) -> tuple[int, list[tuple[bytes, int, bytearray]], list[int]]:
        view = memoryview(buffer)
        if not 0 <= start <= end <= len(view):
            raise _outside(start, end, len(view))
        if end - start <= _WINDOW_BYTES:
            group = _stage_one(bytes(view[start:end]), max_message_bytes, table)
            if group is not None:
                return end, [group], [0] if want_order else []
        gathered = _Gathered(table)
        # Windows that grow while all of each is taken: where other commands come in between, little is read in vain.
        window = _WINDOW_BYTES
        while start < end:
            piece = bytes(view[start : start + window if start + window < end else end])
            last = piece.rfind(b"\n")
            if last < 0 and start + len(piece) < end:
                window *= 4
                continue
            taken = _stage_piece(gathered, piece, last, max_message_bytes, want_order) if last >= 0 else 0
            start += taken
            if taken <= last or last < 0:
                break
            window = min(window * 4, _WINDOW_BYTES_MAX)
        return start, gathered.groups(), gathered.order

    def _stage_one(line: bytes, max_message_bytes: int, table: bytes) -> tuple[bytes, int, bytearray] | None:
        """The group of a single line for `stage`; None when it is anything else."""
        stop = len(line) - 1
        if line.find(b"\n") != stop:
            return None
        payload_start = line.find(b"|", 0, HEAD_BYTES_MAX) + 1
        parsed = _parse(line[:payload_start], table)
        if line[-2:-1] == b"\r":
            stop -= 1
        if parsed is None or stop - payload_start + len(parsed[1]) > max_message_bytes:
            return None
        name, metadata = parsed
        if metadata:
            return name, 1, bytearray(frame_with_metadata(metadata, line[payload_start:stop]))
        return name, 1, bytearray(UNSTAMPED(32 + stop - payload_start) + line[payload_start:stop])

    def _stage_piece(gathered: _Gathered, piece: bytes, last: int, max_message_bytes: int, want_order: bool) -> int:
        """Stage the lines of piece[:last + 1], which ends in an LF; returns how many bytes of it were taken."""
        head = piece[: piece.find(b"|", 0, HEAD_BYTES_MAX) + 1]
        parsed = _parse(head, gathered.table)
        if parsed is None:
            return 0
        name, metadata = parsed
        body = piece[:last]
        payloads = _same_head(body, head) if last <= max_message_bytes else None
        if payloads is None:
            return _stage_lines(gathered, body, max_message_bytes, want_order)
        key = gathered.group(name)
        gathered.payloads[key] += [frame_with_metadata(metadata, each) for each in payloads] if metadata else payloads
        if want_order:
            gathered.order += [key] * len(payloads)
        return last + 1

    def _same_head(body: bytes, head: bytes) -> list[bytes] | None:
        """The payloads when every line has this head, else None. `body` is without the last LF."""
        line_ends = body.count(b"\n")
        if body[-1:] == b"\r":
            payloads = body[len(head) : -1].split(b"\r\n" + head)
            if len(payloads) == line_ends + 1:
                return payloads
        payloads = body[len(head) :].split(b"\n" + head)
        return [line.removesuffix(b"\r") for line in payloads] if len(payloads) == line_ends + 1 else None

    def _stage_lines(gathered: _Gathered, body: bytes, max_message_bytes: int, want_order: bool) -> int:
        """As `_stage_piece`, for lines of several streams; `body` is without the last LF."""
        parts = [line.partition(b"|") for line in _lines(body)]
        taken_bytes = len(body) + 1
        try:
            keys = [gathered[head] for head, bar, _ in parts if bar]
        except LookupError:
            keys = []
        if len(keys) < len(parts) or len(body) > max_message_bytes:  # metadata is shorter than its head
            taken = _well_formed(parts, max_message_bytes, gathered.table)
            taken_bytes = sum(map(len, body.split(b"\n")[:taken])) + taken
            del parts[taken:]
            keys = [gathered[head] for head, _, _ in parts]
        payloads, metadata = gathered.payloads, gathered.metadata
        for key, (head, _, payload) in zip(keys, parts, strict=True):
            payloads[key].append(frame_with_metadata(metadata[head], payload) if head in metadata else payload)
        if want_order:
            gathered.order += keys
        return taken_bytes

    def _lines(body: bytes) -> list[bytes]:
        """The lines, each without the CR of its end."""
        if b"\r\n" not in body and body[-1:] != b"\r":
            return body.split(b"\n")
        return [line.removesuffix(b"\r") for line in body.split(b"\n")]

    def _well_formed(parts: list[tuple[bytes, bytes, bytes]], max_message_bytes: int, table: bytes) -> int:
        """Returns how many of the lines, cut at their first bar, `stage` can handle, up to the first that it cannot."""
        for index, (head, bar, payload) in enumerate(parts):
            parsed = _parse(head + b"|", table) if bar else None
            if parsed is None or len(parsed[1]) + len(payload) > max_message_bytes:
                return index
        return len(parts)

    def _find_lf_slices(buffer: bytes | bytearray | memoryview, start: int, end: int) -> int:
        view = memoryview(buffer)
        if not 0 <= start <= end <= len(view):
            raise _outside(start, end, len(view))
        # Windows that grow, so that each of many short lines costs little however much comes after it.
        window = _WINDOW_BYTES
        while start < end:
            found = bytes(view[start : min(start + window, end)]).find(b"\n")
            if found >= 0:
                return start + found
            start += window
            window = min(window * 4, _WINDOW_BYTES_MAX)
        return -1


# Compiled bodies: staging. One pass finds the messages and their groups, a second writes each to its group's frames.


@cython.cfunc
def _stage_pointers(
    buffer: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    max_message_bytes: cython.Py_ssize_t,
    want_order: cython.bint,
    table: bytes,
) -> tuple:
    view: Py_buffer
    staging: Staging
    order: list = []
    topics: list = []  # those that are not in the buffer as they are
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    _begin(cython.address(staging))
    try:
        if start < 0 or start > end or end > view.len:
            raise _outside(start, end, view.len)
        first: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
        if table:
            staging.table = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(table))
        stop: cython.Py_ssize_t = _find_messages(cython.address(staging), first, start, end, max_message_bytes, topics)
        groups: list = _make_groups(cython.address(staging))
        _write_frames(cython.address(staging))
        if want_order:
            order = _make_order(cython.address(staging))
    finally:
        _end(cython.address(staging))
        PyBuffer_Release(cython.address(view))
    return stop, groups, order


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _begin(staging: cython.pointer(Staging)) -> cython.void:
    staging.messages = staging.first_messages
    staging.groups = staging.first_groups
    staging.slots = cython.NULL
    staging.table = cython.NULL
    staging.topics = cython.NULL
    staging.message_count = staging.group_count = staging.slot_count = 0
    staging.message_room = 64
    staging.group_room = 8


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _end(staging: cython.pointer(Staging)) -> cython.void:
    if staging.messages != staging.first_messages:
        free(staging.messages)
    if staging.groups != staging.first_groups:
        free(staging.groups)
    free(staging.slots)
    free(staging.topics)


@cython.cfunc
@cython.exceptval(-1)
def _find_messages(
    staging: cython.pointer(Staging),
    first: cython.p_const_uchar,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    max_message_bytes: cython.Py_ssize_t,
    topics: list,
) -> cython.Py_ssize_t:
    """Fill `staging.messages`; returns where the run of lines for `stage` ends."""
    line: cython.p_const_uchar = first + start
    limit: cython.p_const_uchar = first + end
    last: cython.Py_ssize_t = -1  # the group of the line before, and the one that followed it the last time
    group: cython.Py_ssize_t = -1
    head: Head
    payload: cython.p_const_uchar
    line_end: cython.p_const_uchar
    length: cython.Py_ssize_t
    metadata_bytes: cython.Py_ssize_t
    known: cython.bint
    while line < limit:
        # Most lines are for the stream of the line before, or for the one that followed it before, and written alike.
        known = True
        if last >= 0 and _begins_as(line, limit, cython.address(staging.groups[last])):
            group = last
        elif last >= 0 and _begins_as(line, limit, cython.address(staging.groups[staging.groups[last].next])):
            group = staging.groups[last].next
        else:
            known = False
        if known:
            payload = line + staging.groups[group].head_bytes
            metadata_bytes = staging.groups[group].metadata_bytes
        else:
            _cut_head(line, limit, cython.address(head))
            payload = head.payload
            if payload == cython.NULL or not (head.plain_topic or _resolve_topic(cython.address(head), topics)):
                break
            if staging.table != cython.NULL and not _place(staging.table, cython.address(head)):
                break
            metadata_bytes = _metadata_bytes(head.topic_length)
        line_end = cython.cast(cython.p_const_uchar, memchr(payload, 10, limit - payload))
        if line_end == cython.NULL:
            break
        length = line_end - payload
        if length > 0 and payload[length - 1] == 13:
            length -= 1
        if length + metadata_bytes > max_message_bytes:
            break
        if not known:
            group = _group_of(staging, cython.address(head))
            if group < 0:
                break
            staging.groups[group].head = line
            staging.groups[group].head_bytes = payload - line
            staging.groups[group].topic.text = head.topic
            staging.groups[group].topic.length = head.topic_length
            staging.groups[group].metadata_bytes = metadata_bytes
            if last >= 0:
                staging.groups[last].next = group
        last = group
        _add_message(staging, payload, length, group)
        line = line_end + 1
    return line - first


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _begins_as(line: cython.p_const_uchar, limit: cython.p_const_uchar, group: cython.pointer(Group)) -> cython.bint:
    """Returns whether a line has exactly the head of this group's last parsed line."""
    return limit - line >= group.head_bytes and memcmp(line, group.head, group.head_bytes) == 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _cut_head(line: cython.p_const_uchar, limit: cython.p_const_uchar, head: cython.pointer(Head)) -> cython.void:
    """Parses `pub NAME |` or `pub NAME topic TOPIC |`; `head.payload` stays NULL if the line is anything else."""
    at: cython.p_const_uchar = line + 4
    head.payload = cython.NULL
    head.plain = head.plain_topic = True
    head.topic_length = 0
    if limit - line > _HEAD_MAX:
        limit = line + _HEAD_MAX
    if limit - line < 6 or not tr_is_pub(line):
        return
    while at < limit and (at[0] == 32 or at[0] == 9):
        at += 1
    head.name = at
    while at < limit and at[0] > 32 and at[0] != 124:
        if at[0] > 126:
            head.plain = False
        at += 1
    head.name_length = cython.cast(cython.uint, at - head.name)
    if head.name_length == 0 or head.name_length > 200 or head.name[0] == 36:
        return
    if _has(head, 37) and _has(head, 47):  # % and /: it is written as a topic
        return
    while at < limit and (at[0] == 32 or at[0] == 9):
        at += 1
    if limit - at > 6 and at[0] != 124 and at > head.name + head.name_length and tr_is_topic(at):
        at = _cut_topic(at + 6, limit, head)
    if at < limit and at[0] == 124:
        head.payload = at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _has(head: cython.pointer(Head), byte: cython.int) -> cython.bint:
    """Whether the name has this byte."""
    return memchr(head.name, byte, head.name_length) != cython.NULL


@cython.cfunc
@cython.exceptval(check=False)
def _cut_topic(
    at: cython.p_const_uchar, limit: cython.p_const_uchar, head: cython.pointer(Head)
) -> cython.p_const_uchar:
    """Returns where the blanks behind the word end; `limit` if no topic can be made of it."""
    levels: cython.Py_ssize_t = 1
    while at < limit and (at[0] == 32 or at[0] == 9):
        at += 1
    head.topic = at
    while at < limit and at[0] > 32 and at[0] != 124:
        if at[0] > 126 or at[0] == 37:  # %
            head.plain_topic = False
        elif at[0] == 47:
            levels += 1
        elif at[0] == 35 or at[0] == 43:  # # and +
            return limit
        at += 1
    head.topic_length = cython.cast(cython.uint, at - head.topic)
    if head.topic_length == 0 or levels > _LEVELS_MAX:
        return limit
    while at < limit and (at[0] == 32 or at[0] == 9):
        at += 1
    return at


@cython.cfunc
@cython.exceptval(-1)
def _resolve_topic(head: cython.pointer(Head), topics: list) -> cython.int:
    """Finds the topic of a word with escapes or other bytes than ASCII, which `topics` keeps. Returns 0 without any."""
    topic: object = topic_of(_bytes_at(head.topic, head.topic_length))
    if topic is None:
        return 0
    topics.append(topic)
    head.topic = cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(topic))
    head.topic_length = cython.cast(cython.uint, len(cython.cast(bytes, topic)))
    return 1


@cython.cfunc
@cython.exceptval(-1)
def _place(table: cython.p_const_uchar, head: cython.pointer(Head)) -> cython.int:
    """Makes a name that lies in a stream the topic, and the stream the name; 0 if `stage` takes no such line."""
    stream: cython.p_const_uchar = cython.NULL
    length: cython.uint = 0
    placed: cython.int = tr_place(table, head.name, head.name_length, cython.address(stream), cython.address(length))
    if placed <= 0:
        return placed != -1
    if head.topic_length or not (head.plain or name_bytes_valid(_bytes_at(head.name, head.name_length))):
        return 0
    head.topic, head.topic_length = head.name, head.name_length
    head.name, head.name_length = stream, length
    head.plain = True
    return 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _metadata_bytes(topic_length: cython.uint) -> cython.Py_ssize_t:
    """The size of a msgpack map with a text of fewer than 256 bytes; 0 for no topic."""
    if topic_length == 0:
        return 0
    return topic_length + (4 if topic_length < 32 else 5)


@cython.cfunc
@cython.exceptval(-2)
def _group_of(staging: cython.pointer(Staging), head: cython.pointer(Head)) -> cython.Py_ssize_t:
    """Returns the index of the stream's group, a new one if needed; -1 if the name is invalid."""
    hashed: cython.ulonglong = tr_name_hash(head.name, head.name_length, _KEY)
    index: cython.Py_ssize_t
    group: cython.pointer(Group)
    if staging.slots == cython.NULL:
        for index in range(staging.group_count):
            group = cython.address(staging.groups[index])
            if group.hash == hashed and _same_name(group, head):
                return index
        return _new_group(staging, head, hashed)
    slot: cython.Py_ssize_t = hashed & (staging.slot_count - 1)
    while staging.slots[slot] != 0:
        index = staging.slots[slot] - 1
        group = cython.address(staging.groups[index])
        if group.hash == hashed and _same_name(group, head):
            return index
        slot = (slot + 1) & (staging.slot_count - 1)
    return _new_group(staging, head, hashed)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _same_name(group: cython.pointer(Group), head: cython.pointer(Head)) -> cython.bint:
    return group.name_length == head.name_length and memcmp(group.name, head.name, head.name_length) == 0


@cython.cfunc
@cython.exceptval(-2)
def _new_group(
    staging: cython.pointer(Staging), head: cython.pointer(Head), hashed: cython.ulonglong
) -> cython.Py_ssize_t:
    if not head.plain and not name_bytes_valid(_bytes_at(head.name, head.name_length)):
        return -1
    has_sign: cython.bint = head.name_length > 5 and head.name[head.name_length - 5] == 36  # as in /$dead
    if has_sign and _bytes_at(head.name, head.name_length).endswith(DEAD_SUFFIX):
        return -1
    index: cython.Py_ssize_t = staging.group_count
    if index == staging.group_room:
        _grow_groups(staging)
    group: cython.pointer(Group) = cython.address(staging.groups[index])
    group.name = head.name
    group.name_length = head.name_length
    group.hash = hashed
    group.count = group.nbytes = 0
    group.next = index
    staging.group_count = index + 1
    if staging.slots != cython.NULL:
        _take_slot(staging, index)
    return index


@cython.cfunc
@cython.exceptval(-1)
def _grow_groups(staging: cython.pointer(Staging)) -> cython.int:
    """Room for twice as many groups, and a hash table for them. MemoryError."""
    index: cython.Py_ssize_t
    room: cython.Py_ssize_t = staging.group_room * 4
    slot_count: cython.Py_ssize_t = room * 2
    slots: cython.p_int = cython.cast(cython.p_int, calloc(slot_count, cython.sizeof(cython.int)))
    if slots == cython.NULL:
        raise MemoryError
    free(staging.slots)
    staging.slots = slots
    staging.slot_count = slot_count
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
@cython.exceptval(-1)
def _add_message(
    staging: cython.pointer(Staging),
    payload: cython.p_const_uchar,
    length: cython.Py_ssize_t,
    group: cython.Py_ssize_t,
) -> cython.int:
    """The topic is that of the group's last line."""
    if staging.message_count == staging.message_room:
        _grow_messages(staging)
    message: cython.pointer(Message) = cython.address(staging.messages[staging.message_count])
    message.payload = payload
    message.length = cython.cast(cython.uint, length)
    message.group = cython.cast(cython.uint, group)
    if staging.groups[group].metadata_bytes:
        if staging.topics == cython.NULL:
            _grow_topics(staging, 0)
        staging.topics[staging.message_count] = staging.groups[group].topic
    staging.message_count += 1
    staging.groups[group].count += 1
    staging.groups[group].nbytes += length + 32 + staging.groups[group].metadata_bytes
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _grow_messages(staging: cython.pointer(Staging)) -> cython.int:
    """Room for four times as many messages. MemoryError."""
    room: cython.Py_ssize_t = staging.message_room * 4
    held: cython.pointer(Message) = cython.NULL if staging.messages == staging.first_messages else staging.messages
    messages: cython.pointer(Message) = cython.cast(
        cython.pointer(Message), realloc(held, room * cython.sizeof(Message))
    )
    if messages == cython.NULL:
        raise MemoryError
    if held == cython.NULL:
        memcpy(messages, staging.first_messages, staging.message_count * cython.sizeof(Message))
    staging.messages = messages
    staging.message_room = room
    if staging.topics != cython.NULL:
        _grow_topics(staging, staging.message_count)
    return 0


@cython.cfunc
@cython.exceptval(-1)
def _grow_topics(staging: cython.pointer(Staging), count: cython.Py_ssize_t) -> cython.int:
    """Room for as many topics as messages, of which `count` are there. MemoryError."""
    nbytes: cython.Py_ssize_t = staging.message_room * cython.sizeof(Topic)
    topics: cython.pointer(Topic) = cython.cast(cython.pointer(Topic), realloc(staging.topics, nbytes))
    if topics == cython.NULL:
        raise MemoryError
    memset(topics + count, 0, (staging.message_room - count) * cython.sizeof(Topic))
    staging.topics = topics
    return 0


@cython.cfunc
def _make_groups(staging: cython.pointer(Staging)) -> list:
    """The groups as Python has them, their frames to be written yet."""
    groups: list = []
    index: cython.Py_ssize_t
    group: cython.pointer(Group)
    for index in range(staging.group_count):
        group = cython.address(staging.groups[index])
        frames: bytearray = PyByteArray_FromStringAndSize(cython.NULL, group.nbytes)
        group.out = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(frames))
        groups.append((_bytes_at(group.name, group.name_length), group.count, frames))
    return groups


@cython.cfunc
@cython.exceptval(check=False)
def _write_frames(staging: cython.pointer(Staging)) -> cython.void:
    index: cython.Py_ssize_t
    message: cython.pointer(Message)
    group: cython.pointer(Group)
    out: cython.p_uchar
    # The compiler would read them again behind each byte that is written: that may be anywhere.
    messages: cython.pointer(Message) = staging.messages
    groups: cython.pointer(Group) = staging.groups
    topics: cython.pointer(Topic) = staging.topics
    # With many streams each message goes to another place in memory: it is asked for a few messages before.
    near: cython.Py_ssize_t = staging.message_count - _AHEAD if staging.group_count > 1 else 0
    count: cython.Py_ssize_t = staging.message_count
    for index in range(count):
        if index < near:
            out = groups[messages[index + _AHEAD].group].out
            tr_prefetch(out)
            tr_prefetch(out + 64)
            tr_prefetch(out + 128)
        message = cython.address(messages[index])
        group = cython.address(groups[message.group])
        out = group.out
        tr_store32(out, message.length + 32)
        memset(out + 4, 0, 28)
        if topics != cython.NULL and topics[index].length:
            out = _write_metadata(out, message.length, cython.address(topics[index]))
        else:
            out += 32
        memcpy(out, message.payload, message.length)
        group.out = out + message.length


@cython.cfunc
@cython.exceptval(check=False)
def _write_metadata(out: cython.p_uchar, payload_length: cython.uint, topic: cython.pointer(Topic)) -> cython.p_uchar:
    """Writes the frame's length and its metadata, the map {"t": topic}; returns where the payload belongs."""
    nbytes: cython.Py_ssize_t = _metadata_bytes(topic.length)
    tr_store32(out, payload_length + 32 + cython.cast(cython.uint, nbytes))
    out[30] = nbytes & 255
    out[31] = nbytes >> 8
    out[32], out[33], out[34] = 0x81, 0xA1, 0x74  # a map of one key, "t"
    if topic.length < 32:
        out[35] = 0xA0 | topic.length
        out += 36
    else:
        out[35], out[36] = 0xD9, topic.length
        out += 37
    memcpy(out, topic.text, topic.length)
    return out + topic.length


@cython.cfunc
def _make_order(staging: cython.pointer(Staging)) -> list:
    if staging.group_count == 1:
        return [0] * staging.message_count
    order: list = []
    index: cython.Py_ssize_t
    for index in range(staging.message_count):
        order.append(staging.messages[index].group)
    return order


@cython.cfunc
@cython.inline
def _bytes_at(source: cython.p_const_uchar, length: cython.Py_ssize_t) -> bytes:
    return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, source), length)


@cython.cfunc
def _find_lf_pointers(buffer: object, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> object:
    view: Py_buffer
    PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
    position: cython.Py_ssize_t = -1
    try:
        if start < 0 or start > end or end > view.len:
            raise _outside(start, end, view.len)
        first: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf)
        found: cython.p_const_uchar = cython.cast(cython.p_const_uchar, memchr(first + start, 10, end - start))
        if found != cython.NULL:
            position = found - first
    finally:
        PyBuffer_Release(cython.address(view))
    return position
