"""Which dead letters of `X/$dead` are removed: published to stream X again, or purged. Pure.

A log loses messages at its beginning only, so a removed letter stays in `X/$dead` until all before it are removed too;
until then the log of X's consumers knows that it is.
"""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.broker.consumers.state.ranges import SeqRange, flat, merged
from tailrace.broker.consumers.state.records import LettersCut, LettersRemoved
from tailrace.broker.consumers.state.requests import Decision
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import REMOVED_MAX
from tailrace.protocol.errors import Code


def left(removed: Iterable[SeqRange], first: int, last: int) -> list[SeqRange]:
    """The letters from `first` to `last` that are not removed."""
    found: list[SeqRange] = []
    for gone_first, gone_last in removed:
        if gone_first > last:
            break
        if gone_first > first:
            found.append((first, gone_first - 1))
        first = max(first, gone_last + 1)
    if first <= last:
        found.append((first, last))
    return found


def first_left(removed: Iterable[SeqRange]) -> int:
    """Every letter before this one is removed."""
    first = next(iter(removed), None)
    return first[1] + 1 if first is not None and first[0] == 0 else 0


def remove(consumers: ConsumerTable, ranges: Iterable[SeqRange], kept_seq: int) -> Decision[None]:
    """These letters are removed; those before `kept_seq` are not kept, and count as removed.

    Raises Refused (`overloaded`) above REMOVED_MAX ranges.
    """
    before = [(0, kept_seq - 1)] if kept_seq else []
    now = merged([*consumers.removed, *before, *ranges])
    if len(now) > REMOVED_MAX:
        text = f"removed letters would be in {len(now)} places, at most {REMOVED_MAX}; begin with the oldest ones"
        raise Refused(Code.OVERLOADED, text)
    if now == consumers.removed:
        return Decision((), None)
    record = LettersRemoved(flat([*before, *ranges]))
    consumers.apply(record)
    return Decision((record,), None)


def cut(consumers: ConsumerTable, end_seq: int) -> Decision[None]:
    """`X/$dead` ends before `end_seq`: letters with later seqs are others, which are not removed."""
    if not consumers.removed or consumers.removed[-1][1] < end_seq:
        return Decision((), None)
    record = LettersCut(end_seq)
    consumers.apply(record)
    return Decision((record,), None)
