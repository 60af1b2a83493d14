"""What other nodes want of the streams in memory here: filters, and the messages that they match. Pure.

A message goes to the nodes that want it from the node at which it was published, and from no other: messages of other
nodes go on to none. So each node gets it once, however the nodes are connected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tailrace.broker.topics.match_cache import MatchCache
from tailrace.broker.topics.trie import FilterTrie, TooManyFilters
from tailrace.protocol.sharing import Interest
from tailrace.shard.frame import FLAG_RELAYED, FLAGS_OFFSET
from tailrace.shard.leaves import load

PEER_STREAMS_MAX: Final = 4_096
"""Streams that one node wants something of."""

_walk: Callable[..., tuple[list[tuple[tuple[int, ...], int, int]], int, int, str]] = load(
    "tailrace.broker.topics.pick_cy"
).walk
_NO_FLAGS = bytes(2)


class PeerFilters:
    """The filters of all nodes that this worker serves, `filter_bytes` of them at most."""

    def __init__(self, filter_bytes: int, cache_bytes: int) -> None:
        self.trie = FilterTrie(filter_bytes)
        self.cache = MatchCache(self.trie, cache_bytes)


class PeerStream:
    """What a node wants of one stream. `overflowed`: a filter found no room, so it gets everything."""

    __slots__ = ("_filters", "everything", "name", "number", "numbers", "overflowed")

    def __init__(self, filters: PeerFilters, number: int, name: bytes) -> None:
        self._filters = filters
        self.number = number
        self.name = name
        self.everything = self.overflowed = False
        self.numbers: set[int] = set()  # of its filters

    def change(self, message: Interest) -> None:
        trie = self._filters.trie
        self.everything = message.everything
        for each in message.removed:
            number = trie.number_of(each)
            if number in self.numbers:
                self.numbers.discard(number)
                trie.remove(each)
        try:
            for each in message.added:
                if trie.number_of(each) not in self.numbers:
                    self.numbers.add(trie.add(each))
        except TooManyFilters:
            self.overflowed = True

    def end(self) -> None:
        trie = self._filters.trie
        for number in self.numbers:
            trie.remove(trie[number])
        self.numbers.clear()

    def pick(self, frames: Any, first_seq: int, next_seq: int) -> list[bytearray]:
        """Copies of those of these whole frames that the node is to get, in order, without flags."""
        view = memoryview(frames)
        wants_all = self.everything or self.overflowed
        if wants_all:
            places = _places(view)
        else:
            cache = self._filters.cache
            hits, _passed, _used, _fault = _walk(
                frames, len(view), first_seq, next_seq, self.name, cache.known(), cache.match, True
            )
            places = [(place, length) for numbers, place, length in hits if not self.numbers.isdisjoint(numbers)]
        picked = []
        for place, length in places:
            if view[place + FLAGS_OFFSET] & FLAG_RELAYED:
                continue
            frame = bytearray(view[place : place + length])
            frame[FLAGS_OFFSET : FLAGS_OFFSET + 2] = _NO_FLAGS
            picked.append(frame)
        return picked


class PeerWants:
    """What one node wants, by stream."""

    def __init__(self, filters: PeerFilters) -> None:
        self._filters = filters
        self.by_name: dict[bytes, PeerStream] = {}
        self._by_number: dict[int, PeerStream] = {}

    def find(self, number: int) -> PeerStream | None:
        return self._by_number.get(number)

    def begin(self, message: Interest) -> PeerStream | None:
        """A stream with a new number; None if it has another number already, or there are too many."""
        if message.stream in self.by_name or len(self.by_name) >= PEER_STREAMS_MAX:
            return None
        found = self.by_name[message.stream] = PeerStream(self._filters, message.id, message.stream)
        self._by_number[message.id] = found
        return found

    def end(self, stream: PeerStream) -> None:
        stream.end()
        del self.by_name[stream.name], self._by_number[stream.number]


def _places(view: memoryview) -> list[tuple[int, int]]:
    """Place and length of each of these whole frames."""
    places: list[tuple[int, int]] = []
    place = 0
    while place < len(view):
        length = int.from_bytes(view[place : place + 4], "little")
        places.append((place, length))
        place += length
    return places
