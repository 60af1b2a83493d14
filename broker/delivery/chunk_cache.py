"""The chunks that several subscribers may ask for, by their place; the oldest go first.

Dropped chunks can be made again from the log. So only the order in which chunks came is needed: subscribers near the
end of a stream ask for new ones, and those far behind ask for each once. For the same reason a chunk is dropped a
second or two after it was made, also with room left: else an idle cache fills up over hours with chunks that nobody
asks for again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

ENTRY_BYTES = 256  # what a kept chunk costs beside its bytes
DROP_EVERY_S = 1.0  # between two calls of `drop_old`

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
        self._old: set[ChunkKey] = set()  # of the chunks that the next `drop_old` drops
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
            self._old.discard(place)
        self._chunks[place] = chunk
        self.held_bytes += ENTRY_BYTES + chunk.held_bytes
        while self.held_bytes > self._bytes_max and len(self._chunks) > 1:
            self.held_bytes -= _cost(self._chunks.popitem(last=False)[1])

    def drop_old(self) -> None:
        """Drop the chunks that were here at the last call already."""
        for place in self._old:
            self._drop(place)
        self._old = set(self._chunks)

    def _drop(self, place: ChunkKey) -> None:
        chunk = self._chunks.pop(place, None)
        if chunk is not None:
            self.held_bytes -= _cost(chunk)

    def clear(self) -> None:
        self._chunks.clear()
        self._old.clear()
        self.held_bytes = 0


def _cost(chunk: CachedChunk) -> int:
    return ENTRY_BYTES + chunk.held_bytes
