"""Runs of messages, in the order of their seqs, apart from each other. Pure.

A consumer's unfinished messages are kept as runs: one run for all neighbours in the same state, so that a thousand
messages that were given together cost as much as one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TypeAlias

SeqRange: TypeAlias = tuple[int, int]
"""first seq, last seq"""


class DeliveryRun:
    """Messages `first` to `last`, each delivered so often before. Those in flight have a member and a deadline."""

    __slots__ = ("deadline_us", "deliveries", "first", "last", "member")

    def __init__(self, first: int, last: int, deliveries: int, member: bytes = b"", deadline_us: int = 0) -> None:
        self.first = first
        self.last = last
        self.deliveries = deliveries
        self.member = member
        self.deadline_us = deadline_us

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __repr__(self) -> str:
        return f"Run({self.first}, {self.last}, {self.deliveries}, {self.member!r}, {self.deadline_us})"

    def part(self, first: int, last: int) -> DeliveryRun:
        """The part of it between these two; the caller knows that there is some."""
        return DeliveryRun(max(first, self.first), min(last, self.last), self.deliveries, self.member, self.deadline_us)

    def goes_on_as(self, other: DeliveryRun) -> bool:
        """Whether the other one is the rest of it."""
        return (
            self.last + 1 == other.first
            and self.deliveries == other.deliveries
            and self.deadline_us == other.deadline_us
            and self.member == other.member
        )


class DeliveryRuns:
    """`count`: messages in all of them."""

    __slots__ = ("_firsts", "_runs", "count")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._runs: list[DeliveryRun] = []
        self.count = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[DeliveryRun]:
        return iter(self._runs)

    def first_seq(self, default: int) -> int:
        return self._firsts[0] if self._firsts else default

    def add(self, run: DeliveryRun) -> None:
        """None of its messages is here. If it continues a neighbour, the two become one, and it may grow."""
        firsts, runs = self._firsts, self._runs
        self.count += run.last - run.first + 1
        place = len(firsts)
        if place and firsts[-1] > run.first:
            place = bisect_right(firsts, run.first)
        if place and runs[place - 1].goes_on_as(run):
            place -= 1
            runs[place].last = run.last
        else:
            firsts.insert(place, run.first)
            runs.insert(place, run)
        if place + 1 < len(runs) and runs[place].goes_on_as(runs[place + 1]):
            runs[place].last = runs[place + 1].last
            del firsts[place + 1], runs[place + 1]

    def cut(self, first: int, last: int) -> list[DeliveryRun]:
        """Take out those of these messages that are here."""
        low, high = self._between(first, last)
        if low == high:
            return []
        taken = self._runs[low:high]
        rest = [taken[0].part(0, first - 1)] if taken[0].first < first else []
        if taken[-1].last > last:
            rest.append(taken[-1].part(last + 1, taken[-1].last))
        self._runs[low:high] = rest
        self._firsts[low:high] = [run.first for run in rest]
        _clip(taken, first, last)
        self.count -= sum(map(len, taken))
        return taken

    def overlap(self, first: int, last: int) -> list[DeliveryRun]:
        """Those of these messages that are here."""
        low, high = self._between(first, last)
        found = self._runs[low:high]
        _clip(found, first, last)
        return found

    def _between(self, first: int, last: int) -> tuple[int, int]:
        """Which of the runs have messages from `first` to `last`."""
        low = bisect_right(self._firsts, first)
        if low and self._runs[low - 1].last >= first:
            low -= 1
        return low, max(low, bisect_right(self._firsts, last))


def _clip(found: list[DeliveryRun], first: int, last: int) -> None:
    """Runs next to each other: leave of the outer ones what lies between the two seqs. The runs themselves stay."""
    if found and found[0].first < first:
        found[0] = found[0].part(first, last)
    if found and found[-1].last > last:
        found[-1] = found[-1].part(first, last)


def merged(ranges: Iterable[SeqRange]) -> list[SeqRange]:
    """The same messages in order, with as few ranges as can be."""
    found: list[SeqRange] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            if last > found[-1][1]:
                found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


def flat(ranges: Iterable[SeqRange]) -> tuple[int, ...]:
    """first seq, messages, first seq, messages, … in order."""
    return tuple([number for first, last in merged(ranges) for number in (first, last - first + 1)])


def unflat(numbers: Iterable[int]) -> list[SeqRange]:
    """What `flat` made of it."""
    each = iter(numbers)
    return [(first, first + count - 1) for first, count in zip(each, each, strict=True)]
