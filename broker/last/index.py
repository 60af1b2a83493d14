"""Topics in the order of their bytes, each with the seq of its last message and the place of that message's frame.

A million topics as objects of their own would take gigabytes. Here a topic takes its bytes object and three numbers in
arrays: sorted blocks of at most BLOCK_TOPICS topics, found by bisection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

BLOCK_TOPICS: Final = 1_024
"""Of one block, which is split in two above it."""
ENTRY_BYTES: Final = 80
"""Memory of a topic beyond the bytes of its name, about: the object's head, its pointer and the numbers."""


def entry_bytes(topic: bytes) -> int:
    """The memory of a topic in an index."""
    return len(topic) + ENTRY_BYTES


class LastEntry(NamedTuple):
    """`seq`: of the message in the stream. `place`: where its frame can be read, as the holder of the index counts."""

    topic: bytes
    seq: int
    place: int


class _Block:
    __slots__ = ("places", "seqs", "topics")

    def __init__(self, topics: list[bytes], seqs: array[int], places: array[int]) -> None:
        self.topics = topics
        self.seqs = seqs
        self.places = places


class TopicIndex:
    """`nbytes`: the memory that it takes, about."""

    __slots__ = ("_blocks", "_count", "_firsts", "nbytes")

    def __init__(self) -> None:
        self._blocks = [_Block([], array("Q"), array("Q"))]
        self._firsts: list[bytes] = [b""]  # from which topic on each block is the one to look in
        self._count = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return self._count

    def get(self, topic: bytes) -> LastEntry | None:
        block = self._blocks[bisect_right(self._firsts, topic) - 1]
        at = bisect_left(block.topics, topic)
        if at == len(block.topics) or block.topics[at] != topic:
            return None
        return LastEntry(topic, block.seqs[at], block.places[at])

    def set(self, topic: bytes, seq: int, place: int) -> bool:
        """Returns whether the topic is a new one."""
        number = bisect_right(self._firsts, topic) - 1
        block = self._blocks[number]
        at = bisect_left(block.topics, topic)
        if at < len(block.topics) and block.topics[at] == topic:
            block.seqs[at], block.places[at] = seq, place
            return False
        block.topics.insert(at, topic)
        block.seqs.insert(at, seq)
        block.places.insert(at, place)
        self._count += 1
        self.nbytes += entry_bytes(topic)
        if len(block.topics) > BLOCK_TOPICS:
            self._split(number)
        return True

    def remove(self, topic: bytes) -> bool:
        """Returns whether it was there."""
        number = bisect_right(self._firsts, topic) - 1
        block = self._blocks[number]
        at = bisect_left(block.topics, topic)
        if at == len(block.topics) or block.topics[at] != topic:
            return False
        del block.topics[at], block.seqs[at], block.places[at]
        self._count -= 1
        self.nbytes -= entry_bytes(topic)
        if not block.topics and number:
            del self._blocks[number], self._firsts[number]
        return True

    def after(self, topic: bytes, prefix: bytes = b"") -> Iterator[LastEntry]:
        """The entries behind a topic that begin with `prefix`, in order; nothing may change meanwhile."""
        number = bisect_right(self._firsts, max(topic, prefix)) - 1
        at = max(bisect_right(self._blocks[number].topics, topic), bisect_left(self._blocks[number].topics, prefix))
        for block in self._blocks[number:]:
            for each in range(at, len(block.topics)):
                if not block.topics[each].startswith(prefix):
                    return
                yield LastEntry(block.topics[each], block.seqs[each], block.places[each])
            at = 0

    def _split(self, number: int) -> None:
        block = self._blocks[number]
        half = len(block.topics) // 2
        upper = _Block(block.topics[half:], block.seqs[half:], block.places[half:])
        del block.topics[half:], block.seqs[half:], block.places[half:]
        self._blocks.insert(number + 1, upper)
        self._firsts.insert(number + 1, upper.topics[0])
