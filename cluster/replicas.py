"""Which nodes should be the replicas of which group if each has `replicas` of them, and who becomes one next. Pure.

The first `replicas` nodes of a group's state are those that were chosen. Nodes behind them are replicas only until all
of the chosen ones are in sync, so an agent that looks in the middle of a move makes the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.cluster.balance import targets
from tailrace.cluster.placement import PlacedNode, place, with_leaders
from tailrace.cluster.view import GroupState, GroupView, LeaderKey

MOVES_AT_ONCE: Final = 2
"""Groups that change their replicas at the same time."""


class ReplicaChange(NamedTuple):
    """The nodes that become replicas of a group, and those that cease to be when all others are in sync."""

    added: tuple[str, ...]
    dropped: tuple[str, ...]


def planned_targets(
    groups: Mapping[int, GroupView],
    nodes: Sequence[PlacedNode],
    replicas: int,
    pinned: Mapping[int, str],
    *,
    is_calm: bool,
) -> dict[int, tuple[str, ...]]:
    """The nodes that should be the replicas of each group for now. `replicas`: of each group; 0: all nodes."""
    wanted = final_targets(groups, nodes, replicas, pinned)
    return next_targets(groups, wanted, is_calm=is_calm) if replicas else wanted


def final_targets(
    groups: Mapping[int, GroupView], nodes: Sequence[PlacedNode], replicas: int, pinned: Mapping[int, str]
) -> dict[int, tuple[str, ...]]:
    """The nodes that should be the replicas of each group in the end. An agent asks several times a second, and little
    changes: the last answer is kept with all that it depends on.
    """
    held = [(group, each.state.replicas, each.leader.node if each.leader else "") for group, each in groups.items()]
    return dict(_targets_of(tuple(held), tuple(nodes), replicas, tuple(sorted(pinned.items()))))


@lru_cache(maxsize=1)
def _targets_of(
    held: tuple[tuple[int, tuple[str, ...], str], ...],
    nodes: tuple[PlacedNode, ...],
    replicas: int,
    pinned: tuple[tuple[int, str], ...],
) -> dict[int, tuple[str, ...]]:
    """`held`: groups, their replicas, and their leaders, "" without one."""
    groups = {
        group: GroupView(GroupState(0, (), names), LeaderKey(leader, 0) if leader else None)
        for group, names, leader in held
    }
    return placed_replicas(groups, nodes, replicas, dict(pinned)) if replicas else targets(groups, nodes, dict(pinned))


def placed_replicas(
    groups: Mapping[int, GroupView], nodes: Sequence[PlacedNode], replicas: int, pinned: Mapping[int, str]
) -> dict[int, tuple[str, ...]]:
    """The replicas of each group, the one that should lead it first. A draining node, or one that is away, stays a
    replica, and leads nothing if another one can.
    """
    names = {node.name for node in nodes}
    if not names or not groups:
        return {group: view.state.replicas for group, view in groups.items()}
    holding = [node._replace(draining=False) for node in nodes]
    placed = place(len(groups), replicas, holding, {group: _chosen(each, names) for group, each in groups.items()})
    led = {group: _leader_first(placed[group], groups[group]) for group in placed}
    able = {node.name: node for node in nodes if not node.draining and node.weight > 0}
    spread = with_leaders(led, able) if able else led
    return {group: _pinned_first(held, pinned.get(group, ""), able) for group, held in spread.items()}


def _pinned_first(held: tuple[str, ...], pinned: str, able: Mapping[str, PlacedNode]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((pinned, *held))) if pinned in held and pinned in able else held


def _chosen(view: GroupView, names: set[str]) -> list[str]:
    return [name for name in view.state.replicas if name in names]


def _leader_first(held: Sequence[str], view: GroupView) -> tuple[str, ...]:
    first = view.leader.node if view.leader is not None else view.state.replicas[0]
    return (first, *(name for name in held if name != first)) if first in held else tuple(held)


def next_targets(
    groups: Mapping[int, GroupView], wanted: Mapping[int, Sequence[str]], *, is_calm: bool, at_most: int = MOVES_AT_ONCE
) -> dict[int, tuple[str, ...]]:
    """The replicas that each group should have for now. Groups with too few get more at once; others change them some
    at a time, for nodes that live, and begin only while all is calm.
    """
    found: dict[int, tuple[str, ...]] = {}
    moving = sum(_is_moving(view, wanted[group]) for group, view in groups.items())
    for group, view in sorted(groups.items()):
        held, target = view.state.replicas, tuple(wanted[group])
        added = set(target).difference(held)
        if not added or len(held) < len(target):
            found[group] = target
        elif is_calm and moving < at_most and added <= view.live:
            moving += 1
            found[group] = target
        else:
            found[group] = _as_is(view, target)
    return found


def _is_moving(view: GroupView, target: Sequence[str]) -> bool:
    """Whether its replicas change just now. A group keeps no others back while it waits for a node that is away, nor
    for its turn to replace such a node that has left.
    """
    held = view.state.replicas
    return len(held) > len(target) and view.live.intersection(held).issuperset(target)


def _as_is(view: GroupView, target: Sequence[str]) -> tuple[str, ...]:
    """The present replicas, the next leader first if it is one of them."""
    held = view.state.replicas
    first = [name for name in target if name in held][:1]
    return tuple(dict.fromkeys((*first, *held)))


def replica_changes(groups: Mapping[int, GroupView], wanted: Mapping[int, Sequence[str]]) -> dict[int, ReplicaChange]:
    """By group; those whose replicas are as they should be are left out."""
    found = {}
    for group, target in sorted(wanted.items()):
        held = groups[group].state.replicas
        added = tuple([name for name in target if name not in held])
        dropped = tuple([name for name in held if name not in target])
        if added or dropped:
            found[group] = ReplicaChange(added, dropped)
    return found
