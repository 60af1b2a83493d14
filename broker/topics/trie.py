"""Topic filters in a trie by level, each with a small number, so that a topic finds all that match it at once."""

from __future__ import annotations

from typing import Any, Final

from tailrace.protocol.topics import ANY_LEVELS, ONE_LEVEL, SEPARATOR
from tailrace.shard.leaves import load

FILTER_BYTES: Final = 300
"""What a filter takes in memory at most, beyond its own bytes and its nodes."""
NODE_BYTES: Final = 400
"""What a node takes in memory at most, beyond the bytes of its level."""

TrieNode = list[Any]
"""`broker.topics.match_cy` describes it."""

_leaf = load("tailrace.broker.topics.match_cy")
_CHILDREN, _PLUS, _HERE, _BELOW = _leaf.CHILDREN, _leaf.PLUS, _leaf.HERE, _leaf.BELOW
_NO_FILTER = _leaf.NO_FILTER
_match = _leaf.match


class TooManyFilters(Exception):
    """The trie is as large as it may be; the text has the bound."""


class FilterTrie:
    """Valid filters and their numbers; each is held as often as it was added.

    They take at most about `bytes_max` bytes, as if no two filters had a node in common. `version` changes with the set
    of filters: matches found before are then void.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._root = _new_node()
        self._numbers: dict[bytes, int] = {}
        self._filters: list[bytes] = []  # by number; empty for a number that is free
        self._holders: list[int] = []  # by number
        self._free: list[int] = []
        self._nbytes = 0
        self.version = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> bytes:
        """The filter with a number that `add` or `match` has returned."""
        return self._filters[number]

    def add(self, topic_filter: bytes) -> int:
        """Holds a filter once more; returns its number. Raises TooManyFilters, and then nothing has changed."""
        number = self._numbers.get(topic_filter)
        if number is None:
            number = self._add_new(topic_filter)
        self._holders[number] += 1
        return number

    def remove(self, topic_filter: bytes) -> None:
        """Holds a filter once less; the last time, its number is free. KeyError if it is not in the trie."""
        number = self._numbers[topic_filter]
        self._holders[number] -= 1
        if not self._holders[number]:
            self._remove_last(topic_filter, number)

    def number_of(self, topic_filter: bytes) -> int | None:
        """The number of a filter in the trie."""
        return self._numbers.get(topic_filter)

    def match(self, topic: bytes) -> tuple[int, ...]:
        """The numbers of the filters that match a valid topic, in no order."""
        matched: tuple[int, ...] = _match(self._root, topic)
        return matched

    def _add_new(self, topic_filter: bytes) -> int:
        nbytes = _cost(topic_filter)
        if self._nbytes + nbytes > self._bytes_max:
            raise TooManyFilters(f"{len(self)} topic filters take all of the {self._bytes_max} bytes that they may")
        if not self._free:
            self._free.append(len(self._filters))
            self._filters.append(b"")
            self._holders.append(0)
        number = self._numbers[topic_filter] = self._free.pop()
        self._filters[number] = topic_filter
        self._nbytes += nbytes
        path, place = _path_of(topic_filter)
        node = self._root
        for level in path:
            node = _child(node, level)
        node[place] = number
        self.version += 1
        return number

    def _remove_last(self, topic_filter: bytes, number: int) -> None:
        del self._numbers[topic_filter]
        self._filters[number] = b""
        self._free.append(number)
        self._nbytes -= _cost(topic_filter)
        path, place = _path_of(topic_filter)
        nodes = [self._root]
        for level in path:
            nodes.append(_child(nodes[-1], level))
        nodes[-1][place] = _NO_FILTER
        while path and nodes.pop() == _new_node():
            _drop_child(nodes[-1], path.pop())
        self.version += 1


def _cost(topic_filter: bytes) -> int:
    levels = topic_filter.count(SEPARATOR) + 1
    return FILTER_BYTES + NODE_BYTES * levels + 2 * len(topic_filter)


def _new_node() -> TrieNode:
    return [{}, None, _NO_FILTER, _NO_FILTER]


def _path_of(topic_filter: bytes) -> tuple[list[bytes], int]:
    """The levels to the node at which a filter ends, and in which of its places."""
    levels = topic_filter.split(SEPARATOR)
    if levels[-1] == ANY_LEVELS:
        return levels[:-1], _BELOW
    return levels, _HERE


def _child(node: TrieNode, level: bytes) -> TrieNode:
    """The node below this one, made if need be."""
    if level != ONE_LEVEL:
        child: TrieNode = node[_CHILDREN].setdefault(level, _new_node())
        return child
    if node[_PLUS] is None:
        node[_PLUS] = _new_node()
    plus: TrieNode = node[_PLUS]
    return plus


def _drop_child(node: TrieNode, level: bytes) -> None:
    if level == ONE_LEVEL:
        node[_PLUS] = None
    else:
        del node[_CHILDREN][level]
