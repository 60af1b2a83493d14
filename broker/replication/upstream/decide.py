"""How a slave reacts to its upstream's answer to FOLLOW. Pure.

A copy that ends within its upstream's line goes on from its end. One that has other messages than its upstream from
some place on sets those aside and asks again; that place follows from the two histories (`shard.epochs`). A copy is
never cut for an upstream that does not know of the copy's own term yet: it waits, since that upstream is behind, or is
a master that is about to give in.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from tailrace.broker.replication.upstream.contacts import are_related
from tailrace.shard.epochs import History, first_foreign, last_epoch
from tailrace.shard.header import VALUE_MAX

FOLLOWING: Final = "following"
PARTED: Final = "parted"
BEHIND: Final = "behind"


class FollowDecision(StrEnum):
    GO_ON = "go on"  # frames come from `seq` on
    BEGIN_AT = "begin at"  # the copy begins anew at `seq`: what should come next is not kept upstream
    SET_ASIDE = "set aside"  # messages from `seq` on, then ask again
    WAIT = "wait"  # and ask again
    REFUSE = "refuse"  # this cannot be the answer


class FollowStep(NamedTuple):
    do: FollowDecision
    seq: int = 0
    why: str = ""


class UpstreamCopy(NamedTuple):
    """The upstream's answer to FOLLOW: its state, where frames start, the messages kept there, its terms."""

    state: str
    start_seq: int
    first_seq: int
    next_seq: int
    history: History


class LocalCopy(NamedTuple):
    """The copy: its terms, its kept messages (first_seq to next_seq), and the highest epoch of its messages.

    fenced: the latest term that this node has learned of; nothing of an earlier one is copied. by_itself: the node has
    chosen this upstream among several, and nobody has said that it may cut another stream for it.
    """

    history: History
    first_seq: int
    next_seq: int
    epoch: int
    fenced: int = 0
    by_itself: bool = False


def after_followed(mine: LocalCopy, theirs: UpstreamCopy) -> FollowStep:
    if last_epoch(theirs.history) < mine.fenced:
        return FollowStep(FollowDecision.WAIT, why=fence_text(last_epoch(theirs.history), mine.fenced))
    if theirs.state == FOLLOWING:
        return _after_start(mine, theirs)
    if mine.first_seq == mine.next_seq:  # nothing would be cut, and the same asked again, for ever
        return FollowStep(FollowDecision.REFUSE, why=f"it says {theirs.state} of a copy without messages")
    if mine.by_itself and not are_related(mine.history, theirs.history):
        return FollowStep(
            FollowDecision.WAIT, why="it has another stream of this name, which only a command may replace"
        )
    seq = first_foreign(mine.history, theirs.history, mine.next_seq)
    if seq >= mine.next_seq and theirs.state == BEHIND:
        return FollowStep(FollowDecision.WAIT, why="the upstream has not got all that is here yet")
    if last_epoch(theirs.history) < mine.epoch:
        return FollowStep(FollowDecision.WAIT, why=f"the upstream has not heard of term {mine.epoch} yet")
    if seq >= mine.next_seq:
        # The histories see no difference and yet there is one: they do not reach back far enough, or are incomplete.
        # The upstream is right; a term is set aside at a time.
        seq = max((start.first_seq for start in mine.history if start.first_seq < mine.next_seq), default=0)
    return FollowStep(FollowDecision.SET_ASIDE, min(seq, mine.next_seq))


def fence_text(theirs: int, known: int) -> str:
    """Why nothing is copied from an upstream in term `theirs` by a node that has learned of term `known`."""
    return f"the upstream is in term {theirs}, and this node has learned of term {known}"


def _after_start(mine: LocalCopy, theirs: UpstreamCopy) -> FollowStep:
    start_seq = theirs.start_seq
    if start_seq == mine.next_seq:
        return FollowStep(FollowDecision.GO_ON, start_seq)
    # Messages here are given up only if the upstream keeps none of the next ones, and all its numbers agree in that.
    trimmed = mine.next_seq < start_seq == theirs.first_seq <= theirs.next_seq
    if start_seq <= VALUE_MAX and (trimmed or mine.first_seq == mine.next_seq):
        return FollowStep(FollowDecision.BEGIN_AT, start_seq)
    return FollowStep(FollowDecision.REFUSE, why=f"it starts at {start_seq}, where {mine.next_seq} comes next")
