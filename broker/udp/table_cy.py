"""Leaf: the subscriptions of the UDP door in one buffer: addresses, topics, and which has which. Stateless.

The buffer is a header, three kinds of records with a table of hashes each, and names of topics in cells of 16 bytes.
All is counted in words of 32 bits. Records are numbered from 1; 0 stands for no record. Nothing in it is a place in
memory, so that another process can go on with it. Compiled, the words are reached by a pointer; interpreted, by a
memoryview: most of the bodies are the same. Load this module through `shard.leaves`.
"""
# ruff: noqa: F821 (the names under TYPE_CHECKING come from table_cy.pxd)

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    import cython
except ModuleNotFoundError:
    from tailrace.shard import _cython_shim as cython

from tailrace.shard.topics import topic_in

if TYPE_CHECKING:
    # From table_cy.pxd; they exist in the compiled module only.
    Py_buffer: Any
    PyBUF_SIMPLE: int
    PyBuffer_Release: Any
    PyBytes_AS_STRING: Any
    PyBytes_FromStringAndSize: Any
    PyObject_GetBuffer: Any
    memcmp: Any
    memcpy: Any
    tr_sort_keys: Any
    tr_topic: Any

ENTRY_BYTES = 40
"""Of a datagram to be sent: its address, 4 bytes of nothing, its place and its length among the texts."""
WORK_BYTES = 16
"""Of work space for each of them."""
FULL, RENEWED, ADDED = -1, 0, 1
"""Outcomes of `subscribe`."""

HEADER_WORDS = 128
PEER_COUNT, TOPIC_COUNT, SUB_COUNT = 12, 13, 14
"""Counts, by their words in the header."""
# The kinds of records, and the words of the header, most of them one for each kind: the most records, the masks of the
# hashes, the places of the tables of hashes and of the records, the counts, the first free record, the first that was
# never used, the words of a record, and its word with the hash. Then the cells: how many, their place, the first never
# used; a secret; the place of `collect` in the middle of a frame's subscribers; the first free cells, by length.
_PEER = cython.declare(cython.Py_ssize_t, 0)
_TOPIC = cython.declare(cython.Py_ssize_t, 1)
_SUB = cython.declare(cython.Py_ssize_t, 2)
_MOST = cython.declare(cython.Py_ssize_t, 0)
_MASK = cython.declare(cython.Py_ssize_t, 3)
_SLOTS = cython.declare(cython.Py_ssize_t, 6)
_RECORDS = cython.declare(cython.Py_ssize_t, 9)
_COUNTS = cython.declare(cython.Py_ssize_t, 12)
_FREE = cython.declare(cython.Py_ssize_t, 15)
_NEXT = cython.declare(cython.Py_ssize_t, 18)
_SIZE = cython.declare(cython.Py_ssize_t, 21)
_HASH = cython.declare(cython.Py_ssize_t, 24)
_CELLS_MAX = cython.declare(cython.Py_ssize_t, 27)
_CELLS = cython.declare(cython.Py_ssize_t, 28)
_CELL_NEXT = cython.declare(cython.Py_ssize_t, 29)
_KEY = cython.declare(cython.Py_ssize_t, 30)
_RESUME_TOPIC = cython.declare(cython.Py_ssize_t, 32)
_RESUME_SUB = cython.declare(cython.Py_ssize_t, 33)
_CELL_FREE = cython.declare(cython.Py_ssize_t, 40)
_CELL_WORDS = cython.declare(cython.Py_ssize_t, 4)
# The words of a peer, behind its name; of a topic, whose number is the caller's; of a subscription, which is in a list
# of its topic's and in one of its peer's.
_PEER_HASH = cython.declare(cython.Py_ssize_t, 7)
_PEER_SEEN = cython.declare(cython.Py_ssize_t, 8)
_PEER_FIRST = cython.declare(cython.Py_ssize_t, 9)
_PEER_SUBS = cython.declare(cython.Py_ssize_t, 10)
_TOPIC_HASH = cython.declare(cython.Py_ssize_t, 0)
_TOPIC_CELL = cython.declare(cython.Py_ssize_t, 1)
_TOPIC_LENGTH = cython.declare(cython.Py_ssize_t, 2)
_TOPIC_FIRST = cython.declare(cython.Py_ssize_t, 3)
_TOPIC_SUBS = cython.declare(cython.Py_ssize_t, 4)
_TOPIC_NUMBER = cython.declare(cython.Py_ssize_t, 5)
_TOPIC_IS_FILTER = cython.declare(cython.Py_ssize_t, 6)
_SUB_PEER = cython.declare(cython.Py_ssize_t, 0)
_SUB_TOPIC = cython.declare(cython.Py_ssize_t, 1)
_SUB_AFTER = cython.declare(cython.Py_ssize_t, 2)
_SUB_BEFORE = cython.declare(cython.Py_ssize_t, 3)
_SUB_PEER_AFTER = cython.declare(cython.Py_ssize_t, 4)
_SUB_PEER_BEFORE = cython.declare(cython.Py_ssize_t, 5)
_SUB_HASH = cython.declare(cython.Py_ssize_t, 6)
# The state of `collect`: entries, bytes of texts, texts, those not sendable; and the most of the first two.
_COUNT = cython.declare(cython.Py_ssize_t, 0)
_TEXT_AT = cython.declare(cython.Py_ssize_t, 1)
_TEXTS = cython.declare(cython.Py_ssize_t, 2)
_UNSENDABLE = cython.declare(cython.Py_ssize_t, 3)
_ENTRIES_MAX = cython.declare(cython.Py_ssize_t, 4)
_ROOM = cython.declare(cython.Py_ssize_t, 5)

