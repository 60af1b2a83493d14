"""The subscriptions of a worker's UDP clients: a table in one buffer, and a trie for the filters among their topics."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Final

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


class RecordTrie(FilterTrie):
    """Finds the records of filters in the table."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.records: dict[int, int] = {}

    def match(self, topic: bytes) -> tuple[int, ...]:
        return tuple(self.records[number] for number in super().match(topic) if number in self.records)


class UdpSubscriptions:
    """At most `most` of them.

    on_streams: called with the streams of which topics are first, or no longer, wanted. on_topic: the same of each
    topic and filter, with its streams.
    """

    def __init__(
        self,
        most: int,
        filter_bytes: int,
        cache_bytes: int,
        on_streams: Callable[[WantedStreams, bool], None],
        on_topic: Callable[[bytes, WantedStreams, bool], None],
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
            self._topics[number] += 1
            self._on_topic(topic, streams, True)
            if held:
                self._trie.records[filter_number] = record
        elif held:
            self._trie.remove(topic)
        self._settle(number)
        return bool(outcome != _leaf.FULL)

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

    def _topic_gone(self, number: int, topic: bytes) -> None:
        filter_number = self._trie.number_of(topic) if has_wildcards(topic) else None
        if filter_number is not None:
            del self._trie.records[filter_number]
            self._trie.remove(topic)
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
