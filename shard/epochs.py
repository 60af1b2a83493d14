"""The epochs of a stream: in whose term which messages were given their seqs. Pure functions over small tuples.

A history is a tuple of `EpochStart`, epochs rising, first_seq never going back. An epoch lasts until the next one
begins, the last one without end; one that begins where the next begins too has no messages.

Why two histories show where two copies diverge: within one term a single master gives out the seqs, so (epoch, seq)
names one message; and a message is only ever appended after the one its master had before it. If two copies have the
same epoch at a seq, they are therefore the same from the beginning up to there (Raft calls this log matching; Kafka's
followers truncate by leader epochs on the same ground). Two slaves promoted at once without contact may choose the same
number: so a history also names the master, if it is known.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from tailrace.shard.names import NODE_BYTES_MAX

EPOCH_MAX: Final = 2**32 - 1
EPOCHS_MAX: Final = 1_024
"""Terms of one stream that are remembered; the oldest are forgotten."""
EPOCH_LEAP_MAX: Final = EPOCHS_MAX
"""How far beyond the latest term that is known here another node's may be. Terms are counted one by one, so that one
that is further away was made up; taken for true, it would leave none for anybody to begin."""
EPOCH_FIRST_MAX: Final = EPOCH_MAX // 2
"""The latest term in which a copy that knows nothing of its stream begins to follow."""
NEVER_SEQ: Final = sys.maxsize
"""Where histories part that do not."""


class EpochStart(NamedTuple):
    """Messages from `first_seq` on are of term `epoch`, with the node `master` (its id, "" if unknown)."""

    epoch: int
    first_seq: int
    master: str = ""


History: TypeAlias = tuple[EpochStart, ...]

DEFAULT_HISTORY: Final[History] = (EpochStart(1, 0),)


def make_history(starts: Iterable[EpochStart]) -> History:
    """Returns the starts as a history. ValueError if they are invalid, as from a peer or a file."""
    history = (*starts,)  # of a generator too: see `shard.replacing`
    if len(history) > EPOCHS_MAX:
        raise ValueError(f"{len(history)} epochs, at most {EPOCHS_MAX}")
    last_epoch, last_seq = 0, 0
    for epoch, first_seq, master in history:
        if type(epoch) is not int or type(first_seq) is not int or not isinstance(master, str):
            raise ValueError(f"epoch {epoch!r} at seq {first_seq!r} of {master!r}: not number, number, node id")
        if not last_epoch < epoch <= EPOCH_MAX or not last_seq <= first_seq < NEVER_SEQ:
            raise ValueError(f"epoch {epoch} at seq {first_seq} does not follow epoch {last_epoch} at seq {last_seq}")
        if len(master.encode()) > NODE_BYTES_MAX:
            raise ValueError(f"epoch {epoch}: a master of {len(master.encode())} bytes, at most {NODE_BYTES_MAX}")
        last_epoch, last_seq = epoch, first_seq
    return history


def term_at(history: History, seq: int) -> EpochStart | None:
    """The term that message `seq` has or would have; None before all that is known."""
    place = bisect_right(history, seq, key=_first_seq)
    return history[place - 1] if place else None


def epoch_at(history: History, seq: int) -> int:
    """The epoch that message `seq` has or would have; 0 before all that is known."""
    term = term_at(history, seq)
    return term.epoch if term else 0


def last_epoch(history: History) -> int:
    return history[-1].epoch if history else 0


def begin_epoch(history: History, epoch: int, seq: int, master: str = "") -> History:
    """The history of a stream whose next message, `seq`, is the first of term `epoch`.

    Epochs that were to begin later than `seq` have no messages (they were lost, or cut), and begin at `seq` too.
    ValueError if the epoch cannot follow.
    """
    before = cut_history(history, seq)[-(EPOCHS_MAX - 1) :]
    return make_history((*before, EpochStart(epoch, seq, master)))


def cut_history(history: History, seq: int) -> History:
    """The history of a stream of which message `seq` is the next: no epoch begins later than that."""
    return tuple([start if start.first_seq <= seq else start._replace(first_seq=seq) for start in history])


def claim(history: History, node_id: str) -> History:
    """The history with this node as the master of every term that names none.

    Right for a stream that no other node was ever the master of, such as one that has no .meta file.
    """
    return tuple([start if start.master else start._replace(master=node_id) for start in history])


def parting_seq(mine: History, theirs: History) -> int:
    """Returns the first seq with different terms in the two, NEVER_SEQ if they agree.

    0 if it is unknown: they differ already at the first seq known to both, so that they diverged before it.
    """
    if not mine or not theirs:
        return 0
    known = max(mine[0].first_seq, theirs[0].first_seq)
    for seq in sorted({known, *(start.first_seq for start in (*mine, *theirs) if start.first_seq > known)}):
        if not _same_term(term_at(mine, seq), term_at(theirs, seq)):
            return 0 if seq == known else seq
    return NEVER_SEQ


def first_foreign(mine: History, theirs: History, my_next_seq: int) -> int:
    """Returns the first of my messages that their line lacks and will not get; my_next_seq without any.

    A slave that follows `theirs` sets its messages aside from here on. Messages beyond their end may stay if they are
    of their present term: they have them, or will get them, from the same master.
    """
    return min(parting_seq(mine, theirs), my_next_seq)


def find_epochs(epoch_of: Callable[[int], int], first_seq: int, next_seq: int) -> History:
    """The epochs that messages first_seq..next_seq show, the latest EPOCHS_MAX of them.

    By binary search, from the end: `epoch_of` is called for a few messages of each epoch.
    """
    found: list[EpochStart] = []
    seqs = range(first_seq, next_seq)
    while seqs and len(found) < EPOCHS_MAX:
        epoch = epoch_of(seqs[-1])
        start = bisect_left(seqs, epoch, key=epoch_of)
        found.append(EpochStart(epoch, seqs[start]))
        seqs = seqs[:start]
    return tuple(reversed(found))


def reconcile(stored: History, found: History, next_seq: int) -> History:
    """The history of a stream of which `stored` was written down and `found` was read from the messages that are kept.

    The messages are the evidence for what they cover; the stored history adds earlier ones, the masters, and terms
    without a message yet. A stored term that has none, by the messages, begins at `next_seq` at the earliest.
    """
    if not found:
        return stored
    oldest = found[0]
    covered = term_at(stored, oldest.first_seq)
    if covered is not None and covered.epoch == oldest.epoch:
        oldest = covered
    before = [start for start in stored if start.epoch < oldest.epoch and start.first_seq <= oldest.first_seq]
    masters = {start.epoch: start.master for start in stored}
    middle = [start._replace(master=masters.get(start.epoch, start.master)) for start in (oldest, *found[1:])]
    after = [
        start._replace(first_seq=max(start.first_seq, next_seq)) for start in stored if start.epoch > found[-1].epoch
    ]
    return make_history((*before, *middle, *after)[-EPOCHS_MAX:])


def contradiction(stored: History, found: History, next_seq: int) -> EpochStart | None:
    """Returns a message whose epoch contradicts the stored history, and no crash explains it; None if they agree.

    An epoch later than all stored ones is not a contradiction: a slave appends first and writes then.
    """
    ends = [start.first_seq for start in found[1:]]
    for (epoch, first_seq, _), end_seq in zip(found, [*ends, next_seq], strict=False):
        if epoch > last_epoch(stored):
            return None
        if epoch_at(stored, first_seq) not in (0, epoch):
            return EpochStart(epoch, first_seq)
        if epoch_at(stored, end_seq - 1) not in (0, epoch):
            wrong = next(start.first_seq for start in stored if start.first_seq > first_seq and start.epoch != epoch)
            return EpochStart(epoch, wrong)
    return None


def _same_term(mine: EpochStart | None, theirs: EpochStart | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return mine.epoch == theirs.epoch and (mine.master == theirs.master or not mine.master or not theirs.master)


def _first_seq(start: EpochStart) -> int:
    return start.first_seq
