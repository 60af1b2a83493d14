"""Placement: the table of the design, and what must hold for any nodes.

`python -m tests.cluster.test_placement` shows the table, with a thousand nodes too.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.cluster.placement import MOST, PlacedNode, Placement, place
from tests.thorough import only_thorough

COPIES = 3


def make_nodes(number: int) -> list[PlacedNode]:
    return [PlacedNode(f"n{each}") for each in range(number)]


def copies(placement: Placement) -> Counter[str]:
    return Counter(name for held in placement.values() for name in held)


def changed(before: Placement, after: Placement) -> int:
    return sum(len(set(after[group]) - set(before[group])) for group in before)


class Row(NamedTuple):
    """Max/mean of copies and of leaders; moved copies against the fair share at a join and at a leave."""

    copies: float
    leaders: float
    joined: float
    left: float
    reshuffled: float  # copies that moved at a leave, of the leaver's


def row(nodes: int, groups: int) -> Row:
    members = make_nodes(nodes)
    placed = place(groups, COPIES, members)
    leaders = Counter(held[0] for held in placed.values())
    joined = place(groups, COPIES, [*members, PlacedNode("joiner")], placed)
    left = place(groups, COPIES, members[1:], placed)
    of_leaver = copies(placed)["n0"]
    return Row(
        max(copies(placed).values()) * nodes / (COPIES * groups),
        max(leaders.values()) * nodes / groups,
        changed(placed, joined) * (nodes + 1) / (COPIES * groups),
        changed(placed, left) * nodes / (COPIES * groups),
        changed(placed, left) / of_leaver,
    )


@pytest.mark.parametrize(("nodes", "groups"), [(10, 1024), *only_thorough((100, 4096))])
def test_the_table(nodes: int, groups: int) -> None:
    found = row(nodes, groups)
    assert found.copies <= MOST and found.leaders < 1.12
    assert found.joined <= 1.05
    assert found.left <= MOST and found.reshuffled == 1  # a leaver may have had up to its bound


@st.composite
def clusters(draw: st.DrawFn) -> tuple[int, list[PlacedNode]]:
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=12, unique=True))
    zones = draw(st.integers(1, 4))
    return draw(st.integers(1, 48)), [
        PlacedNode(name, f"z{draw(st.integers(1, zones))}", draw(st.sampled_from([0.5, 1, 1, 2])), draw(st.booleans()))
        for name in names
    ] + [PlacedNode("sure")]


@given(clusters())
def test_each_group_is_on_as_many_nodes_as_can_be(cluster: tuple[int, list[PlacedNode]]) -> None:
    groups, nodes = cluster
    placed = place(groups, COPIES, nodes)
    active = {node.name for node in nodes if not node.draining}
    assert list(placed) == list(range(groups))
    for held in placed.values():
        assert len(held) == len(set(held)) == min(COPIES, len(active)) and set(held) <= active


@given(clusters())
def test_every_node_computes_the_same(cluster: tuple[int, list[PlacedNode]]) -> None:
    groups, nodes = cluster
    shuffled = sorted(nodes, key=lambda node: node.name[::-1])
    assert place(groups, COPIES, shuffled) == place(groups, COPIES, nodes)


@pytest.mark.parametrize("number", range(4, 12))
def test_a_leave_moves_only_the_copies_of_the_leaver(number: int) -> None:
    nodes = make_nodes(number)
    before = place(240, COPIES, nodes)
    after = place(240, COPIES, nodes[1:], before)
    assert all(set(held) - set(after[group]) <= {"n0"} for group, held in before.items())


def test_zones_are_apart_if_there_are_enough() -> None:
    nodes = [PlacedNode(f"n{number}", f"z{number % 3}") for number in range(9)]
    before = place(256, COPIES, nodes)
    for placed in (before, place(256, COPIES, [*nodes, PlacedNode("joiner", "z1")], before)):
        zone = {node.name: node.zone for node in [*nodes, PlacedNode("joiner", "z1")]}
        assert all(len({zone[name] for name in held}) == COPIES for held in placed.values())


def test_weights_count() -> None:
    """As far as one copy a node for each group allows: the share of the large one is 600."""
    nodes = [PlacedNode("large", weight=2.0), *make_nodes(8)]
    load = copies(place(1000, COPIES, nodes))
    assert 500 <= load["large"] <= 661 and all(240 <= load[f"n{each}"] <= 331 for each in range(8))


def test_a_draining_node_keeps_nothing() -> None:
    nodes = make_nodes(5)
    before = place(64, COPIES, nodes)
    after = place(64, COPIES, [nodes[0]._replace(draining=True), *nodes[1:]], before)
    assert "n0" in copies(before) and "n0" not in copies(after)


@pytest.mark.parametrize("joining", [True, False])
def test_no_node_has_much_more_than_the_mean_whatever_joined_or_left(joining: bool) -> None:
    """It moves no more for that than the copies of a leaver, or the share of a joiner."""
    nodes, groups = make_nodes(12), 240
    placed = place(groups, COPIES, nodes)
    for number in range(6):
        before = placed
        if joining:
            nodes = [*nodes, PlacedNode(f"joiner{number}")]
        else:
            nodes = nodes[1:]
        placed = place(groups, COPIES, nodes, before)
        mean = groups * COPIES / len(nodes)
        assert max(copies(placed).values()) <= max(math.ceil(mean), MOST * mean)
        assert changed(before, placed) <= max(math.ceil(mean), MOST * mean)


def test_nothing_changes_without_need() -> None:
    nodes = make_nodes(7)
    before = place(300, COPIES, nodes)
    assert place(300, COPIES, nodes, before) == before


def test_there_must_be_a_node() -> None:
    with pytest.raises(ValueError, match="no node can hold"):
        place(1, COPIES, [PlacedNode("n", draining=True)])


if __name__ == "__main__":
    for number, of_groups in ((10, 1024), (100, 4096), (1000, 16_384)):
        print(number, of_groups, *(f"{each:.2f}" for each in row(number, of_groups)))
