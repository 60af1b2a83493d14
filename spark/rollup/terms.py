"""Copies of one stream on several nodes: which of them is ahead, and from where on another one is no longer the stream.

A master that went down may come back with messages that nobody else has, while a slave was promoted and has given their
seqs to others. The terms of a copy (`shard.epochs`) show that: the copy whose last message is of the later term is the
stream, as in `CopyEnd.is_ahead_of`, however many messages the other has.

The table of nodes keeps the terms of each copy, so that a copy which is read in a later run can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tailrace.shard.epochs import (
    DEFAULT_HISTORY,
    NEVER_SEQ,
    EpochStart,
    History,
    claim,
    last_epoch,
    make_history,
    parting_seq,
)

UNLISTED: Final = DEFAULT_HISTORY
"""The terms of a stream that a node does not list."""
Histories = dict[str, History]
"""The terms of a node's copies, by stream, but for UNLISTED ones."""


class Copy(NamedTuple):
    """A node's copy of a stream. `node` is its id; `history` has the terms that its messages have reached. `last_seq`:
    its last message of the day, -1 without any."""

    node: str
    history: History
    last_seq: int = -1


def is_same_stream(one: Copy, other: Copy) -> bool:
    """Whether a term of both has the same master. False does not mean that they are different streams."""
    return not _masters(one).isdisjoint(_masters(other))


def is_ahead(one: Copy, other: Copy) -> bool:
    """Whether the last message of `one` is of a later term, of copies of the same stream."""
    mine, theirs = last_epoch(one.history), last_epoch(other.history)
    if mine != theirs or not mine:
        return mine > theirs
    # Two nodes that were promoted without contact may have begun terms of one number: the larger id stays the master.
    masters = one.history[-1].master, other.history[-1].master
    return all(masters) and masters[0] > masters[1]


def find_foreign_seq(copy: Copy, others: Iterable[Copy]) -> int:
    """The first seq at which `copy` has a message that is not of the stream, going by the copies that are ahead of it;
    NEVER_SEQ without one."""
    return min((_parting(copy, other) for other in others if is_ahead(other, copy)), default=NEVER_SEQ)


def choose_copy(copies: Iterable[Copy], others: Iterable[Copy] = ()) -> Copy:
    """The copy under whose node the rows are: the one that is ahead, or of level ones the master that one of them or of
    `others` names; without any the one with the latest message, as the rows are made anew when its node is read again;
    of several the one with the largest id. The order of the arguments does not matter.
    """
    copies = tuple(copies)
    named = {(start.epoch, start.master) for copy in (*copies, *others) for start in copy.history}

    def order(copy: Copy) -> tuple[int, str, bool, int, str]:
        epoch, master = last_epoch(copy.history), (copy.history and copy.history[-1].master) or copy.node
        leader = master if (epoch, master) in named else ""
        return epoch, leader, copy.node == leader, copy.last_seq, copy.node

    return max(copies, key=order)


def _parting(copy: Copy, ahead: Copy) -> int:
    known = max(each.history[0].first_seq if each.history else NEVER_SEQ for each in (copy, ahead))
    return parting_seq(copy.history, ahead.history) or known


def _masters(copy: Copy) -> set[tuple[int, str]]:
    """The master of each term. A node that names none was it itself."""
    return {(start.epoch, start.master) for start in claim(copy.history, copy.node)}


def to_text(histories: Mapping[str, History]) -> str:
    """For the table of nodes: a JSON object, for each stream a list of [epoch, first seq, id of the master]."""
    return json.dumps(histories, ensure_ascii=False, separators=(",", ":"))


def from_text(text: str) -> Histories:
    """Raises ValueError."""
    return {stream: make_history(EpochStart(*start) for start in starts) for stream, starts in json.loads(text).items()}
