"""Leaf: runs of datagrams that subscribe, done in the table of subscriptions, and their answers. Stateless.

Interpreted, it does one after the other by the functions of `table_cy`; compiled, by pointers. Load this module through
`shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from runs_cy.pxd)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

if TYPE_CHECKING:
    # From runs_cy.pxd; they exist in the compiled module only.
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    _find_peer: Any
    _octets_of: Any
    _subscribe: Any
    _topic_length: Any
    _topic_start: Any
    memcpy: Any
    tr_place: Any

NAME_BYTES = 28
ENTRY_BYTES = 40
"""Of an answer: its address, 4 bytes of nothing, its place and its length among the texts."""
TOPIC_BYTES_MAX = 1_024
LEVELS_MAX = 127
FULL = -1
"""Of the outcomes of `table_cy.subscribe`."""

_NAME_WORDS = cython.declare(cython.Py_ssize_t, 7)
_ENTRY_WORDS = cython.declare(cython.Py_ssize_t, 10)


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def subscribe_run(
    table: Any,
    datagrams: tuple[Any, Any, Any, Any],
    start: int,
    count: int,
    rules: bytes,
    default_stream: bytes,
    numbers: Any,
    is_trusted: bool,
    now_s: int,
    ending: bytes,
    answers: tuple[bytearray, bytearray],
) -> tuple[int, list[tuple[int, bytes]]]:
    """Takes datagrams from number `start` on, until one is not a `SUB` that it can do.

    datagrams: their slots, and their places there, addresses and lengths. It does those for a topic of printable
    ASCII without wildcards whose stream is found by `rules` (`protocol.topic_table`, as in `packets_cy.stage`) and has
    one of the `numbers`, from 0 on, and that come from an address with a subscription, or from any if `is_trusted`.
    Their answers end with `ending`: entries and texts in `answers`, which must have room for all of them. Returns (the
    number of the first datagram that is left, number and topic of each topic that is new).
    """
    if cython.compiled:
        return _run_pointers(
            table, datagrams, start, count, rules, default_stream, numbers, is_trusted, now_s, ending, answers
        )
    else:
        return _run_slices(
            table, datagrams, start, count, rules, default_stream, numbers, is_trusted, now_s, ending, answers
        )


# Interpreted bodies.

if not cython.compiled:
    import re

    from tailrace.protocol.topic_table import place_by_rule
    from tailrace.shard.leaves import load

    _leaf = load("tailrace.broker.udp.table_cy")
    _PLAIN = re.compile(rb"SUB[ \t\n\v\f\r]+(?!reply-to/)([!-\"%-*,-~]{1,1024})(?:[ \t\n\v\f\r]|\Z)")

    def _run_slices(
        table: Any,
        datagrams: tuple[Any, Any, Any, Any],
        start: int,
        count: int,
        rules: bytes,
        default_stream: bytes,
        numbers: Any,
        is_trusted: bool,
        now_s: int,
        ending: bytes,
        answers: tuple[bytearray, bytearray],
    ) -> tuple[int, list[tuple[int, bytes]]]:
        slots, starts, names, lengths = datagrams
        entries, texts = answers
        new: list[tuple[int, bytes]] = []
        text_at = 0
        for at in range(start, count):
            length = int.from_bytes(lengths[4 * at : 4 * at + 4], "little")
            place = int.from_bytes(starts[4 * at : 4 * at + 4], "little")
            found = _PLAIN.match(bytes(slots[place : place + length]))
            if found is None or found[1].count(b"/") > LEVELS_MAX:
                return at, new
            topic, name = found[1], bytes(names[NAME_BYTES * at : NAME_BYTES * (at + 1)])
            placed = place_by_rule(rules, topic, default_stream)
            number = -1 if placed is None else numbers[placed[0]]
            if number < 0 or not (is_trusted or _leaf.is_known(table, name)):
                return at, new
            outcome, _record, is_new = _leaf.subscribe(table, name, topic, False, number, now_s)
            if outcome == FULL:
                return at, new
            if is_new:
                new.append((number, topic))
            text = b"OK SUB " + topic + ending
            place = (at - start) * ENTRY_BYTES
            entries[place : place + ENTRY_BYTES] = (
                name + bytes(4) + text_at.to_bytes(4, "little") + len(text).to_bytes(4, "little")
            )
            texts[text_at : text_at + len(text)] = text
            text_at += len(text)
        return count, new


# Compiled bodies.


@cython.cfunc
def _run_pointers(
    table: object,
    datagrams: tuple,
    start: cython.Py_ssize_t,
    count: cython.Py_ssize_t,
    rules: bytes,
    default_stream: bytes,
    numbers: Any,
    is_trusted: cython.bint,
    now_s: cython.Py_ssize_t,
    ending: bytes,
    answers: tuple,
) -> tuple:
    octets: cython.p_uchar = _octets_of(table)
    words: cython.p_uint = cython.cast(cython.p_uint, octets)
    slots: cython.p_uchar = _octets_of(datagrams[0])
    starts: cython.p_uint = cython.cast(cython.p_uint, _octets_of(datagrams[1]))
    names: cython.p_uint = cython.cast(cython.p_uint, _octets_of(datagrams[2]))
    lengths: cython.p_uint = cython.cast(cython.p_uint, _octets_of(datagrams[3]))
    entries: cython.p_uint = cython.cast(cython.p_uint, _octets_of(answers[0]))
    texts: cython.p_uchar = _octets_of(answers[1])
    at: cython.Py_ssize_t = start
    text_at: cython.Py_ssize_t = 0
    text_bytes: cython.Py_ssize_t
    begin: cython.Py_ssize_t
    length: cython.Py_ssize_t
    number: cython.Py_ssize_t
    entry: cython.p_uint
    new: list = []
    while at < count:
        data: cython.p_uchar = slots + starts[at]
        begin = _topic_start(data, lengths[at])
        if data[0] != 83 or data[1] != 85 or data[2] != 66:
            begin = 0
        length = _topic_length(data, begin, lengths[at]) if begin else 0
        if not length or not (is_trusted or _find_peer(words, names, _NAME_WORDS * at)):
            break
        stream: object = _stream_of(rules, data + begin, length, default_stream)
        number = -1 if stream is None else numbers[stream]
        if number < 0:
            break
        outcome: tuple = _subscribe(words, octets, names, _NAME_WORDS * at, data + begin, length, False, number, now_s)
        if outcome[0] == FULL:
            break
        if outcome[2]:
            new.append((number, PyBytes_FromStringAndSize(cython.cast(cython.p_char, data) + begin, length)))
        text_bytes = 7 + length + len(ending)
        memcpy(texts + text_at, cython.cast(cython.p_char, b"OK SUB "), 7)
        memcpy(texts + text_at + 7, data + begin, length)
        memcpy(texts + text_at + 7 + length, PyBytes_AS_STRING(ending), len(ending))
        entry = entries + _ENTRY_WORDS * (at - start)
        memcpy(entry, names + _NAME_WORDS * at, NAME_BYTES)
        entry[7], entry[8], entry[9] = 0, text_at, text_bytes
        text_at += text_bytes
        at += 1
    return at, new


@cython.cfunc
def _stream_of(rules: bytes, topic: cython.p_uchar, length: cython.Py_ssize_t, default_stream: bytes) -> object:
    """By the rules of topics; None if they do not tell."""
    stream: cython.p_const_uchar = cython.NULL
    stream_bytes: cython.uint = 0
    if not len(rules):
        return default_stream
    placed: cython.int = tr_place(
        cython.cast(cython.p_const_uchar, PyBytes_AS_STRING(rules)),
        topic,
        length,
        cython.address(stream),
        cython.address(stream_bytes),
    )
    if placed < 0:
        return None
    if stream == cython.NULL:
        return default_stream
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, stream), stream_bytes)
