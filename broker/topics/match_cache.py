"""The filters that match the topics that were looked up last.

Two dictionaries stand in for an order of use: a hit in the old one moves to the new one, and when the new one holds
half of the bound it becomes the old one. So a hit in the new one costs a single look-up and changes nothing.
"""

from __future__ import annotations

from typing import Final

from tailrace.broker.topics.trie import FilterTrie

ENTRY_BYTES: Final = 200
"""Of a topic with one filter, beyond the bytes of its name: the two objects, and their place in the dictionary."""
NUMBER_BYTES: Final = 8
"""Of each number of a filter."""


class MatchCache:
    """Looks topics up in a trie; holds about `bytes_max` bytes, and nothing from before the trie's last change."""

    def __init__(self, trie: FilterTrie, bytes_max: int) -> None:
        self._trie = trie
        self._half_bytes = bytes_max // 2
        self._version = trie.version
        self._new: dict[bytes, tuple[int, ...]] = {}
        self._new_bytes = 0
        self._old: dict[bytes, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def known(self) -> dict[bytes, tuple[int, ...]]:
        """Some topics, each with the numbers that `match` would return, until the trie changes."""
        if self._version != self._trie.version:
            self._clear()
        return self._new

    def match(self, topic: bytes) -> tuple[int, ...]:
        """As `FilterTrie.match`."""
        if self._version != self._trie.version:
            self._clear()
        numbers = self._new.get(topic)
        if numbers is None:
            numbers = self._old.pop(topic, None)
            if numbers is None:
                numbers = self._trie.match(topic)
            self._keep(topic, numbers)
        return numbers

    def _keep(self, topic: bytes, numbers: tuple[int, ...]) -> None:
        nbytes = ENTRY_BYTES + len(topic) + NUMBER_BYTES * len(numbers)
        if nbytes > self._half_bytes:
            return
        if self._new_bytes + nbytes > self._half_bytes:
            self._old, self._new, self._new_bytes = self._new, {}, 0
        self._new[topic] = numbers
        self._new_bytes += nbytes

    def _clear(self) -> None:
        self._version = self._trie.version
        self._new, self._old, self._new_bytes = {}, {}, 0
