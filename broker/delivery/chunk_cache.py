"""The chunks that several subscribers may ask for, by their place; the oldest go first.

Dropped chunks can be made again from the log. So only the order in which chunks came is needed: subscribers near the
end of a stream ask for new ones, and those far behind ask for each once. For the same reason a chunk is dropped about a
second after it was made, also with room left: else an idle cache fills up over hours with chunks that nobody asks for
again. Each chunk that is kept drops some old ones, since to drop those of a second at once takes milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

ENTRY_BYTES = 256  # what a kept chunk costs beside its bytes
DROP_EVERY_S = 0.5  # between two calls of `drop_old`
DROPPED_A_KEEP = 2  # old chunks, at most; one more than comes, so that they become fewer
DROPPED_A_CALL = 128  # of `drop_old`, at most
LONE_BYTES_MAX = 2 << 10
"""A stream's only subscriber gets chunks of up to this size uncached: to make one again takes no longer than to keep
it."""

ChunkKey = tuple[bytes, int]  # stream, seq of the first message


class CachedChunk(Protocol):
    @property
    def held_bytes(self) -> int:
        """Its bytes in memory."""


AnyCachedChunk = TypeVar("AnyCachedChunk", bound=CachedChunk)


class ChunkCache(Generic[AnyCachedChunk]):
    """Holds at most `bytes_max`, or one chunk that is larger."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chunks: OrderedDict[ChunkKey, AnyCachedChunk] = OrderedDict()
        # Of the chunks since the last call of `drop_old`, of those before, and of those to be dropped.
        self._young: set[ChunkKey] = set()
        self._old: set[ChunkKey] = set()
        self._aged: set[ChunkKey] = set()
        self.held_bytes = 0
        self.get: Callable[[ChunkKey], AnyCachedChunk | None] = (
            self._chunks.get
        )  # without a frame of ours: each send asks

    def __len__(self) -> int:
        return len(self._chunks)

    def keep(self, place: ChunkKey, chunk: AnyCachedChunk) -> None:
        """Keep a chunk in the stead of the one at its place, and drop the oldest beyond the bound."""
        if place in self._chunks:
            self._drop(place)
            self._forget(place)
        self._chunks[place] = chunk
        self._young.add(place)
        self.held_bytes += ENTRY_BYTES + chunk.held_bytes
        while self.held_bytes > self._bytes_max and len(self._chunks) > 1:
            oldest, dropped = self._chunks.popitem(last=False)
            self.held_bytes -= _cost(dropped)
            self._forget(oldest)
        if self._aged:
            self._drop_aged(DROPPED_A_KEEP)

    def drop_old(self) -> None:
        """Begin to drop the chunks that were here at the last call already; go on with it if that has begun."""
        if not self._aged:
            self._aged, self._old, self._young = self._old, self._young, self._aged
        self._drop_aged(DROPPED_A_CALL)

    def _drop_aged(self, count: int) -> None:
        aged = self._aged
        while aged and count:
            self._drop(aged.pop())
            count -= 1

    def _forget(self, place: ChunkKey) -> None:
        """Nothing is at this place any more."""
        for places in (self._young, self._old, self._aged):
            places.discard(place)

    def _drop(self, place: ChunkKey) -> None:
        chunk = self._chunks.pop(place, None)
        if chunk is not None:
            self.held_bytes -= _cost(chunk)

    def clear(self) -> None:
        for places in (self._chunks, self._young, self._old, self._aged):
            places.clear()
        self.held_bytes = 0


def _cost(chunk: CachedChunk) -> int:
    return ENTRY_BYTES + chunk.held_bytes
