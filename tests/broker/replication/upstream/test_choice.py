"""Which upstream of its list a node follows: alone, and many nodes with faults at random. A failure has the seed."""

from __future__ import annotations

import random

import pytest

from tailrace.broker.replication.upstream.choice import (
    DIAL_MAX_S,
    DIAL_S,
    ORPHAN_FACTOR,
    SPREAD,
    TRIAL_FACTOR_MAX,
    UpstreamChoice,
)
from tests.broker.replication.choosing import SILENCE_S, SWITCH_S, Model
from tests.thorough import examples

NODES = 9
CIRCLE_MAX_S = 1.0
SETTLE_S = 240.0


def least(low: float, _high: float) -> float:
    return low


def choice(count: int = 3) -> UpstreamChoice:
    made = UpstreamChoice(count, SWITCH_S, least)
    assert made.dial(0.0) == 0
    return made


def attempts(made: UpstreamChoice, now_s: float, until_s: float) -> list[int]:
    """The nodes that are tried in this time, if none of them can be reached."""
    tried = []
    while (now_s := max(made.dial_s, now_s)) < until_s:
        tried.append(made.dial(now_s))
        made.failed(now_s, was_steady=False)
    return tried


def test_one_that_is_lost_is_tried_for_the_bound_and_then_the_others_in_order() -> None:
    made = choice()
    made.leads(100.0)
    made.failed(100.0, was_steady=True)
    tried = attempts(made, 100.0, 101.0)
    assert set(tried) == {0} and len(tried) > 2
    later = attempts(made, 101.0, 200.0)
    first = later.index(1)
    assert set(later[:first]) == {0} and later[first : first + 7] == [1, 2, 0, 1, 2, 0, 1]
    assert made.dial_s - 200.0 < DIAL_MAX_S


def test_the_first_is_tried_however_late() -> None:
    made = UpstreamChoice(2, SWITCH_S, least)
    assert made.dial(1_000.0) == 0


def test_the_move_comes_at_the_bound_and_no_pause_puts_it_off() -> None:
    made = choice()
    made.leads(100.0)
    made.pauses = 10
    made.failed(100.0 + SWITCH_S - 0.1, was_steady=False)
    assert made.dial_s == pytest.approx(100.0 + SWITCH_S)
    assert made.dial(made.dial_s) == 1
    made.failed(made.dial_s, was_steady=False)
    assert made.dial_s == pytest.approx(100.0 + SWITCH_S + DIAL_S / 2), "pauses grow from the beginning for the others"


def test_a_node_stays_where_it_has_moved() -> None:
    made = choice()
    assert made.dial(SWITCH_S) == 1 and made.leads(6.0)
    for now_s in range(10, 1_000, 10):
        assert not made.leads(now_s - 0.5)
        made.failed(now_s, was_steady=True)
        assert made.dial(made.dial_s) == 1 and made.dial_s - now_s <= DIAL_S
    made.failed(1_000.0, was_steady=True)
    assert attempts(made, 1_000.0, 1_060.0)[-3:] != [1, 1, 1]
    made.leads(1_060.0)


def test_after_the_one_that_it_moved_to_the_head_of_the_list_comes_first() -> None:
    made = choice()
    made.dial(SWITCH_S)
    made.leads(6.0)
    made.failed(6.0, was_steady=True)
    tried = attempts(made, 6.0, 60.0)
    first = next(number for number, index in enumerate(tried) if index != 1)
    assert tried[first : first + 3] == [0, 2, 1]


def test_an_orphan_gets_time_to_find_another_upstream_itself() -> None:
    made = choice()
    made.leads(100.0)
    assert not made.is_useless(50.0, 100.0 + ORPHAN_FACTOR * SWITCH_S)
    assert made.is_useless(50.0, 100.1 + ORPHAN_FACTOR * SWITCH_S)


