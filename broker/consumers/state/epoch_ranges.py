"""Which message of a seq is meant: epochs of given messages against the terms of the stream's present line. Pure.

A promotion may lose messages, and others get their seqs. Within a line (epoch, seq) names one message, so a member that
finishes a message sends the epoch of its frame, and messages of another line are distinguished from those of this one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from tailrace.broker.consumers.state.ranges import SeqRange
from tailrace.shard.epochs import NEVER_SEQ, History

_epoch = attrgetter("epoch")
_first_seq = attrgetter("first_seq")


def seqs_of_epoch(history: History, epoch: int) -> SeqRange:
    """The first and the last seq that messages of this epoch have or may get; the last is before the first for none.

    Of messages before all known terms only this is certain: none of them is of a later epoch than the first.
    """
    if len(history) == 1 and history[0].epoch == epoch:  # as nearly always
        return 0, NEVER_SEQ
    if not history:
        return 0, NEVER_SEQ
    if epoch < history[0].epoch:
        return 0, history[0].first_seq - 1
    place = bisect_right(history, epoch, key=_epoch)
    if history[place - 1].epoch != epoch:
        return 0, -1
    first = history[place - 1].first_seq if place > 1 else 0
    return first, history[place].first_seq - 1 if place < len(history) else NEVER_SEQ


def spans(history: History, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Messages `first` to `last` as first seq, last seq, epoch; the epoch is 0 before all that is known."""
    if history and first >= history[-1].first_seq:  # as nearly always
        yield first, last, history[-1].epoch
        return
    place = bisect_right(history, first, key=_first_seq)
    while first <= last:
        end = history[place].first_seq if place < len(history) else NEVER_SEQ
        if end > first:
            yield first, min(last, end - 1), history[place - 1].epoch if place else 0
            first = end
        place += 1