_MIX = cython.declare(cython.ulonglong, 0x9E3779B97F4A7C15)
_WORD_MAX = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_DATAGRAM_MAX = cython.declare(cython.Py_ssize_t, 65_507)

Known = dict[bytes, tuple[int, ...]]


def is_compiled() -> bool:
    """Returns whether this copy of the module is the compiled one."""
    return bool(cython.compiled)


def table_bytes(subscriptions: int) -> int:
    """The size of a buffer for this many subscriptions, each with an address and a topic of its own of 48 bytes."""
    return 4 * (HEADER_WORDS + 3 * _slots_for(subscriptions) + subscriptions * (12 + 8 + 8 + 3 * 4))


def make_table(table: Any, subscriptions: int, key: int) -> None:
    """Lays a table out in a buffer of zeros of `table_bytes`. `key`: a secret number of 64 bits."""
    slots = _slots_for(subscriptions)
    words = memoryview(table).cast("B").cast("I")
    at = HEADER_WORDS
    for kind, size, hash_at in ((0, 12, 7), (1, 8, 0), (2, 8, 6)):
        words[_MOST + kind], words[_MASK + kind], words[_NEXT + kind] = subscriptions, slots - 1, 1
        words[_SIZE + kind], words[_HASH + kind] = size, hash_at
        words[_SLOTS + kind], words[_RECORDS + kind] = at, at + slots
        at += slots + subscriptions * size
    words[_CELLS_MAX], words[_CELLS], words[_CELL_NEXT] = 3 * subscriptions, at, 1
    words[_KEY], words[_KEY + 1] = key & 0xFFFFFFFF, key >> 32


def count_of(table: Any, place: int) -> int:
    """One of the counts: PEER_COUNT, TOPIC_COUNT, SUB_COUNT."""
    return int(_words_of(table)[place])


def subscribe(table: Any, name: bytes, topic: bytes, is_filter: bool, number: int, now_s: int) -> tuple[int, int, bool]:
    """Subscribes an address to a topic, or renews its lease. `number` is stored with a topic that is new.

    Returns (FULL, RENEWED or ADDED, the number of the topic's record, whether the topic is new).
    """
    words: cython.p_uint = _words_of(table)
    text: cython.p_uchar = _octets_of(topic)
    return _subscribe(words, _octets_of(table), _words_of(name), 0, text, len(topic), is_filter, number, now_s)


def unsubscribe(table: Any, name: bytes, topic: bytes) -> tuple[bool, int, int]:
    """Ends a subscription. Returns (whether there was one, the topic's record, its number if it is gone, else -1)."""
    return _unsubscribe(_words_of(table), _octets_of(table), _words_of(name), topic)


def renew(table: Any, names: Any, count: int, now_s: int) -> int:
    """Renews the leases of those of names[:count] that have subscriptions. Returns how many have."""
    return _renew(_words_of(table), _words_of(names), count, now_s)


def expire(
    table: Any, before_s: int, start: int, peers_most: int, subscriptions_most: int
) -> tuple[int, int, list[tuple[int, bytes]]]:
    """Looks at addresses from the one numbered `start` on, and ends those silent since before `before_s`.

    Returns (where to go on, 0 after the last; how many addresses have ended; the number of each topic that is gone, and
    the topic itself). It ends after `peers_most` addresses or `subscriptions_most` subscriptions.
    """
    return _expire(_words_of(table), _octets_of(table), before_s, start, peers_most, subscriptions_most)


def is_known(table: Any, name: bytes) -> bool:
    """Whether an address has a subscription."""
    return _find_peer(_words_of(table), _words_of(name), 0) > 0


def show(table: Any, start: int, count: int) -> tuple[bool, list[tuple[bytes, bytes, int]]]:
    """Topics, addresses and when those sent last, of records `start` to `start + count`; whether there are more."""
    words: cython.p_uint = _words_of(table)
    found: list[tuple[bytes, bytes, int]] = []
    number: cython.Py_ssize_t
    base: cython.Py_ssize_t
    for number in range(max(start, 1), min(start + count, words[_NEXT + _SUB])):
        base = _record(words, _SUB, number)
        if _find_sub(words, words[base], words[base + _SUB_TOPIC]) == number:  # not of a free one
            topic: bytes = _gone_topic(words, _octets_of(table), _record(words, _TOPIC, words[base + _SUB_TOPIC]))[1]
            base = _record(words, _PEER, words[base])
            found.append((topic, _bytes_at(_octets_of(table), 4 * base, 28), words[base + _PEER_SEEN]))
    return start + count < words[_NEXT + _SUB], found


