"""What a slave does about its upstream's answer: every answer, for copies that stand in every way to the upstream."""

from __future__ import annotations

import random

import pytest

from tailrace.broker.replication.upstream.decide import (
    BEHIND,
    FOLLOWING,
    PARTED,
    FollowDecision,
    FollowStep,
    LocalCopy,
    UpstreamCopy,
    after_followed,
)
from tailrace.shard.epochs import EpochStart, History, begin_epoch, epoch_at, last_epoch
from tailrace.shard.header import VALUE_MAX

A, B, C = "node-a", "node-b", "node-c"


def history(*starts: tuple[int, int, str]) -> History:
    return tuple(EpochStart(*start) for start in starts)


ONE = history((1, 0, A))
TWO = history((1, 0, A), (2, 10, B))
OTHER_TWO = history((1, 0, A), (2, 10, C))
THREE = history((1, 0, A), (3, 15, C))


def mine(terms: History, next_seq: int, first_seq: int = 0) -> LocalCopy:
    """A copy whose last message has the term in its history."""
    return LocalCopy(terms, first_seq, next_seq, epoch_at(terms, next_seq - 1) if next_seq else 0)


def answer(state: str, theirs: History) -> UpstreamCopy:
    return UpstreamCopy(state, 0, 0, 0, theirs)


def test_a_copy_that_chose_its_upstream_is_not_cut_for_an_unrelated_stream() -> None:
    foreign = history((1, 0, C), (2, 10, B))
    copy = mine(history((1, 0, A)), 20)
    assert after_followed(copy, answer(PARTED, foreign)).do is FollowDecision.SET_ASIDE
    step = after_followed(copy._replace(by_itself=True), answer(PARTED, foreign))
    assert step.do is FollowDecision.WAIT and "another stream" in step.why
    assert after_followed(copy._replace(by_itself=True), answer(PARTED, TWO)).do is FollowDecision.SET_ASIDE


# --- following --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_seq", "next_seq", "start_seq", "their_first_seq", "step"),
    [
        (0, 0, 0, 0, FollowStep(FollowDecision.GO_ON, 0)),
        (0, 20, 20, 0, FollowStep(FollowDecision.GO_ON, 20)),
        (5, 20, 20, 9, FollowStep(FollowDecision.GO_ON, 20)),
        (20, 20, 20, 20, FollowStep(FollowDecision.GO_ON, 20)),
        (0, 0, 7, 0, FollowStep(FollowDecision.BEGIN_AT, 7)),
        (0, 20, 21, 21, FollowStep(FollowDecision.BEGIN_AT, 21)),  # the next message is trimmed upstream
        (20, 20, 30, 30, FollowStep(FollowDecision.BEGIN_AT, 30)),
        (20, 20, 3, 0, FollowStep(FollowDecision.BEGIN_AT, 3)),  # nothing is kept here, so it may go back
        (20, 20, VALUE_MAX, 0, FollowStep(FollowDecision.BEGIN_AT, VALUE_MAX)),
    ],
)
def test_where_frames_come_from(
    first_seq: int, next_seq: int, start_seq: int, their_first_seq: int, step: FollowStep
) -> None:
    theirs = UpstreamCopy(FOLLOWING, start_seq, their_first_seq, max(start_seq, 40), ONE)
    assert after_followed(mine(ONE, next_seq, first_seq), theirs) == step


@pytest.mark.parametrize(
    ("first_seq", "start_seq", "their_first_seq", "their_next_seq"),
    [
        (0, 0, 0, 40),  # messages that are here are not taken again
        (0, 19, 0, 40),
        (0, 30, 0, 40),  # and none is given up that the upstream could send
        (0, 30, 25, 40),
        (0, 30, 30, 29),
        (20, VALUE_MAX + 1, VALUE_MAX + 1, VALUE_MAX + 1),
    ],
)
def test_an_answer_that_cannot_be(first_seq: int, start_seq: int, their_first_seq: int, their_next_seq: int) -> None:
    step = after_followed(
        mine(ONE, 20, first_seq), UpstreamCopy(FOLLOWING, start_seq, their_first_seq, their_next_seq, ONE)
    )
    assert step.do is FollowDecision.REFUSE and f"starts at {start_seq}, where 20 comes next" in step.why


