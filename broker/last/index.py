"""Topics, each with the seq of its last message and the place of that message's frame; and the topics in order.

A million topics as objects of their own would take gigabytes. Here a topic takes its bytes object, an entry in a
dictionary with one number, and a pointer in its order: sorted blocks of at most BLOCK_TOPICS, found by bisection.

A bisection over very many topics reads memory that is in no cache, ten times as much as a look-up, so a topic gets
there only once, and after it was set: `order` does that some at a time. Those of a start, which come all at once and
in any order, are sorted in runs, which are merged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

BLOCK_TOPICS: Final = 1_024
"""Of one block, which is split in two above it."""
ORDER_TOPICS: Final = 512
"""Of one piece of ordering."""
RUN_TOPICS: Final = 2_048
"""Of one run that is sorted; more topics at once than this make runs, if there are no others yet."""
ENTRY_BYTES: Final = 140
"""Memory of a topic beyond the bytes of its name, about: the object's head, the entry with its number, the pointer."""
_PLACE_BITS: Final = 64
_PLACE_MASK: Final = (1 << _PLACE_BITS) - 1


def entry_bytes(topic: bytes) -> int:
    """The memory of a topic in an index."""
    return len(topic) + ENTRY_BYTES


class LastEntry(NamedTuple):
    """`seq`: of the message in the stream. `place`: where its frame can be read, as the holder of the index counts."""

    topic: bytes
    seq: int
    place: int


class _SortedTopics:
    """Each topic once, in the order of the bytes."""

    __slots__ = ("_blocks", "_firsts")

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = [[]]  # only the first may be empty
        self._firsts = [b""]  # from which topic on each block is the one to look in

    @property
    def is_empty(self) -> bool:
        return not self._blocks[-1]

    def add(self, topic: bytes) -> None:
        """Unless it is there."""
        number = bisect_right(self._firsts, topic) - 1
        block = self._blocks[number]
        at = bisect_left(block, topic)
        if at < len(block) and block[at] == topic:
            return
        block.insert(at, topic)
        if len(block) > BLOCK_TOPICS:
            upper = block[len(block) // 2 :]
            del block[len(block) // 2 :]
            self._blocks.insert(number + 1, upper)
            self._firsts.insert(number + 1, upper[0])

    def extend(self, topics: list[bytes]) -> None:
        """Add topics that are in order, each once, and behind all that are there."""
        if self.is_empty:
            self._blocks[0] = topics
        elif topics:
            self._blocks.append(topics)
            self._firsts.append(topics[0])

    def remove(self, topic: bytes) -> None:
        """If it is there."""
        number = bisect_right(self._firsts, topic) - 1
        block = self._blocks[number]
        at = bisect_left(block, topic)
        if at == len(block) or block[at] != topic:
            return
        del block[at]
        if not block and number:
            del self._blocks[number], self._firsts[number]

    def after(self, topic: bytes, prefix: bytes) -> Iterator[bytes]:
        """Those behind a topic that begin with `prefix`; nothing may change meanwhile."""
        number = bisect_right(self._firsts, max(topic, prefix)) - 1
        at = max(bisect_right(self._blocks[number], topic), bisect_left(self._blocks[number], prefix))
        for block in self._blocks[number:]:
            for each in islice(block, at, None):
                if not each.startswith(prefix):
                    return
                yield each
            at = 0


class TopicIndex:
    """`nbytes`: the memory that it takes, about."""

    __slots__ = ("_entries", "_fresh", "_ordering", "_topics", "nbytes")

    def __init__(self) -> None:
        self._entries: dict[bytes, int] = {}  # the seq, and in the lower bits the place
        self._topics = _SortedTopics()
        self._fresh: list[bytes] = []  # those that are to be ordered, some perhaps removed since, or twice
        self._ordering: Iterator[None] | None = None  # of those that were fresh before
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, topic: bytes) -> LastEntry | None:
        found = self._entries.get(topic)
        return None if found is None else LastEntry(topic, found >> _PLACE_BITS, found & _PLACE_MASK)

    def set(self, topic: bytes, seq: int, place: int) -> bool:
        """Returns whether the topic is a new one."""
        entries = self._entries
        count = len(entries)
        entries[topic] = seq << _PLACE_BITS | place
        if len(entries) == count:
            return False
        self._fresh.append(topic)
        self.nbytes += entry_bytes(topic)
        return True

    def remove(self, topic: bytes) -> bool:
        """Returns whether it was there."""
        if self._entries.pop(topic, None) is None:
            return False
        self._topics.remove(topic)
        self.nbytes -= entry_bytes(topic)
        return True

    # --- their order --------------------------------------------------------------------------------------------------

    @property
    def is_ordered(self) -> bool:
        """Whether `after` knows all topics."""
        return self._ordering is None and not self._fresh

    def order(self) -> bool:
        """Do a bounded piece of ordering; whether there is more."""
        if self._ordering is None and self._fresh:
            self._ordering, self._fresh = self._order(self._fresh), []
        if self._ordering is not None and next(self._ordering, self) is self:
            self._ordering = None
        return not self.is_ordered

    def _order(self, fresh: list[bytes]) -> Iterator[None]:
        """Puts them in order; a piece is done at each step."""
        if self._topics.is_empty and len(fresh) > RUN_TOPICS:
            yield from self._order_all(fresh)
            return
        for begin in range(0, len(fresh), ORDER_TOPICS):
            if begin:
                yield
            for topic in fresh[begin : begin + ORDER_TOPICS]:
                if topic in self._entries:
                    self._topics.add(topic)

    def _order_all(self, fresh: list[bytes]) -> Iterator[None]:
        runs = []
        for begin in range(0, len(fresh), RUN_TOPICS):
            runs.append(sorted(fresh[begin : begin + RUN_TOPICS]))
            yield
        topics, last = merge(*runs), None
        while piece := list(islice(topics, ORDER_TOPICS)):
            found = []
            for topic in piece:
                if topic != last and topic in self._entries:
                    found.append(topic)
                last = topic
            self._topics.extend(found)
            yield

    def after(self, topic: bytes, prefix: bytes = b"") -> Iterator[LastEntry]:
        """The entries behind a topic that begin with `prefix`, in order; nothing may change meanwhile."""
        for each in self._topics.after(topic, prefix):
            entry = self.get(each)
            assert entry is not None
            yield entry
