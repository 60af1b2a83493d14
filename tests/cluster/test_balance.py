"""Who should lead which group, and which leads are handed over next."""

from __future__ import annotations

from collections import Counter

from tailrace.cluster.balance import SWAPS_AT_ONCE, successor_of, swaps, targets
from tailrace.cluster.placement import PlacedNode
from tailrace.cluster.view import GroupState, GroupView, LeaderKey

ALL = ("a", "b", "c")
NODES = [PlacedNode(name) for name in ALL]
READY = frozenset(ALL)


def led_by(*leaders: str, ready: frozenset[str] = READY) -> dict[int, GroupView]:
    """Groups with these leaders ("": none)."""
    state = GroupState(1, ALL, ALL)
    return {
        group: GroupView(state, LeaderKey(leader, 1) if leader else None, live=READY, ready=ready)
        for group, leader in enumerate(leaders)
    }


def run(groups: dict[int, GroupView], nodes: list[PlacedNode], pinned: dict[int, str] | None = None) -> list[str]:
    """The leaders when all swaps are done, some at a time."""
    for _ in range(len(groups) + 1):
        now = swaps(groups, targets(groups, nodes, pinned or {}))
        assert len(now) <= SWAPS_AT_ONCE
        for swap in now:
            groups[swap.group] = groups[swap.group]._replace(leader=LeaderKey(swap.successor, 2))
    assert not now, "it does not come to an end"
    return [each.leader.node for each in groups.values() if each.leader]


def test_leads_are_spread_over_nodes_that_join() -> None:
    leaders = Counter(run(led_by(*"a" * 16), NODES))
    assert sorted(leaders.values()) == [5, 5, 6]


def test_what_is_spread_well_stays() -> None:
    spread = run(led_by(*"a" * 16), NODES)
    assert not swaps(led_by(*spread), targets(led_by(*spread), NODES, {}))


def test_a_node_that_is_not_ready_or_not_in_sync_is_given_nothing() -> None:
    groups = led_by(*"aaaaaaaa", ready=frozenset("ab"))
    groups = {group: each._replace(state=each.state._replace(isr=("a", "c"))) for group, each in groups.items()}
    assert not swaps(groups, targets(groups, NODES, {}))


def test_a_draining_node_leads_nothing_and_holds_everything() -> None:
    nodes = [*NODES[:2], PlacedNode("c", draining=True)]
    groups = led_by(*"abcabcabc")
    assert all(set(held) == READY and held[-1] == "c" for held in targets(groups, nodes, {}).values())
    assert Counter(run(groups, nodes)).keys() == {"a", "b"}
    assert Counter(run(led_by(*"abcabcabc"), nodes, {2: "c"})).keys() == {"a", "b"}, "though a group is pinned to it"
    alone = [PlacedNode("c", draining=True)]
    assert set(targets(groups, alone, {}).values()) == {("c",)}, "somebody has to lead"


def test_weights_count() -> None:
    nodes = [PlacedNode("a", weight=2.0), PlacedNode("b"), PlacedNode("c")]
    leaders = Counter(run(led_by(*"c" * 40), nodes))
    assert 18 <= leaders["a"] <= 22 and 9 <= leaders["b"] <= 11


def test_a_pinned_group_goes_to_its_node_if_that_belongs_to_the_cluster() -> None:
    spread = run(led_by(*"a" * 16), NODES)
    other = next(name for name in ALL if name != spread[3])
    assert run(led_by(*spread), NODES, {3: other})[3] == other
    assert run(led_by(*spread), NODES, {3: "gone"})[3] == spread[3]


def test_a_group_whose_leader_resigned_is_for_the_node_that_it_has_put_first() -> None:
    groups = led_by("", "a")
    assert [successor_of(view, {}, group) for group, view in groups.items()] == ["a", ""]
    assert successor_of(groups[1], {1: "b"}, 1) == "b"
    away = led_by("", ready=frozenset("bc"))
    assert successor_of(away[0], {}, 0) == "", "nobody waits for a node that is away"


def test_one_group_stays_with_its_leader() -> None:
    for leader in ALL:
        assert not swaps(led_by(leader), targets(led_by(leader), NODES, {}))