def forget_place(table: Any) -> None:
    """The frame in the middle of whose subscribers `collect` has ended is not gone on with."""
    words: cython.p_uint = _words_of(table)
    words[_RESUME_TOPIC] = words[_RESUME_SUB] = 0


def collect(
    table: Any,
    frames: Any,
    position: int,
    stream: bytes,
    known: Known | None,
    find: Callable[[bytes], tuple[int, ...]],
    before_s: int,
    entries: bytearray,
    work: bytearray,
    texts: bytearray,
) -> tuple[int, int, int, int]:
    """Finds the subscribers of whole stamped frames from frames[position:] on, and makes their datagrams.

    `stream` is the topic of a message without one. known, find: the records of the filters that match a topic; `known`
    is None without filters. Addresses silent since before `before_s` get nothing. The datagrams are
    written to `texts`, and what goes where to `entries`, by address, and by seq for each. It ends when one of them is
    full; in the middle of a frame's subscribers the next call goes on with them. Returns (the position, the messages
    before it, the entries, how many datagrams cannot be sent, as they would be too long, or their topic has a blank).
    """
    words: cython.p_uint = _words_of(table)
    content: cython.p_uchar = _octets_of(frames)
    return _collect(words, content, len(frames), position, stream, known, find, before_s, entries, work, texts)


def _slots_for(number: int) -> int:
    """The size of a table of hashes that is at most half full."""
    return 2 << (number - 1).bit_length()


# The bodies, for pointers and memoryviews alike.


@cython.cfunc
def _octets_of(buffer: Any) -> cython.p_uchar:
    """The bytes of a buffer that its holder keeps, and that does not change its size."""
    if cython.compiled:
        view: Py_buffer
        PyObject_GetBuffer(buffer, cython.address(view), PyBUF_SIMPLE)
        octets: cython.p_uchar = cython.cast(cython.p_uchar, view.buf)
        PyBuffer_Release(cython.address(view))
        return octets
    else:
        return memoryview(buffer).cast("B")


