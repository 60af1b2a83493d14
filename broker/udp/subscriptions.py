"""The subscriptions of a worker's UDP clients: a table in one buffer, and a trie for the filters among their topics."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace.broker.topics.match_cache import MatchCache
from tailrace.broker.topics.trie import FilterTrie, TooManyFilters
from tailrace.protocol.topics import has_wildcards
from tailrace.shard.leaves import load

WantedStreams = tuple[bytes, ...]
"""In which what a topic or a filter matches may lie."""

PEERS_A_SLICE: Final = 4_096
"""Addresses looked at for their leases at one time."""
ENDS_A_SLICE: Final = 1_024
"""Subscriptions ended at one time."""

_leaf = load("tailrace.broker.udp.table_cy")
_runs = load("tailrace.broker.udp.runs_cy")


DatagramSlots = tuple[mmap.mmap, bytearray, bytearray, bytearray]
"""Datagrams of one system call: slots, and their places there, addresses and lengths."""


class RunAnswers:
    """The answers to a run of `SUB`s, of `count` at most. `ending`: the lease."""

    def __init__(self, count: int, lease_s: int) -> None:
        self.ending = b" %d\n" % lease_s
        self.entries = bytearray(count * _runs.ENTRY_BYTES)
        self.texts = bytearray(count * (len(b"OK SUB ") + _runs.TOPIC_BYTES_MAX + len(self.ending)))


class StreamNumbers(dict[bytes, int]):
    """The numbers of streams, each of which is looked up once. `-1` is for those that a run leaves to others."""

    def __init__(self, find: Callable[[bytes], int]) -> None:
        super().__init__()
        self._find = find

    def __missing__(self, stream: bytes) -> int:
        number = self[stream] = self._find(stream)
        return number


class RunRules(NamedTuple):
    """Which streams the topics of a run of `SUB`s lie in, and whether any address is trusted not to be forged."""

    table: bytes
    default_stream: bytes
    numbers: StreamNumbers
    is_trusted: bool


class RecordTrie(FilterTrie):
    """Finds the records of filters in the table."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.records: dict[int, int] = {}

    def match(self, topic: bytes) -> tuple[int, ...]:
        return tuple([self.records[number] for number in super().match(topic) if number in self.records])


