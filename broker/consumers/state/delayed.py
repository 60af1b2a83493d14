"""Failed messages of a consumer that wait for the time of their next delivery. Pure.

They hold up the later messages of their keys, and no others. Found by time and by key without looking at all of them.
"""

from __future__ import annotations

import heapq
from typing import Final

from tailrace.broker.consumers.state.keys import KeySource
from tailrace.broker.consumers.state.ranges import DeliveryRun, DeliveryRuns, SeqRange

STALE_KEYS_MAX: Final = 4_096
"""Entries of messages that are not delayed any more, beyond which the keys are learned anew."""


class Delayed:
    """`runs`: the messages; the `deadline_us` of a run is when it may be delivered."""

    __slots__ = ("_by_key", "_due", "_entries", "_unlearned", "runs")

    def __init__(self) -> None:
        self.runs = DeliveryRuns()
        self._due: list[tuple[int, int, int]] = []  # a heap: when, first seq, last seq; some are not here any more
        self._by_key: dict[bytes, list[int]] = {}  # heaps of seqs; likewise
        self._entries = 0  # in them
        self._unlearned: list[SeqRange] = []

    def add(self, run: DeliveryRun) -> None:
        self._unlearned.append((run.first, run.last))
        heapq.heappush(self._due, (run.deadline_us, run.first, run.last))
        self.runs.add(run)  # at last: there it may become one with what follows it

    def take_due(self, now_us: int) -> list[DeliveryRun]:
        """Take out what may be delivered now."""
        taken: list[DeliveryRun] = []
        while self._due and self._due[0][0] <= now_us:
            for first, last in self._still(*heapq.heappop(self._due)):
                taken += self.runs.cut(first, last)
        return taken

    def next_due_us(self) -> int | None:
        while self._due:
            if self._still(*self._due[0]):
                return self._due[0][0]
            heapq.heappop(self._due)
        return None

    def learn(self, stream: KeySource) -> None:
        """Know the keys of all that was added."""
        if self._entries > self.runs.count + STALE_KEYS_MAX:
            self.forget_keys()
        unlearned, self._unlearned = self._unlearned, []
        for first, last in unlearned:
            for run in self.runs.overlap(first, last):
                self._learn(run, stream)

    def forget_keys(self) -> None:
        """They may be others now."""
        self._by_key, self._entries = {}, 0
        self._unlearned = [(run.first, run.last) for run in self.runs]

    def blocks(self, key: bytes, seq: int) -> bool:
        """Whether an earlier message of this key is here. Call `learn` before."""
        seqs = self._by_key.get(key, [])
        while seqs and not self.runs.overlap(seqs[0], seqs[0]):
            heapq.heappop(seqs)
            self._entries -= 1
        return bool(seqs) and seqs[0] < seq

    def _learn(self, run: DeliveryRun, stream: KeySource) -> None:
        for seq, key in zip(range(run.first, run.last + 1), stream.keys(run.first, run.last), strict=True):
            if key is not None:
                heapq.heappush(self._by_key.setdefault(key, []), seq)
                self._entries += 1

    def _still(self, due_us: int, first: int, last: int) -> list[SeqRange]:
        """Those of these messages that are here, and due then."""
        return [(run.first, run.last) for run in self.runs.overlap(first, last) if run.deadline_us == due_us]
