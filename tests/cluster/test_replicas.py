"""Which copies are made next, until each group is where it should be.

`python -m tests.cluster.test_replicas` counts the copies of a join and of a leave, with a thousand nodes too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.placement import PlacedNode, Placement, place
from tailrace.cluster.replicas import (
    MOVES_AT_ONCE,
    ReplicaChange,
    final_targets,
    next_targets,
    placed_replicas,
    replica_changes,
)
from tailrace.cluster.view import GroupState, GroupView, LeaderKey
from tests.thorough import only_thorough

COPIES = 3


def make_nodes(number: int) -> list[PlacedNode]:
    return [PlacedNode(f"n{each}") for each in range(number)]


class Moving:
    """Groups on their way, as the rules of a leader let them go; copies are in sync a step after they were begun."""

    def __init__(self, groups: int, nodes: Sequence[PlacedNode], at_most: int = MOVES_AT_ONCE) -> None:
        self.nodes = nodes
        self.at_most = at_most
        self.made = 0  # copies
        self.most = 0  # groups that had more copies than they should
        placed = place(groups, COPIES, nodes)
        self.groups = {group: view_of(held, held, held[0]) for group, held in placed.items()}

    def step(self, *, is_calm: bool = True) -> bool:
        """Whether something has changed."""
        live = frozenset(node.name for node in self.nodes if not node.draining)
        before = self.groups
        self.groups = {group: view._replace(live=live, ready=live) for group, view in before.items()}
        wanted = placed_replicas(self.groups, self.nodes, COPIES, {})
        targets = next_targets(self.groups, wanted, is_calm=is_calm, at_most=self.at_most)
        after = {group: self._moved(view, targets[group]) for group, view in self.groups.items()}
        held = min(COPIES, len(self.nodes))
        self.most = max(self.most, sum(len(view.state.replicas) > held for view in after.values()))
        changed = [group for group, view in after.items() if view[:2] != self.groups[group][:2]]
        self.groups = after
        return bool(changed)

    def _moved(self, view: GroupView, target: Sequence[str]) -> GroupView:
        state = view.state
        assert view.leader is not None
        absent = [name for name in target if name not in state.replicas]
        if absent:
            kept = [name for name in state.replicas if name in target]
            leaving = [name for name in state.replicas if name not in target]
            self.made += len(absent)
            return view_of((*kept, *absent, *leaving), state.isr, view.leader.node)
        synced = tuple(name for name in state.replicas if name in view.live)
        if not set(target) <= set(state.isr):
            return view_of(state.replicas, synced, view.leader.node)
        leader = view.leader.node if view.leader.node in target else target[0]
        if set(target) == set(state.replicas):
            return view_of(state.replicas, synced, leader)
        return view_of(target, target, leader)

    def run(self) -> int:
        """Until nothing changes; the copies that were made."""
        made = self.made
        for _ in range(10_000):
            if not self.step():
                return self.made - made
        raise AssertionError("it does not come to an end")

    @property
    def load(self) -> Counter[str]:
        return Counter(name for view in self.groups.values() for name in view.state.replicas)


def view_of(replicas: Sequence[str], isr: Sequence[str], leader: str) -> GroupView:
    return GroupView(GroupState(1, tuple(isr), tuple(replicas)), LeaderKey(leader, 1))


def make_away(name: str, is_away: bool = True) -> PlacedNode:
    return PlacedNode(name, draining=is_away, away=is_away)


def share(nodes: int, groups: int) -> float:
    return COPIES * groups / nodes


@pytest.mark.parametrize(
    ("number", "groups", "at_most"), [(10, 1024, 128), (4, 64, MOVES_AT_ONCE), *only_thorough((100, 4096, 32))]
)
def test_a_join_and_a_leave_move_a_fair_share(number: int, groups: int, at_most: int) -> None:
    joining = Moving(groups, make_nodes(number), at_most)
    before = joining.load
    joining.nodes = [*joining.nodes, PlacedNode("joiner")]
    made = joining.run()
    assert made == joining.load["joiner"], "a copy went to another node than the one that joins"
    assert made <= 1.05 * share(number + 1, groups) and joining.most <= at_most
    assert joining.load["joiner"] >= 0.9 * share(number + 1, groups)
    assert set(joining.load - before) == {"joiner"}, "another node has more replicas than before"
    leaving = Moving(groups, make_nodes(number), at_most)
    leaving.nodes = leaving.nodes[1:]
    assert leaving.run() == before["n0"] and leaving.most <= at_most
    assert "n0" not in leaving.load and max(leaving.load.values()) <= 1.12 * share(number - 1, groups) + 1


def test_a_joiner_gets_its_share_of_few_groups() -> None:
    for number in range(20):
        moving = Moving(3, [PlacedNode(f"a{number}"), PlacedNode(f"b{number}"), PlacedNode(f"c{number}")])
        moving.nodes = [*moving.nodes, PlacedNode(f"d{number}")]
        assert moving.run() == 2, "of 2.25"


@st.composite
def changes(draw: st.DrawFn) -> tuple[int, list[list[PlacedNode]]]:
    """Groups, and the nodes of the cluster after each change."""
    names = [f"n{number}" for number in range(draw(st.integers(3, 8)))]
    return draw(st.integers(1, 24)), [
        [make_away(name, draw(st.integers(0, 5)) == 0) for name in names if draw(st.integers(0, 4))]
        + [PlacedNode("sure"), PlacedNode("too")]
        for _ in range(draw(st.integers(1, 3)))
    ]


@given(changes())
def test_plans_end_with_as_many_copies_and_never_have_fewer_meanwhile(
    change: tuple[int, list[list[PlacedNode]]],
) -> None:
    groups, members = change
    moving = Moving(groups, [PlacedNode("sure"), PlacedNode("too")])
    for nodes in members:
        moving.nodes = nodes
        rounds, held = 0, min(len(view.state.replicas) for view in moving.groups.values())
        while moving.step():
            rounds += 1
            assert rounds < 500, "it does not come to an end"
            least = min(len(view.state.replicas) for view in moving.groups.values())
            assert least >= min(held, len(nodes), COPIES)
    live = {node.name for node in nodes if not node.draining}
    wanted = placed_replicas(moving.groups, nodes, COPIES, {})
    for group, view in moving.groups.items():
        if live.issuperset(view.state.replicas):
            assert len(view.state.replicas) == min(COPIES, len(nodes))
        if live.issuperset(wanted[group]):
            assert set(view.state.replicas) == set(wanted[group])


def test_replicas_that_are_missing_are_made_at_once_and_others_only_while_all_is_calm() -> None:
    moving = Moving(16, [PlacedNode("sure"), PlacedNode("too")])
    moving.nodes = make_nodes(1) + list(moving.nodes)
    assert moving.step(is_calm=False) and moving.made == 16, "each had two"
    moving.step(is_calm=False)
    moving.nodes = [*moving.nodes, PlacedNode("joiner")]
    assert not moving.step(is_calm=False)
    assert moving.step() and moving.most <= MOVES_AT_ONCE


def test_a_node_that_is_away_keeps_its_copies_and_is_given_none() -> None:
    moving = Moving(16, make_nodes(4))
    held = moving.load
    moving.nodes = [make_away("n0"), *moving.nodes[1:]]
    wanted = placed_replicas(moving.groups, moving.nodes, COPIES, {})
    assert not replica_changes(moving.groups, wanted)
    assert all(target[0] != "n0" for target in wanted.values()), "nor does it lead one"
    moving.nodes = [*moving.nodes, make_away("away")]
    moving.run()
    assert not moving.made and moving.load == held


def test_moves_that_wait_for_a_dead_node_go_on_elsewhere_when_it_has_left() -> None:
    moving = Moving(16, make_nodes(5))
    moving.nodes = [make_away("n1"), *make_nodes(5)[2:]]
    moving.groups = {
        group: view_of(view.state.replicas, isr, isr[0])
        for group, view in moving.groups.items()
        for isr in [[name for name in view.state.replicas if name != "n1"]]
    }
    moving.run()
    waiting = [view for view in moving.groups.values() if "n0" in view.state.replicas]
    assert len(waiting) > MOVES_AT_ONCE and all("n1" in view.state.replicas for view in waiting)
    moving.nodes = make_nodes(5)[2:]
    moving.run()
    assert moving.load == Counter(n2=16, n3=16, n4=16)


def test_a_plan_in_its_middle_is_the_same_plan() -> None:
    moving = Moving(64, make_nodes(5))
    moving.nodes = [*moving.nodes, PlacedNode("joiner")]
    moving.step()
    begun = {group for group, view in moving.groups.items() if len(view.state.replicas) > COPIES}
    wanted = placed_replicas(moving.groups, moving.nodes, COPIES, {})
    assert len(begun) == MOVES_AT_ONCE
    assert all(set(wanted[group]) == set(moving.groups[group].state.replicas[:COPIES]) for group in begun)


def test_a_pinned_group_is_led_by_its_node_if_that_holds_it() -> None:
    moving = Moving(8, make_nodes(5))
    view = moving.groups[3]
    other, stranger = view.state.replicas[2], next(n.name for n in moving.nodes if n.name not in view.state.replicas)
    assert placed_replicas(moving.groups, moving.nodes, COPIES, {3: other})[3][0] == other
    assert placed_replicas(moving.groups, moving.nodes, COPIES, {3: stranger})[3][0] != stranger


@pytest.mark.parametrize("replicas", [0, COPIES])
def test_a_plan_is_made_anew_only_if_something_has_changed_that_it_depends_on(
    replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(groups: int, *given: Any) -> Placement:
        made.append(groups)
        return place(groups, *given)

    for module in ("balance", "replicas"):
        monkeypatch.setattr(f"tailrace.cluster.{module}.place", counted)
    nodes, groups = make_nodes(5), {group: view_of(("n0", "n1", "n2"), ("n0",), "n0") for group in range(7)}
    plan = final_targets(groups, nodes, replicas, {})
    settled = {group: view._replace(suspects={"n1": 1}, live=frozenset(["n1"])) for group, view in groups.items()}
    assert final_targets(settled, nodes, replicas, {}) == plan and made == [7]
    moved = {**groups, 3: view_of(("n2", "n3", "n4"), ("n2",), "n2")}
    led = {**groups, 3: view_of(("n0", "n1", "n2"), ("n0",), "n1")}
    pins: tuple[dict[int, str], dict[int, str]] = {}, {0: "n2"}
    others = ((moved, nodes, pins[0]), (led, nodes, pins[0]), (groups, nodes[1:], pins[0]), (groups, nodes, pins[1]))
    for number, (state, members, pinned) in enumerate(others, 2):
        assert final_targets(state, members, replicas, pinned) == final_targets(state, members, replicas, pinned)
        assert len(made) == number
    assert final_targets(groups, [make_away("n0"), *nodes[1:]], replicas, {})[0][0] != "n0"


def test_changes_of_copies() -> None:
    groups = {0: view_of("abc", "abc", "a"), 1: view_of("ab", "ab", "a"), 2: view_of("ab", "ab", "a")}
    found = replica_changes(groups, {0: ("a", "b", "d"), 1: ("a", "b", "c"), 2: ("b", "a")})
    assert found == {0: ReplicaChange(("d",), ("c",)), 1: ReplicaChange(("c",), ())}


if __name__ == "__main__":
    for number, of_groups in ((10, 1024), (100, 4096), (1000, 16_384)):
        joining, leaving = (Moving(of_groups, make_nodes(number), of_groups // 32) for _ in range(2))
        joining.nodes, leaving.nodes = [*joining.nodes, PlacedNode("joiner")], leaving.nodes[1:]
        ratios = joining.run() / share(number + 1, of_groups), leaving.run() / share(number, of_groups)
        print(number, of_groups, *(f"{each:.3f}" for each in ratios))