class UdpSubscriptions:
    """At most `most` of them.

    on_streams: called with the streams of which topics are first, or no longer, wanted. on_topic: the same of each
    topic and filter, with its streams; None if nobody wants to know.
    """

    def __init__(
        self,
        most: int,
        filter_bytes: int,
        cache_bytes: int,
        on_streams: Callable[[WantedStreams, bool], None],
        on_topic: Callable[[bytes, WantedStreams, bool], None] | None,
    ) -> None:
        self.table = mmap.mmap(-1, _leaf.table_bytes(most))
        _leaf.make_table(self.table, most, int.from_bytes(os.urandom(8), "little"))
        self._trie = RecordTrie(filter_bytes)
        self._cache = MatchCache(self._trie, cache_bytes)
        self._on_streams = on_streams
        self._on_topic = on_topic
        self._sets: list[WantedStreams] = []
        self._topics: list[int] = []  # of each set
        self._numbers: dict[WantedStreams, int] = {}
        self._free: list[int] = []
        self._peer = 0  # at which the look at leases goes on

    # --- changes ----------------------------------------------------------------------------------------------------

    def add(self, name: bytes, topic: bytes, streams: WantedStreams, now_s: int) -> bool:
        """Subscribes an address to a valid topic or filter, or renews its lease. False without room."""
        is_filter = has_wildcards(topic)
        number = self._numbers.get(streams)
        if number is None:
            number = self._new_set(streams)
        held = is_filter and self._trie.number_of(topic) is None
        try:
            filter_number = self._trie.add(topic) if held else -1
        except TooManyFilters:
            self._settle(number)
            return False
        outcome, record, is_new = _leaf.subscribe(self.table, name, topic, is_filter, number, now_s)
        if is_new:
            self._topic_came(number, topic)
            if held:
                self._trie.records[filter_number] = record
        elif held:
            self._trie.remove(topic)
        self._settle(number)
        return bool(outcome != _leaf.FULL)

    def add_run(
        self, datagrams: DatagramSlots, start: int, count: int, rules: RunRules, now_s: int, answers: RunAnswers
    ) -> int:
        """Does the `SUB`s from number `start` on, until one is not a plain one. Writes the answers.

        Returns the number of the first datagram that is left.
        """
        at, new = _runs.subscribe_run(
            *(self.table, datagrams, start, count, rules.table, rules.default_stream, rules.numbers),
            *(rules.is_trusted, now_s, answers.ending, (answers.entries, answers.texts)),
        )
        for number, topic in new:
            self._topic_came(number, topic)
        return int(at)

    def number_of(self, stream: bytes) -> int:
        """The number of the set of this one stream; -1 without one."""
        return self._numbers.get((stream,), -1)

    def remove(self, name: bytes, topic: bytes) -> bool:
        """Ends a subscription; returns whether there was one."""
        found, _record, number = _leaf.unsubscribe(self.table, name, topic)
        if number >= 0:
            self._topic_gone(number, topic)
        return bool(found)

    def renew(self, names: bytearray, count: int, now_s: int) -> None:
        """Renews the leases of the first `count` addresses."""
        if self.peers:
            _leaf.renew(self.table, names, count, now_s)

    def expire(self, before_s: int) -> int:
        """Ends some of the subscriptions of addresses silent since before `before_s`; returns how many addresses."""
        if not self.peers:
            return 0
        self._peer, ended, gone = _leaf.expire(self.table, before_s, self._peer, PEERS_A_SLICE, ENDS_A_SLICE)
        for number, topic in gone:
            self._topic_gone(number, topic)
        return int(ended)

    # --- looking up -------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> int:
        return int(_leaf.count_of(self.table, _leaf.PEER_COUNT))

    @property
    def subscriptions(self) -> int:
        return int(_leaf.count_of(self.table, _leaf.SUB_COUNT))

    def is_known(self, name: bytes) -> bool:
        """Whether an address has a subscription."""
        return bool(_leaf.is_known(self.table, name))

    def shown(self, start: int, count: int) -> tuple[bool, list[tuple[bytes, bytes, int]]]:
        """Topic, address and the second of its last datagram, of each subscription in a part of the table; whether
        there are parts behind it.
        """
        more, rows = _leaf.show(self.table, start, count)
        return bool(more), rows

    def collect(
        self,
        frames: bytes | bytearray | memoryview,
        position: int,
        stream: bytes,
        before_s: int,
        buffers: tuple[bytearray, bytearray, bytearray],
    ) -> tuple[int, int, int, int]:
        """As the leaf's `collect`."""
        known = self._cache.known() if len(self._trie) else None
        found: tuple[int, int, int, int] = _leaf.collect(
            self.table, frames, position, stream, known, self._cache.match, before_s, *buffers
        )
        return found

    def forget_place(self) -> None:
        """The frame in the middle of whose subscribers `collect` has ended is not gone on with."""
        _leaf.forget_place(self.table)

    # --- sets of streams --------------------------------------------------------------------------------------------

    def _new_set(self, streams: WantedStreams) -> int:
        if not self._free:
            self._free.append(len(self._sets))
            self._sets.append(())
            self._topics.append(0)
        number = self._numbers[streams] = self._free.pop()
        self._sets[number] = streams
        self._on_streams(streams, True)
        return number

    def _topic_came(self, number: int, topic: bytes) -> None:
        self._topics[number] += 1
        if self._on_topic is not None:
            self._on_topic(topic, self._sets[number], True)

    def _topic_gone(self, number: int, topic: bytes) -> None:
        filter_number = self._trie.number_of(topic) if has_wildcards(topic) else None
        if filter_number is not None:
            del self._trie.records[filter_number]
            self._trie.remove(topic)
        if self._on_topic is not None:
            self._on_topic(topic, self._sets[number], False)
        self._topics[number] -= 1
        self._settle(number)

    def _settle(self, number: int) -> None:
        """Forgets a set that no topic has."""
        if self._topics[number]:
            return
        streams, self._sets[number] = self._sets[number], ()
        del self._numbers[streams]
        self._free.append(number)
        self._on_streams(streams, False)