@cython.cfunc
def _words_of(buffer: Any) -> cython.p_uint:
    if cython.compiled:
        return cython.cast(cython.p_uint, _octets_of(buffer))
    else:
        return memoryview(buffer).cast("B").cast("I")


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _key(words: cython.p_uint) -> cython.ulonglong:
    return cython.cast(cython.ulonglong, words[_KEY]) | cython.cast(cython.ulonglong, words[_KEY + 1]) << 32


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash_name(words: cython.p_uint, name: cython.p_uint, at: cython.Py_ssize_t) -> cython.uint:
    mixed: cython.ulonglong = _key(words)
    place: cython.Py_ssize_t
    for place in range(7):
        mixed = ((mixed ^ name[at + place]) * _MIX) & _WORD_MAX
        mixed ^= mixed >> 29
    return (mixed >> 32) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash_topic(words: cython.p_uint, topic: cython.p_uchar, length: cython.Py_ssize_t) -> cython.uint:
    mixed: cython.ulonglong = _key(words) ^ cython.cast(cython.ulonglong, length)
    place: cython.Py_ssize_t
    for place in range(length):
        mixed = ((mixed ^ topic[place]) * _MIX) & _WORD_MAX
        mixed ^= mixed >> 29
    return (mixed >> 32) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _hash_pair(words: cython.p_uint, peer: cython.Py_ssize_t, topic: cython.Py_ssize_t) -> cython.uint:
    mixed: cython.ulonglong = _key(words)
    mixed = ((mixed ^ (cython.cast(cython.ulonglong, peer) << 32 | topic)) * _MIX) & _WORD_MAX
    mixed ^= mixed >> 29
    mixed = (mixed * _MIX) & _WORD_MAX
    return (mixed >> 32) & 0xFFFFFFFF


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _record(words: cython.p_uint, kind: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The word at which a record begins."""
    return words[_RECORDS + kind] + (number - 1) * words[_SIZE + kind]


@cython.cfunc
@cython.exceptval(check=False)
def _find_peer(words: cython.p_uint, name: cython.p_uint, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    hashed: cython.uint = _hash_name(words, name, at)
    mask: cython.Py_ssize_t = words[_MASK + _PEER]
    slot: cython.Py_ssize_t = hashed & mask
    number: cython.Py_ssize_t
    base: cython.Py_ssize_t
    place: cython.Py_ssize_t
    while True:
        number = words[words[_SLOTS + _PEER] + slot]
        if number == 0:
            return 0
        base = _record(words, _PEER, number)
        if words[base + _PEER_HASH] == hashed:
            place = 0
            while place < 7 and words[base + place] == name[at + place]:
                place += 1
            if place == 7:
                return number
        slot = (slot + 1) & mask


@cython.cfunc
@cython.exceptval(check=False)
def _find_topic(
    words: cython.p_uint, octets: cython.p_uchar, topic: cython.p_uchar, length: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    hashed: cython.uint = _hash_topic(words, topic, length)
    mask: cython.Py_ssize_t = words[_MASK + _TOPIC]
    slot: cython.Py_ssize_t = hashed & mask
    number: cython.Py_ssize_t
    base: cython.Py_ssize_t
    start: cython.Py_ssize_t
    while True:
        number = words[words[_SLOTS + _TOPIC] + slot]
        if number == 0:
            return 0
        base = _record(words, _TOPIC, number)
        if words[base + _TOPIC_HASH] == hashed and words[base + _TOPIC_LENGTH] == length:
            start = _cell_start(words, words[base + _TOPIC_CELL])
            if cython.compiled:
                if memcmp(octets + start, topic, length) == 0:
                    return number
            elif octets[start : start + length] == topic[:length]:
                return number
        slot = (slot + 1) & mask


@cython.cfunc
@cython.exceptval(check=False)
def _cell_start(words: cython.p_uint, cell: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The byte at which a cell begins."""
    return 4 * (words[_CELLS] + (cell - 1) * _CELL_WORDS)


@cython.cfunc
@cython.exceptval(check=False)
def _find_sub(words: cython.p_uint, peer: cython.Py_ssize_t, topic: cython.Py_ssize_t) -> cython.Py_ssize_t:
    mask: cython.Py_ssize_t = words[_MASK + _SUB]
    slot: cython.Py_ssize_t = _hash_pair(words, peer, topic) & mask
    number: cython.Py_ssize_t
    base: cython.Py_ssize_t
    while True:
        number = words[words[_SLOTS + _SUB] + slot]
        if number == 0:
            return 0
        base = _record(words, _SUB, number)
        if words[base + _SUB_PEER] == peer and words[base + _SUB_TOPIC] == topic:
            return number
        slot = (slot + 1) & mask


@cython.cfunc
@cython.exceptval(check=False)
def _enter(words: cython.p_uint, kind: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.void:
    """Puts a record that has its hash into the table of hashes."""
    slots: cython.Py_ssize_t = words[_SLOTS + kind]
    mask: cython.Py_ssize_t = words[_MASK + kind]
    slot: cython.Py_ssize_t = words[_record(words, kind, number) + words[_HASH + kind]] & mask
    while words[slots + slot]:
        slot = (slot + 1) & mask
    words[slots + slot] = number
    words[_COUNTS + kind] += 1


@cython.cfunc
@cython.exceptval(check=False)
def _leave(words: cython.p_uint, kind: cython.Py_ssize_t, number: cython.Py_ssize_t) -> cython.void:
    """Takes a record out of its table of hashes, moves up those behind it, and frees it."""
    slots: cython.Py_ssize_t = words[_SLOTS + kind]
    mask: cython.Py_ssize_t = words[_MASK + kind]
    hash_at: cython.Py_ssize_t = words[_HASH + kind]
    hole: cython.Py_ssize_t = words[_record(words, kind, number) + hash_at] & mask
    home: cython.Py_ssize_t
    while words[slots + hole] != number:
        hole = (hole + 1) & mask
    probe: cython.Py_ssize_t = (hole + 1) & mask
    while words[slots + probe]:
        home = words[_record(words, kind, words[slots + probe]) + hash_at] & mask
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            words[slots + hole] = words[slots + probe]
            hole = probe
        probe = (probe + 1) & mask
    words[slots + hole] = 0
    words[_record(words, kind, number)] = words[_FREE + kind]
    words[_FREE + kind] = number
    words[_COUNTS + kind] -= 1


@cython.cfunc
@cython.exceptval(check=False)
def _take_record(words: cython.p_uint, kind: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The number of a free record, of zeros; 0 without one. A free one has the next one in its first word."""
    number: cython.Py_ssize_t = words[_FREE + kind]
    base: cython.Py_ssize_t
    place: cython.Py_ssize_t
    if number:
        base = _record(words, kind, number)
        words[_FREE + kind] = words[base]
        for place in range(words[_SIZE + kind]):
            words[base + place] = 0
        return number
    number = words[_NEXT + kind]
    if number > cython.cast(cython.Py_ssize_t, words[_MOST + kind]):
        return 0
    words[_NEXT + kind] = number + 1
    return number


@cython.cfunc
@cython.exceptval(check=False)
def _take_cells(words: cython.p_uint, length: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """The first of the cells for a name; 0 without room."""
    cells: cython.Py_ssize_t = (length + 15) >> 4
    cell: cython.Py_ssize_t = words[_CELL_FREE + cells - 1]
    if cell:
        words[_CELL_FREE + cells - 1] = words[words[_CELLS] + (cell - 1) * _CELL_WORDS]
        return cell
    cell = words[_CELL_NEXT]
    if cell + cells > cython.cast(cython.Py_ssize_t, words[_CELLS_MAX]) + 1:
        return 0
    words[_CELL_NEXT] = cell + cells
    return cell


@cython.cfunc
@cython.exceptval(check=False)
def _add_peer(words: cython.p_uint, names: cython.p_uint, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    number: cython.Py_ssize_t = _take_record(words, _PEER)
    place: cython.Py_ssize_t
    if number:
        base: cython.Py_ssize_t = _record(words, _PEER, number)
        for place in range(7):
            words[base + place] = names[at + place]
        words[base + _PEER_HASH] = _hash_name(words, names, at)
        _enter(words, _PEER, number)
    return number


@cython.cfunc
@cython.exceptval(check=False)
def _add_topic(
    words: cython.p_uint,
    octets: cython.p_uchar,
    topic: cython.p_uchar,
    length: cython.Py_ssize_t,
    is_filter: cython.bint,
    number: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    cell: cython.Py_ssize_t = _take_cells(words, length)
    found: cython.Py_ssize_t = 0
    base: cython.Py_ssize_t
    start: cython.Py_ssize_t
    place: cython.Py_ssize_t
    if cell:
        found = _take_record(words, _TOPIC)
    if not found:
        if cell:
            _free_cells(words, cell, length)
        return 0
    base = _record(words, _TOPIC, found)
    start = _cell_start(words, cell)
    for place in range(length):
        octets[start + place] = topic[place]
    words[base + _TOPIC_HASH] = _hash_topic(words, topic, length)
    words[base + _TOPIC_CELL], words[base + _TOPIC_LENGTH] = cell, length
    words[base + _TOPIC_NUMBER], words[base + _TOPIC_IS_FILTER] = number, is_filter
    _enter(words, _TOPIC, found)
    return found


@cython.cfunc
@cython.exceptval(check=False)
def _free_cells(words: cython.p_uint, cell: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.void:
    head: cython.Py_ssize_t = _CELL_FREE + ((length + 15) >> 4) - 1
    words[words[_CELLS] + (cell - 1) * _CELL_WORDS] = words[head]
    words[head] = cell


@cython.cfunc
def _subscribe(
    words: cython.p_uint,
    octets: cython.p_uchar,
    names: cython.p_uint,
    at: cython.Py_ssize_t,
    topic: cython.p_uchar,
    length: cython.Py_ssize_t,
    is_filter: cython.bint,
    number: cython.Py_ssize_t,
    now_s: cython.Py_ssize_t,
) -> tuple:
    peer: cython.Py_ssize_t = _find_peer(words, names, at)
    found: cython.Py_ssize_t = _find_topic(words, octets, topic, length)
    sub: cython.Py_ssize_t
    is_new_peer: cython.bint = peer == 0
    is_new: cython.bint = found == 0
    if peer:
        seen: cython.Py_ssize_t = _record(words, _PEER, peer) + _PEER_SEEN
        words[seen] = max(words[seen], now_s)  # what was handed over late does not end a newer lease
        if found and _find_sub(words, peer, found):
            return RENEWED, found, False
    else:
        peer = _add_peer(words, names, at)
    if peer and is_new:
        found = _add_topic(words, octets, topic, length, is_filter, number)
    sub = 0
    if peer and found:
        sub = _take_record(words, _SUB)
    if not sub:
        if is_new and found:
            _drop_topic(words, found)
        if is_new_peer and peer:
            _drop_peer(words, peer)
        return FULL, 0, False
    if is_new_peer:
        words[_record(words, _PEER, peer) + _PEER_SEEN] = now_s
    _link(words, sub, peer, found)
    return ADDED, found, is_new


@cython.cfunc
@cython.exceptval(check=False)
def _link(
    words: cython.p_uint, sub: cython.Py_ssize_t, peer: cython.Py_ssize_t, topic: cython.Py_ssize_t
) -> cython.void:
    base: cython.Py_ssize_t = _record(words, _SUB, sub)
    of_peer: cython.Py_ssize_t = _record(words, _PEER, peer)
    of_topic: cython.Py_ssize_t = _record(words, _TOPIC, topic)
    words[base + _SUB_PEER], words[base + _SUB_TOPIC] = peer, topic
    words[base + _SUB_AFTER] = words[of_topic + _TOPIC_FIRST]
    if words[of_topic + _TOPIC_FIRST]:
        words[_record(words, _SUB, words[of_topic + _TOPIC_FIRST]) + _SUB_BEFORE] = sub
    words[of_topic + _TOPIC_FIRST] = sub
    words[base + _SUB_PEER_AFTER] = words[of_peer + _PEER_FIRST]
    if words[of_peer + _PEER_FIRST]:
        words[_record(words, _SUB, words[of_peer + _PEER_FIRST]) + _SUB_PEER_BEFORE] = sub
    words[of_peer + _PEER_FIRST] = sub
    words[base + _SUB_HASH] = _hash_pair(words, peer, topic)
    _enter(words, _SUB, sub)
    words[of_topic + _TOPIC_SUBS] += 1
    words[of_peer + _PEER_SUBS] += 1


@cython.cfunc
@cython.exceptval(check=False)
def _unlink(words: cython.p_uint, sub: cython.Py_ssize_t) -> cython.void:
    """Takes a subscription out; its peer and its topic stay, also without any."""
    base: cython.Py_ssize_t = _record(words, _SUB, sub)
    of_peer: cython.Py_ssize_t = _record(words, _PEER, words[base + _SUB_PEER])
    of_topic: cython.Py_ssize_t = _record(words, _TOPIC, words[base + _SUB_TOPIC])
    after: cython.Py_ssize_t = words[base + _SUB_AFTER]
    before: cython.Py_ssize_t = words[base + _SUB_BEFORE]
    if words[_RESUME_SUB] == sub:
        words[_RESUME_SUB] = after
    if after:
        words[_record(words, _SUB, after) + _SUB_BEFORE] = before
    if before:
        words[_record(words, _SUB, before) + _SUB_AFTER] = after
    else:
        words[of_topic + _TOPIC_FIRST] = after
    after, before = words[base + _SUB_PEER_AFTER], words[base + _SUB_PEER_BEFORE]
    if after:
        words[_record(words, _SUB, after) + _SUB_PEER_BEFORE] = before
    if before:
        words[_record(words, _SUB, before) + _SUB_PEER_AFTER] = after
    else:
        words[of_peer + _PEER_FIRST] = after
    _leave(words, _SUB, sub)
    words[of_topic + _TOPIC_SUBS] -= 1
    words[of_peer + _PEER_SUBS] -= 1


@cython.cfunc
@cython.exceptval(check=False)
def _drop_topic(words: cython.p_uint, topic: cython.Py_ssize_t) -> cython.void:
    """Removes a topic without subscriptions."""
    base: cython.Py_ssize_t = _record(words, _TOPIC, topic)
    _free_cells(words, words[base + _TOPIC_CELL], words[base + _TOPIC_LENGTH])
    _leave(words, _TOPIC, topic)


@cython.cfunc
@cython.exceptval(check=False)
def _drop_peer(words: cython.p_uint, peer: cython.Py_ssize_t) -> cython.void:
    """Removes an address without subscriptions."""
    words[_record(words, _PEER, peer) + _PEER_FIRST] = 0
    _leave(words, _PEER, peer)


@cython.cfunc
def _unsubscribe(words: cython.p_uint, octets: cython.p_uchar, name: cython.p_uint, topic_name: bytes) -> tuple:
    topic: cython.p_uchar = _octets_of(topic_name)
    length: cython.Py_ssize_t = len(topic_name)
    peer: cython.Py_ssize_t = _find_peer(words, name, 0)
    found: cython.Py_ssize_t = _find_topic(words, octets, topic, length) if peer else 0
    sub: cython.Py_ssize_t = _find_sub(words, peer, found) if found else 0
    number: cython.Py_ssize_t = -1
    base: cython.Py_ssize_t
    if not sub:
        return False, found, -1
    _unlink(words, sub)
    base = _record(words, _TOPIC, found)
    if not words[base + _TOPIC_SUBS]:
        number = words[base + _TOPIC_NUMBER]
        _drop_topic(words, found)
    if not words[_record(words, _PEER, peer) + _PEER_SUBS]:
        _drop_peer(words, peer)
    return True, found, number


@cython.cfunc
@cython.exceptval(check=False)
def _renew(
    words: cython.p_uint, names: cython.p_uint, count: cython.Py_ssize_t, now_s: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    place: cython.Py_ssize_t
    found: cython.Py_ssize_t = 0
    for place in range(count):
        peer: cython.Py_ssize_t = _find_peer(words, names, 7 * place)
        if peer:
            words[_record(words, _PEER, peer) + _PEER_SEEN] = now_s
            found += 1
    return found


@cython.cfunc
def _expire(
    words: cython.p_uint,
    octets: cython.p_uchar,
    before_s: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    peers_most: cython.Py_ssize_t,
    subscriptions_most: cython.Py_ssize_t,
) -> tuple:
    peer: cython.Py_ssize_t = start if start > 0 else 1
    end: cython.Py_ssize_t = peer + peers_most
    base: cython.Py_ssize_t
    topic: cython.Py_ssize_t
    of_topic: cython.Py_ssize_t
    ended: cython.Py_ssize_t = 0
    gone: list = []
    while peer < end and peer < cython.cast(cython.Py_ssize_t, words[_NEXT + _PEER]):
        base = _record(words, _PEER, peer)
        if not words[base + _PEER_FIRST] or cython.cast(cython.Py_ssize_t, words[base + _PEER_SEEN]) >= before_s:
            peer += 1
            continue
        while words[base + _PEER_FIRST] and subscriptions_most > 0:
            subscriptions_most -= 1
            topic = words[_record(words, _SUB, words[base + _PEER_FIRST]) + _SUB_TOPIC]
            _unlink(words, words[base + _PEER_FIRST])
            of_topic = _record(words, _TOPIC, topic)
            if not words[of_topic + _TOPIC_SUBS]:
                gone.append(_gone_topic(words, octets, of_topic))
                _drop_topic(words, topic)
        if words[base + _PEER_FIRST]:
            return peer, ended, gone
        _drop_peer(words, peer)
        ended += 1
        peer += 1
    return (peer if peer < cython.cast(cython.Py_ssize_t, words[_NEXT + _PEER]) else 0), ended, gone


@cython.cfunc
def _gone_topic(words: cython.p_uint, octets: cython.p_uchar, base: cython.Py_ssize_t) -> tuple:
    start: cython.Py_ssize_t = _cell_start(words, words[base + _TOPIC_CELL])
    return words[base + _TOPIC_NUMBER], _bytes_at(octets, start, words[base + _TOPIC_LENGTH])


@cython.cfunc
def _bytes_at(octets: cython.p_uchar, start: cython.Py_ssize_t, length: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, octets) + start, length)
    else:
        return bytes(octets[start : start + length])


@cython.cfunc
def _collect(
    words: cython.p_uint,
    frames: cython.p_uchar,
    size: cython.Py_ssize_t,
    position: cython.Py_ssize_t,
    stream: bytes,
    known: object,
    find: Any,
    before_s: cython.Py_ssize_t,
    entries: bytearray,
    work: bytearray,
    texts: bytearray,
) -> tuple:
    messages: cython.Py_ssize_t = 0
    most: cython.Py_ssize_t = min(len(entries) // ENTRY_BYTES, len(work) // WORK_BYTES)
    length: cython.Py_ssize_t
    topic_bytes: cython.size_t = 0
    topic_at: cython.Py_ssize_t
    if cython.compiled:
        octets: cython.p_uchar = cython.cast(cython.p_uchar, words)
        keys: cython.p_ulonglong = cython.cast(cython.p_ulonglong, cython.cast(cython.p_char, work))
        spans: cython.p_uint = cython.cast(cython.p_uint, keys + most)
        out: cython.p_uchar = cython.cast(cython.p_uchar, cython.cast(cython.p_char, texts))
        state: cython.Py_ssize_t[6]
        state[_COUNT] = state[_TEXT_AT] = state[_TEXTS] = state[_UNSENDABLE] = 0
    else:
        octets = memoryview(words).cast("B")
        keys, spans, out, state = [0] * most, [0] * (2 * most), texts, [0] * 6
    state[_ENTRIES_MAX], state[_ROOM] = most, len(texts)
    while size - position >= 32:
        length = _load(frames, position, 4)
        if length < 32 or length > size - position:
            break
        topic_at = position + 32
        numbers: list
        if cython.compiled:
            topic: cython.p_uchar = cython.cast(
                cython.p_uchar,
                tr_topic(frames + topic_at, _load(frames, position + 30, 2), cython.address(topic_bytes)),
            )
            if topic == cython.NULL:
                topic, topic_bytes = cython.cast(cython.p_uchar, PyBytes_AS_STRING(stream)), len(stream)
        else:
            topic = topic_in(bytes(frames[topic_at : topic_at + _load(frames, position + 30, 2)])) or stream
            topic_bytes = len(topic)
        numbers = _records_of(words, octets, topic, topic_bytes, known, find)
        if numbers and not _add_frame(
            words, numbers, topic, topic_bytes, frames, position, length, before_s, keys, spans, out, state
        ):
            break
        words[_RESUME_TOPIC] = words[_RESUME_SUB] = 0
        position += length
        messages += 1
    if cython.compiled:
        tr_sort_keys(keys, state[_COUNT])
        _write_entries(words, octets, keys, spans, state[_COUNT], cython.cast(cython.p_char, entries))
    else:
        keys[: state[_COUNT]] = sorted(keys[: state[_COUNT]])
        _write_entries(words, octets, keys, spans, state[_COUNT], entries)
    return position, messages, state[_COUNT], state[_UNSENDABLE]


@cython.cfunc
@cython.exceptval(-1)
def _add_frame(
    words: cython.p_uint,
    numbers: list,
    topic: cython.p_uchar,
    topic_bytes: cython.Py_ssize_t,
    frames: cython.p_uchar,
    position: cython.Py_ssize_t,
    length: cython.Py_ssize_t,
    before_s: cython.Py_ssize_t,
    keys: cython.p_ulonglong,
    spans: cython.p_uint,
    out: cython.p_uchar,
    state: cython.pointer(cython.Py_ssize_t),
) -> cython.bint:
    """Adds the subscribers of a frame. False without room for all of them: the next call goes on with them."""
    body_at: cython.Py_ssize_t = position + 32 + _load(frames, position + 30, 2)
    body_bytes: cython.Py_ssize_t = position + length - body_at
    text_bytes: cython.Py_ssize_t = 5 + topic_bytes + body_bytes
    number: cython.Py_ssize_t
    base: cython.Py_ssize_t
    sub: cython.Py_ssize_t
    seen_s: cython.Py_ssize_t
    text: cython.Py_ssize_t = -1  # not made
    is_sendable: cython.bint = text_bytes <= _DATAGRAM_MAX and not _has_blank(topic, topic_bytes)
    for number in numbers:
        base = _record(words, _TOPIC, number)
        sub = words[base + _TOPIC_FIRST]
        if words[_RESUME_TOPIC]:
            if number < cython.cast(cython.Py_ssize_t, words[_RESUME_TOPIC]):
                continue
            if number == cython.cast(cython.Py_ssize_t, words[_RESUME_TOPIC]):
                sub = words[_RESUME_SUB]
            words[_RESUME_TOPIC] = words[_RESUME_SUB] = 0
        if not is_sendable:
            state[_UNSENDABLE] += words[base + _TOPIC_SUBS]
            continue
        while sub:
            if state[_COUNT] == state[_ENTRIES_MAX] or (text < 0 and state[_TEXT_AT] + text_bytes > state[_ROOM]):
                words[_RESUME_TOPIC], words[_RESUME_SUB] = number, sub
                return False
            base = _record(words, _SUB, sub)
            seen_s = words[_record(words, _PEER, words[base + _SUB_PEER]) + _PEER_SEEN]
            if seen_s >= before_s:
                if text < 0:
                    text = state[_TEXTS]
                    _make_text(out, state[_TEXT_AT], topic, topic_bytes, frames, body_at, body_bytes)
                    spans[2 * text], spans[2 * text + 1] = state[_TEXT_AT], text_bytes
                    state[_TEXT_AT] += text_bytes
                    state[_TEXTS] += 1
                keys[state[_COUNT]] = cython.cast(cython.ulonglong, words[base + _SUB_PEER]) << 32 | text
                state[_COUNT] += 1
            sub = words[base + _SUB_AFTER]
    return True


@cython.cfunc
def _records_of(
    words: cython.p_uint,
    octets: cython.p_uchar,
    topic: cython.p_uchar,
    length: cython.Py_ssize_t,
    known: object,
    find: Any,
) -> list:
    """The records of the topic and of the filters that match it, in order."""
    numbers: list = []
    number: cython.Py_ssize_t = _find_topic(words, octets, topic, length)
    if number and not words[_record(words, _TOPIC, number) + _TOPIC_IS_FILTER]:
        numbers.append(number)
    if known is not None:
        name: bytes = _bytes_at(topic, 0, length)
        found: Any = cython.cast(dict, known).get(name)
        if found is None:
            found = find(name)
        numbers.extend(found)
        numbers.sort()
    return numbers


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _load(octets: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.uint:
    """A number of 2 or 4 bytes."""
    low: cython.uint = octets[at] | octets[at + 1] << 8
    return low if size == 2 else low | octets[at + 2] << 16 | cython.cast(cython.uint, octets[at + 3]) << 24


@cython.cfunc
@cython.exceptval(check=False)
def _has_blank(topic: cython.p_uchar, length: cython.Py_ssize_t) -> cython.bint:
    """Whether the topic cannot stand in a datagram."""
    place: cython.Py_ssize_t = 0
    while place < length and topic[place] != 32 and not 9 <= topic[place] <= 13:
        place += 1
    return place < length


@cython.cfunc
@cython.exceptval(check=False)
def _make_text(
    out: cython.p_uchar,
    at: cython.Py_ssize_t,
    topic: cython.p_uchar,
    topic_bytes: cython.Py_ssize_t,
    frames: cython.p_uchar,
    body_at: cython.Py_ssize_t,
    body_bytes: cython.Py_ssize_t,
) -> cython.void:
    if cython.compiled:
        memcpy(out + at, cython.cast(cython.p_char, b"MSG "), 4)
        memcpy(out + at + 4, topic, topic_bytes)
        out[at + 4 + topic_bytes] = 10
        memcpy(out + at + 5 + topic_bytes, frames + body_at, body_bytes)
    else:
        text = b"MSG %s\n%s" % (topic, frames[body_at : body_at + body_bytes])
        out[at : at + len(text)] = text


@cython.cfunc
@cython.exceptval(check=False)
def _write_entries(
    words: cython.p_uint,
    octets: cython.p_uchar,
    keys: cython.p_ulonglong,
    spans: cython.p_uint,
    count: cython.Py_ssize_t,
    entries: cython.p_char,
) -> cython.void:
    place: cython.Py_ssize_t
    peer: cython.Py_ssize_t
    text: cython.Py_ssize_t
    base: cython.Py_ssize_t
    for place in range(count):
        peer = cython.cast(cython.Py_ssize_t, keys[place] >> 32)
        text = cython.cast(cython.Py_ssize_t, keys[place] & 0xFFFFFFFF)
        base = 4 * _record(words, _PEER, peer)
        if cython.compiled:
            memcpy(entries + place * 40, octets + base, 28)
            memcpy(entries + place * 40 + 32, spans + 2 * text, 8)
        else:
            at = place * 40
            entries[at : at + 28] = octets[base : base + 28]
            entries[at + 32 : at + 36] = spans[2 * text].to_bytes(4, "little")
            entries[at + 36 : at + 40] = spans[2 * text + 1].to_bytes(4, "little")
