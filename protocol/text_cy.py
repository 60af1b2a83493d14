"""Leaf: what text peers are sent: frames rendered as `msg` lines, acknowledgements. Stateless; bytes in, bytes out.

Compiled, the bodies are loops over pointers; interpreted, they are `struct`, slices and formatted bytes. Both give the
same bytes, which a property test holds them to. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from text_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.frame import FAULT_CRC, FAULT_LENGTH, FAULT_SEQ, MAX_FRAME_BYTES
from tailrace.shard.topics import topic_in

if TYPE_CHECKING:
    # From text_cy.pxd; they exist in the compiled module only.
    Digits: Any
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    Walk: Any
    crc32c_extend: Any
    free: Any
    malloc: Any
    memcpy: Any
    tr_count_up: Any
    tr_digit_count: Any
    tr_load16: Any
    tr_load32: Any
    tr_load64: Any
    tr_make_digits: Any
    tr_put_digits: Any
    tr_put_word: Any
    tr_set_digits: Any
    tr_topic: Any
    tr_word_bytes: Any

_FRAME_MAX = cython.declare(cython.uint, MAX_FRAME_BYTES)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def render(
    content: bytes | bytearray | memoryview,
    start: int,
    end: int,
    next_seq: int,
    limit_seq: int,
    prefix: bytes,
    check_crc: bool,
    limit_bytes: int,
    gaps: bool = False,
) -> tuple[bytes, int, int, str]:
    """Render the stamped frames of content[start:end] as `msg NAME SEQ TIMESTAMP LENGTH |payload` and CRLF.

    `prefix` is `msg NAME ` with its blank. Frames must be next_seq, next_seq+1, …, or with `gaps` have rising seqs; the
    walk ends before `limit_seq`, at a frame that is not whole, before the frame that would pass `limit_bytes` of
    content (but never before the first), or at a fault. LENGTH is the payload's. A message with a topic has it behind
    LENGTH, with %XX for bytes that a word cannot have; other metadata is passed over. Gives (text, frames, content
    bytes, fault): fault is "" or one of FAULT_LENGTH, FAULT_CRC, FAULT_SEQ of `shard.frame`. ValueError if start:end is
    not in the buffer.
    """
    if cython.compiled:
        return _render_pointers(content, start, end, next_seq, limit_seq, prefix, check_crc, limit_bytes, gaps)
    else:
        return _render_slices(content, start, end, next_seq, limit_seq, prefix, check_crc, limit_bytes, gaps)


def acknowledge(names: list[bytes], order: list[int], first_seqs: list[int]) -> bytes:
    """A line `ok pub NAME SEQ` for each index in `order`; the seqs of names[i] count up from first_seqs[i]."""
    if cython.compiled:
        return _acknowledge_pointers(names, order, first_seqs)
    else:
        return _acknowledge_slices(names, order, first_seqs)


def _outside(start: int, end: int, size: int) -> ValueError:
    return ValueError(f"bytes {start} to {end} of a buffer of {size}")


# Interpreted bodies.

if not cython.compiled:
    import re
    import struct

    from google_crc32c import value as _crc32c_value

    _HEADER_AT = struct.Struct("<IIQQIHH").unpack_from
    _NOT_IN_WORDS = re.compile(rb"[\x00- \x7f|%]")

    def _word(topic: bytes) -> bytes:
        return _NOT_IN_WORDS.sub(lambda found: b"%%%02X" % found[0][0], topic)

    def _render_slices(
        content: bytes | bytearray | memoryview,
        start: int,
        end: int,
        next_seq: int,
        limit_seq: int,
        prefix: bytes,
        check_crc: bool,
        limit_bytes: int,
        gaps: bool,
    ) -> tuple[bytes, int, int, str]:
        view = memoryview(content)
        if not 0 <= start <= end <= len(view):
            raise _outside(start, end, len(view))
        source = bytes(view[start:end])
        position, size, seq, fault, count = 0, len(source), next_seq, "", 0
        header_at, crc_of, lines = _HEADER_AT, _crc32c_value, []
        while seq < limit_seq and size - position >= 32:
            length, crc, number, timestamp_us, _, _, metadata_bytes = header_at(source, position)
            if not 32 <= length <= MAX_FRAME_BYTES or metadata_bytes > length - 32:
                fault = FAULT_LENGTH
                break
            stop = position + length
            if stop > size or (stop > limit_bytes and position):
                break
            if check_crc and crc_of(source[position + 8 : stop]) != crc:
                fault = FAULT_CRC
                break
            if number < seq if gaps else number != seq:
                fault = FAULT_SEQ
                break
            seq = number
            payload = source[position + 32 + metadata_bytes : stop]
            topic = topic_in(source[position + 32 : position + 32 + metadata_bytes]) if metadata_bytes else b""
            if topic:
                head = (prefix, seq, timestamp_us, len(payload), _word(topic))
                lines.append(b"%b%d %d %d %b |%b\r\n" % (*head, payload))
            else:
                lines.append(b"%b%d %d %d |%b\r\n" % (prefix, seq, timestamp_us, len(payload), payload))
            position = stop
            seq += 1
            count += 1
        return b"".join(lines), count, position, fault

    def _acknowledge_slices(names: list[bytes], order: list[int], first_seqs: list[int]) -> bytes:
        prefixes = [b"ok pub " + name for name in names]
        if len(names) == 1:
            prefix, first = prefixes[0], first_seqs[0]
            return b"".join([b"%b %d\r\n" % (prefix, seq) for seq in range(first, first + len(order))])
        seqs = list(first_seqs)
        lines = []
        for key in order:
            lines.append(b"%b %d\r\n" % (prefixes[key], seqs[key]))
            seqs[key] += 1
        return b"".join(lines)


# Compiled bodies: rendering. One pass checks the frames and adds up the text's length, a second writes it.


@cython.cfunc
def _render_pointers(
    content: object,
    start: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    next_seq: cython.ulonglong,
    limit_seq: cython.ulonglong,
    prefix: bytes,
    check_crc: cython.bint,
    limit_bytes: cython.Py_ssize_t,
    gaps: cython.bint,
) -> tuple:
    view: Py_buffer
    walk: Walk
    PyObject_GetBuffer(content, cython.address(view), PyBUF_SIMPLE)
    try:
        if start < 0 or start > end or end > view.len:
            raise _outside(start, end, view.len)
        first: cython.p_const_uchar = cython.cast(cython.p_const_uchar, view.buf) + start
        walk.next_seq = next_seq
        walk.limit_seq = limit_seq
        walk.prefix_bytes = len(prefix)
        walk.gaps = gaps
        fault: str = _walk_frames(cython.address(walk), first, end - start, limit_bytes, check_crc)
        text: bytes = PyBytes_FromStringAndSize(cython.NULL, walk.text_bytes)
        _write_text(
            cython.address(walk),
            first,
            cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(prefix)),
            cython.cast(cython.p_uchar, PyBytes_AS_STRING(text)),
        )
    finally:
        PyBuffer_Release(cython.address(view))
    return text, walk.count, walk.position, fault


@cython.cfunc
def _walk_frames(
    walk: cython.pointer(Walk),
    first: cython.p_const_uchar,
    size: cython.Py_ssize_t,
    limit_bytes: cython.Py_ssize_t,
    check_crc: cython.bint,
) -> str:
    """Find how many frames are to be rendered and how long their text is; returns the fault that ended the walk."""
    position: cython.Py_ssize_t = 0
    text_bytes: cython.Py_ssize_t = 0
    seq: cython.ulonglong = walk.next_seq
    frame: cython.p_const_uchar
    length: cython.uint
    metadata_bytes: cython.uint
    payload_bytes: cython.uint
    number: cython.ulonglong
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    count: cython.ulonglong = 0
    fault: str = ""
    while seq < walk.limit_seq and size - position >= 32:
        frame = first + position
        length = tr_load32(frame)
        metadata_bytes = tr_load16(frame + 30)
        if length < 32 or length > _FRAME_MAX or metadata_bytes > length - 32:
            fault = FAULT_LENGTH
            break
        if length > size - position or (position and position + length > limit_bytes):
            break
        if check_crc and crc32c_extend(0, frame + 8, length - 8) != tr_load32(frame + 4):
            fault = FAULT_CRC
            break
        number = tr_load64(frame + 8)
        if number != seq and (number < seq or not walk.gaps):
            fault = FAULT_SEQ
            break
        seq = number
        payload_bytes = length - 32 - metadata_bytes
        # Two blanks, blank and bar, CR and LF.
        text_bytes += walk.prefix_bytes + tr_digit_count(seq) + tr_digit_count(tr_load64(frame + 16)) + 6
        text_bytes += tr_digit_count(payload_bytes) + payload_bytes
        if metadata_bytes > 0:
            topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
            if topic != cython.NULL:
                text_bytes += 1 + tr_word_bytes(topic, topic_bytes)
        position += length
        seq += 1
        count += 1
    walk.count = count
    walk.position = position
    walk.text_bytes = text_bytes
    return fault


@cython.cfunc
@cython.exceptval(check=False)
def _write_text(
    walk: cython.pointer(Walk), frame: cython.p_const_uchar, prefix: cython.p_const_uchar, out: cython.p_uchar
) -> cython.void:
    seq: Digits
    timestamp: Digits
    length: Digits
    frame_bytes: cython.uint
    metadata_bytes: cython.uint
    payload_bytes: cython.uint
    topic: cython.p_const_uchar
    topic_bytes: cython.size_t = 0
    left: cython.ulonglong = walk.count
    tr_make_digits(cython.address(seq), walk.next_seq)
    tr_make_digits(cython.address(timestamp), 0)
    tr_make_digits(cython.address(length), 0)
    while left > 0:
        frame_bytes = tr_load32(frame)
        metadata_bytes = tr_load16(frame + 30)
        payload_bytes = frame_bytes - 32 - metadata_bytes
        # Times and lengths repeat more often than not, and a seq is the one before and one.
        tr_set_digits(cython.address(timestamp), tr_load64(frame + 16))
        tr_set_digits(cython.address(length), payload_bytes)
        if walk.gaps:
            tr_set_digits(cython.address(seq), tr_load64(frame + 8))
        memcpy(out, prefix, walk.prefix_bytes)
        out += walk.prefix_bytes
        out = tr_put_digits(out, cython.address(seq))
        out[0] = 32
        out = tr_put_digits(out + 1, cython.address(timestamp))
        out[0] = 32
        out = tr_put_digits(out + 1, cython.address(length))
        if metadata_bytes > 0:
            topic = tr_topic(frame + 32, metadata_bytes, cython.address(topic_bytes))
            if topic != cython.NULL:
                out[0] = 32
                out = tr_put_word(out + 1, topic, topic_bytes)
        out[0] = 32
        out[1] = 124
        memcpy(out + 2, frame + 32 + metadata_bytes, payload_bytes)
        out += 2 + payload_bytes
        out[0] = 13
        out[1] = 10
        out += 2
        tr_count_up(cython.address(seq))
        frame += frame_bytes
        left -= 1


@cython.cfunc
def _acknowledge_pointers(names: list, order: list, first_seqs: list) -> bytes:
    streams: cython.Py_ssize_t = len(names)
    seqs: cython.p_ulonglong = cython.cast(cython.p_ulonglong, malloc((streams + 1) * cython.sizeof(cython.ulonglong)))
    if seqs == cython.NULL:
        raise MemoryError
    try:
        text: bytes = PyBytes_FromStringAndSize(cython.NULL, _acknowledgement_bytes(names, order, first_seqs, seqs))
        out: cython.p_uchar = cython.cast(cython.p_uchar, PyBytes_AS_STRING(text))
        index: cython.Py_ssize_t
        key: cython.Py_ssize_t
        seq: Digits
        for index in range(streams):
            seqs[index] = first_seqs[index]
        for index in range(len(order)):
            key = order[index]
            name: bytes = names[key]
            memcpy(out, b"ok pub ", 7)
            memcpy(out + 7, PyBytes_AS_STRING(name), len(name))
            out += 7 + len(name)
            out[0] = 32
            tr_make_digits(cython.address(seq), seqs[key])
            out = tr_put_digits(out + 1, cython.address(seq))
            out[0] = 13
            out[1] = 10
            out += 2
            seqs[key] += 1
    finally:
        free(seqs)
    return text


@cython.cfunc
@cython.exceptval(-1)
def _acknowledgement_bytes(names: list, order: list, first_seqs: list, seqs: cython.p_ulonglong) -> cython.Py_ssize_t:
    """The length of the text. IndexError when `order` names a stream that is not there."""
    size: cython.Py_ssize_t = 0
    index: cython.Py_ssize_t
    key: cython.Py_ssize_t
    for index in range(len(names)):
        seqs[index] = first_seqs[index]
    for index in range(len(order)):
        key = order[index]
        if key < 0 or key >= len(names):
            raise IndexError(f"message {index} is of stream {key} of {len(names)}")
        name: bytes = names[key]
        size += len(name) + tr_digit_count(seqs[key]) + 10
        seqs[key] += 1
    return size
