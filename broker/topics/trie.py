"""Topic filters in a trie by level, each with a small number, so that a topic finds all that match it at once."""

from __future__ import annotations

from array import array
from typing import Any, Final

from tailrace.protocol.topics import ANY_LEVELS, ONE_LEVEL, SEPARATOR
from tailrace.shard.leaves import load

FILTER_BYTES: Final = 100
"""What a filter takes in memory at most, beyond twice its own bytes and its nodes."""
NODE_BYTES: Final = 400
"""What a node takes in memory at most, beyond the bytes of its level."""
LEAF_BYTES: Final = 120
"""The same of a node that is only the end of a filter."""

TrieNode = list[Any]
"""`broker.topics.match_cy` describes it, and the number that stands for a node without others below it."""

_leaf = load("tailrace.broker.topics.match_cy")
_CHILDREN, _PLUS, _HERE, _BELOW = _leaf.CHILDREN, _leaf.PLUS, _leaf.HERE, _leaf.BELOW
_NO_FILTER = _leaf.NO_FILTER
_match = _leaf.match


class TooManyFilters(Exception):
    """The trie is as large as it may be; the text has the bound."""


class FilterTrie:
    """Valid filters and their numbers; each is held as often as it was added.

    They take at most about `bytes_max` bytes. `version` changes with the set of filters: matches found before are then
    void.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._root = _new_node()
        self._filters: list[bytes] = []  # by number; empty for a number that is free
        self._holders = array("I")  # by number
        self._free: list[int] = []
        self._nbytes = 0
        self.version = 0

    def __len__(self) -> int:
        return len(self._filters) - len(self._free)

    @property
    def numbers_end(self) -> int:
        """Above all numbers."""
        return len(self._filters)

    def __getitem__(self, number: int) -> bytes:
        """The filter with a number that `add` or `match` has returned."""
        return self._filters[number]

    def add(self, topic_filter: bytes) -> int:
        """Holds a filter once more; returns its number. Raises TooManyFilters, and then nothing has changed."""
        number = self.number_of(topic_filter)
        if number is None:
            number = self._add_new(topic_filter)
        self._holders[number] += 1
        return number

    def remove(self, topic_filter: bytes) -> None:
        """Holds a filter once less; the last time, its number is free. KeyError if it is not in the trie."""
        number = self.number_of(topic_filter)
        if number is None:
            raise KeyError(topic_filter)
        self._holders[number] -= 1
        if not self._holders[number]:
            self._remove_last(topic_filter, number)

    def number_of(self, topic_filter: bytes) -> int | None:
        """The number of a filter in the trie."""
        path, place = _path_of(topic_filter)
        node: TrieNode | int | None = self._root
        for level in path:
            if not isinstance(node, list):
                return None
            node = _below(node, level)
        if isinstance(node, list):
            number: int = node[place]
            return None if number == _NO_FILTER else number
        return node if place == _HERE else None

    def match(self, topic: bytes) -> tuple[int, ...]:
        """The numbers of the filters that match a valid topic, in no order."""
        matched: tuple[int, ...] = _match(self._root, topic)
        return matched

    def _add_new(self, topic_filter: bytes) -> int:
        path, place = _path_of(topic_filter)
        nbytes = FILTER_BYTES + 2 * len(topic_filter)
        if self._nbytes + nbytes + NODE_BYTES * self._missing(path) > self._bytes_max:
            raise TooManyFilters(f"{len(self)} topic filters take all of the {self._bytes_max} bytes that they may")
        if not self._free:
            self._free.append(len(self._filters))
            self._filters.append(b"")
            self._holders.append(0)
        number = self._free.pop()
        self._filters[number] = topic_filter
        self._nbytes += nbytes
        node = self._root
        for level in path[:-1] if place == _HERE else path:
            node = self._child(node, level)
        if place == _HERE and type(_below(node, path[-1])) is not list and path[-1] != ONE_LEVEL:
            self._put_leaf(node, path[-1], number)
        elif place == _HERE:
            self._child(node, path[-1])[place] = number
        else:
            node[place] = number
        self.version += 1
        return number

    def _missing(self, path: list[bytes]) -> int:
        """How many nodes there have to be more at most."""
        node: TrieNode | int | None = self._root
        for depth, level in enumerate(path):
            if type(node) is not list:
                return len(path) - depth + 1
            node = _below(node, level)
        return 0 if type(node) is list else 1

    def _child(self, node: TrieNode, level: bytes) -> TrieNode:
        """The node below this one, made if need be."""
        found = _below(node, level)
        if type(found) is list:
            return found
        child = _new_node()
        self._nbytes += NODE_BYTES
        if found is not None:
            child[_HERE] = found
            self._nbytes -= LEAF_BYTES
        _put(node, level, child)
        return child

    def _put_leaf(self, node: TrieNode, level: bytes, number: int) -> None:
        self._nbytes += LEAF_BYTES
        _put(node, level, number)

    def _remove_last(self, topic_filter: bytes, number: int) -> None:
        self._filters[number] = b""
        self._free.append(number)
        self._nbytes -= FILTER_BYTES + 2 * len(topic_filter)
        path, place = _path_of(topic_filter)
        nodes: list[TrieNode] = [self._root]
        for level in path:
            below = _below(nodes[-1], level)
            if type(below) is not list:
                _drop(nodes[-1], path.pop())
                self._nbytes -= LEAF_BYTES
                break
            nodes.append(below)
        else:
            nodes[-1][place] = _NO_FILTER
        while path and nodes.pop() == _new_node():
            _drop(nodes[-1], path.pop())
            self._nbytes -= NODE_BYTES
        self.version += 1


def _new_node() -> TrieNode:
    return [None, None, _NO_FILTER, _NO_FILTER]


def _path_of(topic_filter: bytes) -> tuple[list[bytes], int]:
    """The levels to the node at which a filter ends, and in which of its places."""
    levels = topic_filter.split(SEPARATOR)
    if levels[-1] == ANY_LEVELS:
        return levels[:-1], _BELOW
    return levels, _HERE


def _below(node: TrieNode, level: bytes) -> TrieNode | int | None:
    """The node below this one, or the number that stands for it."""
    found: TrieNode | int | None
    if level == ONE_LEVEL:
        found = node[_PLUS]
    else:
        children = node[_CHILDREN]
        found = None if children is None else children.get(level)
    return found


def _put(node: TrieNode, level: bytes, child: TrieNode | int) -> None:
    if level == ONE_LEVEL:
        node[_PLUS] = child
    elif node[_CHILDREN] is None:
        node[_CHILDREN] = {level: child}
    else:
        node[_CHILDREN][level] = child


def _drop(node: TrieNode, level: bytes) -> None:
    if level == ONE_LEVEL:
        node[_PLUS] = None
        return
    del node[_CHILDREN][level]
    if not node[_CHILDREN]:
        node[_CHILDREN] = None
