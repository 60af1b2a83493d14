"""The nemesis for some rounds, and that it can fail: its plans, actions and checks, by themselves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.system.mounts import CannotMount
from tests.system.nemesis import Outcome, as_promised, play_round
from tests.system.nemesis_deletions import DELETED, Deletions
from tests.system.nemesis_ground import Ground
from tests.system.nemesis_operator import NOTHING, Copy, Operator
from tests.system.nemesis_plan import AT_ONCE_MAX, LASTS_S, NODES, Event, Kind, Plan, make_plan, read_plan
from tests.system.tree_ledger import Fate, Sent
from tests.system.tree_load import BURST_MOST
from tests.system.tree_node import Parents

pytestmark = pytest.mark.system

SEEDS = range(200)
PHASE_S = 12.0


def test_the_seed_says_it_all() -> None:
    assert make_plan(7, 2, PHASE_S) == make_plan(7, 2, PHASE_S) != make_plan(8, 2, PHASE_S)


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = make_plan(7, 2, PHASE_S)
    assert read_plan(plan.to_json()) == plan


def test_what_holds_for_every_plan() -> None:
    kinds: Counter[Kind] = Counter()
    for seed in SEEDS:
        plan = make_plan(seed, 2, PHASE_S)
        assert NODES[0] <= len(plan.parents) <= NODES[1]
        assert len(plan.parents) - plan.replicas <= plan.replicas + 1, "two majorities have a node in common"
        for phase in plan.phases:
            kinds.update(event.kind for event in phase)
            check_phase(plan, phase)
    assert set(kinds) == set(Kind)


def check_phase(plan: Plan, phase: tuple[Event, ...]) -> None:
    assert list(phase) == sorted(phase, key=lambda event: event.at_s)
    for event in phase:
        assert (event.lasts_s > 0) == (event.kind in LASTS_S) and event.at_s >= 0 and event.end_s <= PHASE_S + 0.01
        assert set(event.nodes) <= set(plan.parents) and len(set(event.nodes)) == len(event.nodes)
        under_way = [other for other in phase if other.lasts_s and other.at_s <= event.at_s < other.end_s]
        assert len(under_way) <= AT_ONCE_MAX
        assert event.kind not in (Kind.SPLIT, Kind.ONE_WAY) or len(event.nodes) < len(plan.parents)


def test_an_event_reads_well() -> None:
    assert str(Event(1.5, Kind.SPLIT, ("n1", "n3"), 2.0)) == "  1.50 s: split n1 n3 for 2.00 s"


class Bare(Ground):
    """Has the faults, and does nothing."""

    def __init__(self) -> None:
        self.names = ["n1", "n2", "n3"]
        self._active = []

    def wrong(self, *events: Event) -> Bare:
        self._active = list(events)
        return self


def test_who_is_reached_from_a_node() -> None:
    bare = Bare()
    assert bare.reached_from("n2") == ["n2", "n1", "n3"]
    split = Event(0, Kind.SPLIT, ("n1",), 1)
    assert bare.wrong(split).reached_from("n2") == ["n2", "n3"]
    assert bare.reached_from("n1") == ["n1"]
    assert bare.wrong(Event(0, Kind.ONE_WAY, ("n3",), 1)).reached_from("n1") == ["n1", "n2"], "not both ways"
    assert bare.wrong(Event(0, Kind.STOP, ("n2",), 1)).reached_from("n2") == []
    assert bare.wrong(Event(0, Kind.KILL, ("n2",), 1), split).reached_from("n3") == ["n3"]


def test_the_copy_to_promote_is_that_of_the_latest_term_then_the_longest() -> None:
    best = Copy(2, "a", 5, 2)
    for less in (Copy(1, "a", 9, 9), Copy(2, "a", 4, 7), Copy(2, "", 4, 7)):
        assert best.is_ahead_of(less) and not less.is_ahead_of(best)
    rival = Copy(2, "b", 4, 2)
    assert rival.is_ahead_of(best) and not best.is_ahead_of(rival), "of two terms of one number"


def test_of_equal_copies_the_one_with_most_of_the_consumers_is_promoted() -> None:
    """As docs/operations.md says: `promote` refuses the others, and a fenced node does not catch up."""
    copies = {("n1", "s"): Copy(2, "a", 5, 2), ("n2", "s"): Copy(2, "a", 5, 2), ("n3", "s"): Copy(2, "a", 4, 2)}
    copies |= {("n2", "$cursor/s"): Copy(2, "a", 2, 2), ("n3", "$cursor/s"): Copy(2, "a", 9, 2)}

    class Nodes(OneNode):
        def look(self, name: str, stream: str) -> Copy:
            return copies.get((name, stream), NOTHING)

    nodes = Nodes(NOTHING)
    nodes._has_fence = True
    assert nodes._fence("s", ["n1", "n2", "n3"]) == "n2"
    assert nodes.lines == ["fence s 3"] * 3
    assert nodes._fence("s", ["n1", "n3"]) == "n1", "messages come first"


def test_what_was_only_appended_promises_nothing() -> None:
    lines = Sent("p2-lines", 1, 7, "s0", Fate.ACKNOWLEDGED, 3)
    assert as_promised(lines) == lines._replace(fate=Fate.UNKNOWN, seq=-1)
    binary = lines._replace(publisher="p0-binary")
    assert as_promised(binary) == binary


class OneNode(Operator):
    """A node that does what it is asked to, and the copy that it shows then."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.lines: list[str] = []
        self.heirs, self.is_sure, self.unfinished = {"d0": "n1"}, True, False

    def answers(self, name: str) -> bool:
        return True

    def roles(self, name: str) -> dict[str, str]:
        return {"d0": "master"}

    def look(self, name: str, stream: str) -> Copy:
        return self.copy

    def consumers(self, name: str, stream: str) -> set[str]:
        return {"c1"}

    def command(self, name: str, line: str) -> str:
        self.lines.append(line)
        return "ok"