# --- parted and behind ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "copy", "theirs", "do", "seq"),
    [
        # Its own term, which began at 10, is not theirs.
        (PARTED, mine(TWO, 20), OTHER_TWO, FollowDecision.SET_ASIDE, 10),
        (BEHIND, mine(TWO, 20), OTHER_TWO, FollowDecision.SET_ASIDE, 10),
        # Theirs went on to a later term at 15, here the old one did.
        (PARTED, mine(ONE, 20), THREE, FollowDecision.SET_ASIDE, 15),
        (BEHIND, mine(ONE, 20), THREE, FollowDecision.SET_ASIDE, 15),
        # A later term of theirs at 10, where here there is only the old one; all before 10 is theirs.
        (PARTED, mine(ONE, 20), TWO, FollowDecision.SET_ASIDE, 10),
        # The same line, of which they have not got all.
        (BEHIND, mine(ONE, 20), ONE, FollowDecision.WAIT, 0),
        (BEHIND, mine(TWO, 20), TWO, FollowDecision.WAIT, 0),
        (BEHIND, mine(ONE, 12), THREE, FollowDecision.WAIT, 0),
        # They do not know the term of these messages: never cut for that.
        (PARTED, mine(TWO, 20), ONE, FollowDecision.WAIT, 0),
        (BEHIND, mine(TWO, 20), ONE, FollowDecision.WAIT, 0),
        (PARTED, mine(THREE, 20), TWO, FollowDecision.WAIT, 0),
        (PARTED, mine(TWO, 20), (), FollowDecision.WAIT, 0),
        # Nothing is known of the beginning of either: all may be another's.
        (PARTED, mine(history((5, 8, A)), 20, 8), history((6, 8, A)), FollowDecision.SET_ASIDE, 0),
        (PARTED, mine(ONE, 20), history((2, 0, B)), FollowDecision.SET_ASIDE, 0),
        # The histories see no difference and yet there is one: a term at a time.
        (PARTED, mine(TWO, 20), TWO, FollowDecision.SET_ASIDE, 10),
        (PARTED, mine(TWO, 10), TWO, FollowDecision.SET_ASIDE, 0),
        (PARTED, mine(ONE, 20), ONE, FollowDecision.SET_ASIDE, 0),
        (PARTED, LocalCopy((), 0, 20, 0), ONE, FollowDecision.SET_ASIDE, 0),
        # A term without messages that begins at the copy's end is not the copy's.
        (PARTED, mine(history((1, 0, A), (2, 20, B)), 20), history((1, 0, A), (2, 20, B)), FollowDecision.SET_ASIDE, 0),
    ],
)
def test_a_copy_that_does_not_follow(
    state: str, copy: LocalCopy, theirs: History, do: FollowDecision, seq: int
) -> None:
    step = after_followed(copy, answer(state, theirs))
    assert (step.do, step.seq) == (do, seq)
    assert bool(step.why) is (do is FollowDecision.WAIT)


@pytest.mark.parametrize("state", [PARTED, BEHIND])
@pytest.mark.parametrize("seq", [0, 20])
def test_a_copy_without_messages_cannot_have_parted(state: str, seq: int) -> None:
    """Nothing would be cut, and the same would be asked again at once."""
    assert after_followed(mine(ONE, seq, seq), answer(state, TWO)).do is FollowDecision.REFUSE


@pytest.mark.parametrize("seed", range(20))
def test_asking_again_and_again_comes_to_an_end(seed: int) -> None:
    """For any answers of the upstream, a copy is cut ever shorter; and never if its term is unknown there."""
    chance = random.Random(seed)
    for _ in range(100):
        mine_now, theirs = _some_history(chance), _some_history(chance)
        next_seq = chance.randrange(1, 60)
        while next_seq:
            copy = mine(mine_now, next_seq)
            step = after_followed(copy, answer(chance.choice((PARTED, BEHIND)), theirs))
            if step.do is not FollowDecision.SET_ASIDE:
                break
            assert 0 <= step.seq < next_seq and last_epoch(theirs) >= copy.epoch, (mine_now, theirs, next_seq)
            next_seq = step.seq


def _some_history(chance: random.Random) -> History:
    terms: History = history((1, 0, chance.choice((A, ""))))
    seq = 0
    for epoch in range(2, chance.randrange(2, 6)):
        seq += chance.randrange(20)
        if chance.random() < 0.7:
            terms = begin_epoch(terms, epoch, seq, chance.choice((A, B, "")))
    return terms