def test_one_that_is_tried_gets_longer_in_each_round() -> None:
    made, now_s, patience = choice(2), 100.0, []
    made.leads(100.0)
    for _ in range(14):
        made.failed(now_s, was_steady=True)
        now_s = max(now_s, made.dial_s) + SWITCH_S
        made.dial(now_s)
        up_s = now_s
        while not made.is_useless(up_s, now_s):
            now_s += 0.5
        patience.append(round((now_s - up_s) / SWITCH_S))
    assert patience[:6] == [1, 1, 2, 2, 4, 4] and patience[-1] == TRIAL_FACTOR_MAX


def test_this_very_node_is_left_at_once() -> None:
    made = choice()
    made.failed(0.1, was_steady=False, for_good=True)
    assert made.dial_s == 0.1 and made.dial(0.1) == 1


def test_a_single_upstream_is_kept_for_ever() -> None:
    made = choice(1)
    assert set(attempts(made, 0.0, 1_000.0)) == {0}
    assert not made.is_useless(0.0, 1e9) and made.attempt_s == float("inf")


def test_nodes_below_a_lost_one_do_not_move_at_the_same_moment() -> None:
    times = []
    for seed in range(20):
        made = UpstreamChoice(2, SWITCH_S, random.Random(seed).uniform)
        assert made.dial(0.0) == 0
        made.pauses = 16
        made.failed(0.0, was_steady=False)
        while made.dial(made.dial_s) == 0:
            made.failed(made.dial_s, was_steady=False)
        times.append(made.dial_s)
    assert SWITCH_S <= min(times) < max(times) <= SPREAD * SWITCH_S and len(set(times)) == len(times)


# --- many nodes -------------------------------------------------------------------------------------------------------


def lists(chance: random.Random) -> dict[str, list[str]]:
    """Each node lists others at random, those below it too, and the master somewhere."""
    names = [f"n{number}" for number in range(NODES)]
    found: dict[str, list[str]] = {names[0]: []}
    for name in names[1:]:
        others = chance.sample([each for each in names[1:] if each != name], chance.randint(1, 4))
        others.insert(chance.randint(0, len(others)), names[0])
        found[name] = others
    return found


class Party:
    """Faults at random, and what must hold all the time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.model = Model(lists(self.chance), seed)
        self.circle_s = 0.0

    def watch(self) -> bool:
        """For `Model.run`: circles end as soon as the news of them has gone round."""
        circle = self.model.circle()
        if not circle:
            self.circle_s = self.model.now_s
        assert self.model.now_s - self.circle_s < CIRCLE_MAX_S, circle
        self.model.publish()
        return False

    def play(self, faults: int) -> None:
        for _ in range(faults):
            self.fault()
            self.model.run(self.chance.choice([0.05, 1.0, 10.0, 40.0]), self.watch)

    def fault(self) -> None:
        model, names = self.model, list(self.model.nodes)
        one, other = self.chance.sample(names, 2)
        act = self.chance.randrange(4)
        if act == 0 and model.nodes[one].alive and one != model.master.name:
            model.nodes[one].kill()
        elif act == 1 and not model.nodes[one].alive:
            model.nodes[one].start()
        elif act == 2:
            model.cut(one, other)
        else:
            model.cuts.clear()


@pytest.mark.parametrize("part", range(4))
def test_all_nodes_come_back_to_the_master_after_faults_at_random(part: int) -> None:
    for seed in range(part, examples(600), 4):
        party = Party(seed)
        party.play(faults=20)
        party.model.cuts.clear()
        party.model.run(2 * SILENCE_S)  # cuts are noticed by silence
        assert party.model.run(SETTLE_S, party.model.all_reached), (seed, party.model.unreached())
        parents = {name: node.parent for name, node in party.model.nodes.items() if node.alive}
        for node in party.model.nodes.values():
            if not node.alive:
                node.start()
        party.model.run(SETTLE_S, party.watch)
        assert not party.model.circle(), seed
        moved = [name for name, parent in parents.items() if parent and party.model.nodes[name].parent is not parent]
        assert not moved, (seed, moved, "they moved although their upstream was there")
        early = [text for node in party.model.nodes.values() for text in node.left_too_soon]
        assert not early, (seed, early)