SENT = [Sent("p", 1, number, "d0", Fate.ACKNOWLEDGED, number) for number in range(3)]


def deletions(epoch: int = 3) -> tuple[OneNode, Deletions]:
    node = OneNode(Copy(epoch, "", 3, epoch, "master"))
    return node, Deletions(node, lambda: SENT)


def test_nothing_may_be_left_of_a_stream_after_a_final_deletion() -> None:
    node, found = deletions()
    found.delete(["n1"])
    assert node.lines == ["consume d0 c1 #0", "delete d0"]
    found.healed("n1")
    assert found.faults(["n1"]) == [
        "n1 has d0 in term 3, and it was deleted in term 3",
        "n1 has consumers {'c1'} of d0, which was deleted since",
    ]
    assert found.faults_of_logs("n1", {"d0": {0: "p/1/2", 1: "p/1/9"}}) == [
        "n1: d0 has p/1/2 as 0, which was deleted in term 3"
    ]


def test_a_deletion_is_not_final_before_a_failover_or_at_another_node() -> None:
    node, found = deletions()
    found.delete(["n1"])
    found.failing_over()
    node.heirs["d0"] = "n2"
    found.delete(["n1"])
    node.heirs["d0"], node.is_sure = "n1", False
    found.delete(["n1"])
    found.healed("n1")
    assert found.answered == 3 and not found.final and not found.faults(["n1"])


def test_what_was_acknowledged_before_a_deletion_promises_nothing_and_later_messages_do() -> None:
    _node, found = deletions()
    assert found.as_promised(SENT[2]) == SENT[2]
    found.delete(["n1"])
    assert found.as_promised(SENT[2]).fate is Fate.UNKNOWN
    later = SENT[2]._replace(number=SENT[2].number + BURST_MOST + 1)
    assert found.as_promised(later) == later
    found.healed("")
    assert found.as_promised(later).fate is Fate.UNKNOWN, "nobody has said where the stream belongs"


CHAIN: Parents = {"n1": None, "n2": "n1", "n3": "n2"}
STAR: Parents = {"n1": None, "n2": "n1", "n3": "n1"}


def phase(*events: tuple[float, Kind, str] | tuple[float, Kind, str, float]) -> tuple[tuple[Event, ...]]:
    """One phase, of (at_s, kind, node) and of (at_s, kind, node, lasts_s)."""
    return (tuple(Event(at_s, kind, (node,), *lasts_s) for at_s, kind, node, *lasts_s in events),)


SCENARIOS = {
    "the node between is told to follow before the old master returns": Plan(
        1, dict(CHAIN), 1, 1, phase((0.5, Kind.KILL, "n1", 4.0), (1.5, Kind.PROMOTE, "n3"))
    ),
    "the node between turns by itself, and is reloaded": Plan(
        2,
        dict(CHAIN),
        2,
        1,
        phase(
            (0.5, Kind.KILL, "n1", 7.0),
            (1.0, Kind.STOP, "n2", 1.5),
            (1.5, Kind.PROMOTE, "n3"),
            (5.0, Kind.RELOAD, "n2"),
        ),
    ),
    "the node between turns by itself, and is started again": Plan(
        3,
        dict(CHAIN),
        2,
        1,
        phase(
            (0.5, Kind.KILL, "n1", 7.0),
            (1.0, Kind.STOP, "n2", 1.5),
            (1.5, Kind.PROMOTE, "n3"),
            (5.0, Kind.KILL, "n2", 0.3),
        ),
    ),
    "two slaves are promoted out of each other's sight": Plan(
        4,
        dict(STAR),
        2,
        1,
        phase(
            (0.5, Kind.KILL, "n1", 6.0),
            (1.0, Kind.SPLIT, "n2", 3.0),
            (1.5, Kind.PROMOTE, "n2"),
            (1.6, Kind.PROMOTE, "n3"),
        ),
    ),
}
"""Each left two masters for ever when it was written. What asks for all slaves lets an operator promote any of them."""
DELETIONS = Plan(
    5,
    dict(CHAIN),
    1,
    1,
    phase((0.3, Kind.KILL, "n3", 2.5), (0.8, Kind.DELETE, "n1"), (1.5, Kind.STOP, "n2", 1.5), (2.0, Kind.DELETE, "n1")),
)
SEEDS_PLAYED = (200,)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario(tmp_path: Path, name: str) -> None:
    assert play(SCENARIOS[name], tmp_path).promoted


@pytest.mark.slow
def test_streams_are_deleted_while_nodes_are_away(tmp_path: Path) -> None:
    outcome = play(DELETIONS, tmp_path)
    # More than the first could delete, so both did. Publishers make streams again, and may be late for the second.
    assert outcome.deleted > len(DELETED) and outcome.acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS_PLAYED)
def test_a_round(tmp_path: Path, seed: int) -> None:
    outcome = play(make_plan(seed, 2, PHASE_S), tmp_path)
    assert outcome.acknowledged and outcome.promoted


def play(plan: Plan, folder: Path) -> Outcome:
    try:
        return play_round(plan, folder, print)
    except CannotMount as reason:
        pytest.skip(str(reason))
