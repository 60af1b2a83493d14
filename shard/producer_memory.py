"""Bounds the memory for the producers of all streams of a worker.

Above the bound, the streams that are idle for the longest time keep the last run of each producer only; if that is not
enough, the producers that are idle for the longest time, of any stream, are forgotten.
"""

from __future__ import annotations

import heapq
from typing import Final, Protocol

FREED_SHARE: Final = 64
"""When the bound is reached a 64th of it is freed: what finding that takes is shared by many runs."""


class Droppable(Protocol):
    """The producers of a stream. Times are timestamps of the stream, 0 without producers."""

    @property
    def bytes_held(self) -> int:
        """Their memory, roughly."""

    @property
    def latest_us(self) -> int:
        """When any of them published last."""

    @property
    def oldest_us(self) -> int:
        """When the longest idle one published last."""

    def keep_last_runs(self) -> None:
        """Keep the last run of each producer only."""

    def forget_oldest(self) -> None:
        """Forget the producer that was idle for the longest time."""


class ProducerMemory:
    """`bytes_held` of all streams, kept at or below `bytes_max`."""

    __slots__ = ("_held", "bytes_held", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_held = 0
        self._held: dict[Droppable, int] = {}

    def hold(self, producers: Droppable) -> None:
        """These count from now on. Call it again when they take more or less than before."""
        self._count(producers)
        if self.bytes_held > self.bytes_max:
            self._shed(self.bytes_max - self.bytes_max // FREED_SHARE)

    def release(self, producers: Droppable) -> None:
        """These are known no more."""
        self.bytes_held -= self._held.pop(producers, 0)

    def _count(self, producers: Droppable) -> None:
        held = producers.bytes_held
        self.bytes_held += held - self._held.get(producers, 0)
        self._held[producers] = held

    def _shed(self, goal_bytes: int) -> None:
        for producers in sorted(self._held, key=lambda each: each.latest_us):
            if self.bytes_held <= goal_bytes:
                return
            producers.keep_last_runs()
            self._count(producers)
        heap = [(each.oldest_us, place, each) for place, each in enumerate(self._held) if each.bytes_held]
        heapq.heapify(heap)
        while heap and self.bytes_held > goal_bytes:
            _oldest_us, place, producers = heap[0]
            producers.forget_oldest()
            self._count(producers)
            if producers.bytes_held:
                heapq.heapreplace(heap, (producers.oldest_us, place, producers))
            else:
                heapq.heappop(heap)
