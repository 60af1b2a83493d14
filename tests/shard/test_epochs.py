"""Histories, and the point where two of them diverge: against lists of every message's term, and a small cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from operator import eq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tailrace.shard.epochs import (
    DEFAULT_HISTORY,
    EPOCH_MAX,
    EPOCHS_MAX,
    NEVER_SEQ,
    EpochStart,
    History,
    begin_epoch,
    claim,
    contradiction,
    cut_history,
    epoch_at,
    find_epochs,
    first_foreign,
    last_epoch,
    make_history,
    parting_seq,
    reconcile,
    term_at,
)
from tests.thorough import examples

LONG = 40  # longer than any history below


def common_end(mine: History, theirs: History, my_next_seq: int, their_next_seq: int) -> int:
    """Messages before this seq are there on both sides and are the same; no more are."""
    return min(parting_seq(mine, theirs), my_next_seq, their_next_seq)


def made(*starts: tuple[int, int] | tuple[int, int, str]) -> History:
    return make_history(EpochStart(*start) for start in starts)


@st.composite
def histories(draw: st.DrawFn, first_seq: int | None = 0) -> History:
    epochs = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=6)))
    seqs = sorted(draw(st.lists(st.integers(0, 30), min_size=len(epochs), max_size=len(epochs))))
    if first_seq is not None:
        seqs[0] = first_seq
    masters = draw(st.lists(st.sampled_from(["", "a", "b"]), min_size=len(epochs), max_size=len(epochs)))
    return make_history(map(EpochStart, epochs, seqs, masters))


def spread(history: History, count: int = LONG) -> list[tuple[int, str] | None]:
    """The term of each message, one by one."""
    terms: list[tuple[int, str] | None] = [None] * count
    for epoch, first_seq, master in history:
        terms[first_seq:] = [(epoch, master)] * max(count - first_seq, 0)
    return terms[:count]


def agree(one: tuple[int, str] | None, other: tuple[int, str] | None) -> bool:
    if one is None or other is None:
        return one is other
    return one[0] == other[0] and (one[1] == other[1] or "" in (one[1], other[1]))


def test_the_epoch_of_a_message() -> None:
    history = made((1, 0), (3, 10), (4, 10, "node"), (7, 12))
    assert [epoch_at(history, seq) for seq in (0, 9, 10, 11, 12, 1_000)] == [1, 1, 4, 4, 7, 7]
    assert term_at(history, 11) == (4, 10, "node")
    assert epoch_at(made((3, 10)), 9) == epoch_at((), 0) == 0
    assert (last_epoch(history), last_epoch(())) == (7, 0)
    assert epoch_at(DEFAULT_HISTORY, 0) == 1


@given(histories(None), st.integers(0, LONG - 1))
def test_the_epoch_of_any_message(history: History, seq: int) -> None:
    term = spread(history)[seq]
    assert epoch_at(history, seq) == (term[0] if term else 0)


@pytest.mark.parametrize(
    "starts",
    [
        [(0, 0, "")],
        [(2, 0, ""), (2, 5, "")],
        [(2, 0, ""), (1, 5, "")],
        [(1, 5, ""), (2, 4, "")],
        [(1, -1, "")],
        [(EPOCH_MAX + 1, 0, "")],
        [(1, NEVER_SEQ, "")],
        [(1, 0, "n" * 33)],
        [("1", 0, "")],
        [(1, None, "")],
        [(True, 0, "")],
        [(1, 0, 7)],
        [(i + 1, 0, "") for i in range(EPOCHS_MAX + 1)],
    ],
)
def test_what_is_no_history(starts: list[tuple[int, int, str]]) -> None:
    with pytest.raises(ValueError, match=r"epoch"):
        make_history(EpochStart(*start) for start in starts)


def test_an_epoch_begins() -> None:
    assert begin_epoch(DEFAULT_HISTORY, 2, 10, "node") == made((1, 0), (2, 10, "node"))
    assert begin_epoch(made((1, 0), (2, 10)), 3, 7) == made((1, 0), (2, 7), (3, 7)), "10 to 7 were lost"
    with pytest.raises(ValueError, match="epoch 2 at seq 10 does not follow epoch 2"):
        begin_epoch(made((1, 0), (2, 10)), 2, 10)
    history = DEFAULT_HISTORY
    for epoch in range(2, EPOCHS_MAX + 3):
        history = begin_epoch(history, epoch, epoch)
    assert (len(history), history[0], last_epoch(history)) == (EPOCHS_MAX, (3, 3, ""), EPOCHS_MAX + 2)


def test_a_cut_history_begins_no_epoch_beyond_the_cut() -> None:
    assert cut_history(made((1, 0), (2, 10), (3, 20)), 10) == made((1, 0), (2, 10), (3, 10))
    assert cut_history(made((1, 0)), 0) == made((1, 0))


def test_terms_of_nobody_are_claimed() -> None:
    assert claim(made((1, 0), (2, 5, "other")), "me") == made((1, 0, "me"), (2, 5, "other"))


@settings(max_examples=examples(300))
@given(histories(), histories())
def test_where_two_histories_part(mine: History, theirs: History) -> None:
    same = list(map(agree, spread(mine), spread(theirs)))
    parting = parting_seq(mine, theirs)
    assert parting == (same.index(False) if False in same else NEVER_SEQ)
    assert parting == parting_seq(theirs, mine)


@settings(max_examples=examples(300))
@given(histories(None), histories(None))
def test_where_they_part_is_never_said_too_late(mine: History, theirs: History) -> None:
    """If they differ already at the first known seq, nothing is common."""
    known = max(mine[0].first_seq, theirs[0].first_seq)
    same = list(map(agree, spread(mine)[known:], spread(theirs)[known:]))
    expected = known + same.index(False) if False in same else NEVER_SEQ
    assert parting_seq(mine, theirs) == (expected if expected > known else 0)


@given(histories(), histories(), st.integers(0, LONG), st.integers(0, LONG))
def test_the_common_end_is_within_both(mine: History, theirs: History, my_next: int, their_next: int) -> None:
    end = common_end(mine, theirs, my_next, their_next)
    pairs = zip(spread(mine, my_next), spread(theirs, their_next), strict=False)
    assert end == len(list(takewhile(lambda pair: agree(*pair), pairs)))
    assert end <= first_foreign(mine, theirs, my_next) <= my_next


def test_unknown_histories_have_nothing_in_common() -> None:
    assert parting_seq((), DEFAULT_HISTORY) == parting_seq(DEFAULT_HISTORY, ()) == 0


def test_examples_of_parting() -> None:
    old, new = made((1, 0, "a")), made((1, 0, "a"), (2, 7, "b"))
    assert common_end(old, new, 10, 7) == first_foreign(old, new, 10) == 7, "the old master's tail of three"
    assert common_end(old, new, 5, 7) == first_foreign(old, new, 5) == 5, "a slave that is behind"
    assert common_end(old, old, 10, 7) == 7
    assert first_foreign(old, old, 10) == 10, "ahead of another slave of the same master"
    other = made((1, 0, "a"), (2, 9, "c"))
    assert common_end(new, other, 20, 20) == 7, "both were promoted to the same epoch at once"
    assert common_end(made((2, 0, "b")), made((2, 0, "c")), 20, 20) == 0, "they have only the name in common"


# --- the stored history and the messages


def test_the_messages_are_the_evidence() -> None:
    stored = made((1, 0, "a"), (2, 10, "b"), (5, 40, "c"))
    assert reconcile(stored, (), 12) == stored
    assert reconcile(stored, made((1, 0), (2, 10)), 12) == stored, "the rest of a master's history is still to come"
    assert reconcile(stored, made((2, 11)), 12) == stored, "trimmed"
    assert reconcile(stored, made((1, 3)), 9) == stored
    assert reconcile(stored, made((1, 3)), 50) == made((1, 0, "a"), (2, 50, "b"), (5, 50, "c"))
    assert reconcile(stored, made((1, 3), (4, 8)), 9) == made((1, 0, "a"), (4, 8), (5, 40, "c"))
    assert reconcile((), made((4, 8)), 9) == made((4, 8))
    assert reconcile(made((1, 0, "a")), made((1, 3), (2, 8)), 9) == made((1, 0, "a"), (2, 8)), "not written down yet"


def found_in(terms: list[int], first_seq: int) -> History:
    """The epochs that the messages from `first_seq` on show."""
    kept = list(enumerate(terms))[first_seq:]
    firsts = kept[:1] + [after for before, after in pairwise(kept) if after[1] != before[1]]
    return make_history(EpochStart(epoch, seq) for seq, epoch in firsts)


@given(histories(), st.integers(0, 30), st.data())
def test_epochs_are_found_by_few_looks(history: History, next_seq: int, data: st.DataObject) -> None:
    terms = [term[0] for term in spread(history, next_seq) if term]
    first_seq = data.draw(st.integers(0, next_seq))
    assert find_epochs(terms.__getitem__, first_seq, next_seq) == found_in(terms, first_seq)
    looks: list[int] = []

    def looked_at(seq: int) -> int:
        looks.append(seq)
        return 1

    assert find_epochs(looked_at, 0, 2**40) == ((1, 0, ""),)
    assert len(looks) < 50


def test_of_too_many_terms_the_latest_are_found() -> None:
    terms = [epoch for epoch in range(1, EPOCHS_MAX + 101) for _ in range(2)]
    found = find_epochs(terms.__getitem__, 0, len(terms))
    assert (
        found[0] == (101, 200, "") and found[-1] == (EPOCHS_MAX + 100, len(terms) - 2, "") and len(found) == EPOCHS_MAX
    )
    assert reconcile(found, found, len(terms)) == found


@given(histories(), st.integers(0, 30), st.data())
def test_a_history_agrees_with_its_own_messages(history: History, next_seq: int, data: st.DataObject) -> None:
    terms = [term[0] for term in spread(history, next_seq) if term]
    found = found_in(terms, data.draw(st.integers(0, next_seq)))
    assert contradiction(history, found, next_seq) is None
    assert spread(reconcile(history, found, next_seq)) == spread(history)


@given(histories(), histories(), st.integers(1, 30), st.data())
def test_every_message_that_contradicts_is_seen(
    stored: History, true: History, next_seq: int, data: st.DataObject
) -> None:
    first_seq = data.draw(st.integers(0, next_seq - 1))
    terms = [term[0] for term in spread(true, next_seq) if term]
    wrong = [
        seq
        for seq in range(first_seq, next_seq)
        if terms[seq] <= last_epoch(stored) and epoch_at(stored, seq) != terms[seq]
    ]
    told = contradiction(stored, found_in(terms, first_seq), next_seq)
    assert (told is None) == (not wrong)
    if told is not None:
        assert told.first_seq in wrong
        assert terms[told.first_seq] == told.epoch
    known = reconcile(stored, found_in(terms, first_seq), next_seq)
    assert [epoch_at(known, seq) for seq in range(first_seq, next_seq)] == terms[first_seq:]


# --- a little cluster


@dataclass
class Node:
    name: str
    history: History
    master: bool = False
    messages: list[int] = field(default_factory=list)

    @property
    def next_seq(self) -> int:
        return len(self.messages)

    @property
    def term(self) -> tuple[int, str]:
        return self.history[-1].epoch, self.history[-1].master


node = st.integers(0, 3)


class Cluster(RuleBasedStateMachine):
    """Nodes that append, promote, follow and forget as they like. Each message is a number that was never given before.

    One rule makes histories reliable: a master that lost messages begins a new epoch.
    """

    nodes: list[Node]

    @initialize()
    def begin(self) -> None:
        self.given = 0
        self.nodes = [Node(name, claim(DEFAULT_HISTORY, "a")) for name in "abcd"]
        self.nodes[0].master = True

    @rule(at=node, count=st.integers(1, 4))
    def append(self, at: int, count: int) -> None:
        if self.nodes[at].master:
            self.nodes[at].messages += range(self.given, self.given + count)
            self.given += count

    @rule(at=node, chance=st.integers(0, 3))
    def promote_now_and_then(self, at: int, chance: int) -> None:
        if chance == 0:
            self.promote(self.nodes[at])

    def promote(self, one: Node) -> None:
        one.history = begin_epoch(one.history, last_epoch(one.history) + 1, one.next_seq, one.name)
        one.master = True

    @rule(at=node, share=st.integers(0, 9), data=st.data())
    def follow(self, at: int, share: int, data: st.DataObject) -> None:
        """Sets the foreign tail aside, takes the upstream's history and some of its messages."""
        mine = self.nodes[at]
        upstreams = [theirs for theirs in self.nodes if self.may_follow(mine, theirs)]
        if not upstreams:
            return
        theirs = data.draw(st.sampled_from(upstreams))
        foreign = first_foreign(mine.history, theirs.history, mine.next_seq)
        if mine.term != theirs.term:
            assert not set(mine.messages[foreign:]) & set(theirs.messages)
        del mine.messages[foreign:]
        mine.history, mine.master = theirs.history, False
        if mine.next_seq < theirs.next_seq:
            mine.messages += theirs.messages[mine.next_seq : mine.next_seq + share]

    def may_follow(self, mine: Node, theirs: Node) -> bool:
        """A lower epoch has no effect, and a master does not follow in its own term."""
        if mine.term == theirs.term:
            return mine is not theirs and not mine.master
        return last_epoch(theirs.history) > last_epoch(mine.history)

    @rule(at=node, count=st.integers(1, 4))
    def lose(self, at: int, count: int) -> None:
        one = self.nodes[at]
        del one.messages[max(one.next_seq - count, 0) :]
        if one.master:
            self.promote(one)

    @invariant()
    def histories_tell_what_is_common(self) -> None:
        for mine in getattr(self, "nodes", []):
            for theirs in self.nodes:
                same = takewhile(lambda pair: eq(*pair), zip(mine.messages, theirs.messages, strict=False))
                end = common_end(mine.history, theirs.history, mine.next_seq, theirs.next_seq)
                assert end == len(list(same)), (mine, theirs)


Cluster.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestCluster = Cluster.TestCase
