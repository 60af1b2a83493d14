"""Which messages one connection was given, so that a seq alone identifies a message. Pure.

A promotion may lose messages, and others get their seqs: a person at a terminal acknowledges the message that was
shown. It is remembered as runs with one epoch each, so that messages given in order take next to no memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from tailrace.broker.consumers.state.ranges import DeliveryRun, DeliveryRuns, SeqRange
from tailrace.protocol.consuming import FINISHED_MAX, FinishedRow

RUNS_MAX: Final = FINISHED_MAX
"""Remembered of a connection. Beyond them the oldest are forgotten of what it got from another consumer longest ago."""

ConsumerKey = tuple[bytes, bytes]
"""stream, consumer"""


class DeliveredMessages:
    """A run's `deliveries` are its epoch here."""

    def __init__(self) -> None:
        self._of: OrderedDict[ConsumerKey, DeliveryRuns] = OrderedDict()
        self._count = 0

    def note(self, key: ConsumerKey, first: int, last: int, epoch: int) -> None:
        """These messages were shown; their seqs now mean them, not messages shown before under the same seqs."""
        runs = self._of.setdefault(key, DeliveryRuns())
        self._of.move_to_end(key)
        self._count -= len(runs)
        runs.cut(first, last)
        runs.add(DeliveryRun(first, last, epoch))
        self._count += len(runs)
        while self._count > RUNS_MAX:
            self._forget_one()

    def meant(self, key: ConsumerKey, first: int, last: int) -> tuple[list[FinishedRow], list[SeqRange]]:
        """The messages of these seqs that were shown, and the seqs of which none was."""
        rows: list[FinishedRow] = []
        unknown: list[SeqRange] = []
        for run in self._of.get(key, DeliveryRuns()).overlap(first, last):
            if run.first > first:
                unknown.append((first, run.first - 1))
            rows.append((run.first, run.last, run.deliveries))
            first = run.last + 1
        if first <= last:
            unknown.append((first, last))
        return rows, unknown

    def export_state(self) -> list[list[Any]]:
        """For msgpack."""
        return [[*key, [(run.first, run.last, run.deliveries) for run in runs]] for key, runs in self._of.items()]

    def restore_state(self, state: Iterable[list[Any]]) -> None:
        for stream, consumer, rows in state:
            for first, last, epoch in rows:
                self.note((stream, consumer), first, last, epoch)

    def _forget_one(self) -> None:
        key, runs = next(iter(self._of.items()))
        run = next(iter(runs))
        runs.cut(run.first, run.last)
        self._count -= 1
        if not len(runs):
            del self._of[key]
