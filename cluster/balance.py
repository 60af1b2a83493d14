"""Which node should lead which group of streams, and which leaders change next. Pure.

Each node of the cluster holds each group. Leaders are spread by `tailrace.cluster.placement`: a leader stays unless it
leads too many groups, or another node too few. Every agent computes the same from the same keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from tailrace.cluster.placement import PlacedNode, place
from tailrace.cluster.view import GroupView

SWAPS_AT_ONCE: Final = 2
"""Groups that change their leader by plan at the same time: each takes no publishes for a moment."""


class PlannedSwap(NamedTuple):
    """The lead of a group goes from one node to another one."""

    group: int
    leader: str
    successor: str


def targets(
    groups: Mapping[int, GroupView], nodes: Sequence[PlacedNode], pinned: Mapping[int, str]
) -> dict[int, tuple[str, ...]]:
    """The nodes of each group, the one that should lead it first. Draining ones hold everything, and lead nothing
    unless all are draining.
    """
    names = [node.name for node in nodes]
    if not names or not groups:
        return {group: view.state.replicas for group, view in groups.items()}
    if all(node.draining for node in nodes):
        nodes = [node._replace(draining=False) for node in nodes]
    present = {group: _holders(view, names) for group, view in groups.items()}
    placed = place(len(groups), len(names), nodes, present)
    return {group: _ordered(group, placed[group], names, pinned) for group in groups}


def _holders(view: GroupView, names: Sequence[str]) -> tuple[str, ...]:
    """The leader, the other holders, and the nodes that are to hold the group too."""
    order = view.state.replicas if view.leader is None else (view.leader.node, *view.state.replicas)
    return tuple([name for name in dict.fromkeys((*order, *names)) if name in names])


def _ordered(group: int, placed: Sequence[str], names: Sequence[str], pinned: Mapping[int, str]) -> tuple[str, ...]:
    first = [pinned[group]] if pinned.get(group) in placed else []
    return tuple(dict.fromkeys((*first, *placed, *names)))


def successor_of(view: GroupView, planned: Mapping[int, str], group: int) -> str:
    """To which node the lead of a group goes now; a leader that resigns for another node puts that one first."""
    first = view.state.replicas[0]
    is_free = view.leader is None and first in view.state.isr and first in view.ready
    return planned.get(group, first if is_free else "")


def swaps(
    groups: Mapping[int, GroupView], wanted: Mapping[int, Sequence[str]], at_most: int = SWAPS_AT_ONCE
) -> list[PlannedSwap]:
    """The next groups whose lead is handed over: to nodes that are in sync and can take it at once."""
    found: list[PlannedSwap] = []
    for group, view in sorted(groups.items()):
        leader, successor = view.leader, wanted[group][0] if wanted[group] else ""
        if leader is None or leader.node == successor:
            continue
        if successor in view.state.isr and successor in view.ready and len(found) < at_most:
            found.append(PlannedSwap(group, leader.node, successor))
    return found
