"""Which nodes hold which groups: rendezvous hashing with bounded load that keeps the copies there are.

Pure. A node that joins takes only groups that rank it among their first ones, until it has its share; the groups of a
node that leaves are placed anew, and no others. So few copies move as can, and the same input gives the same answer on
every node.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

BOUND: Final = 1.1
"""No node gets more than this times its share, unless the zones or too few nodes leave no other choice."""
BITS_64: Final = (1 << 64) - 1

Placement: TypeAlias = dict[int, tuple[str, ...]]
"""group -> the nodes that hold it; the first one should lead it"""


class PlacedNode(NamedTuple):
    """A node that groups can be placed on; none are if it is draining. One that is away keeps those that it has."""

    name: str
    zone: str = ""
    weight: float = 1.0
    draining: bool = False
    away: bool = False


def place(
    groups: int, replicas: int, nodes: Iterable[PlacedNode], current: Mapping[int, Sequence[str]] | None = None
) -> Placement:
    """The nodes of each group, so that as much as possible of `current` stays. Raises ValueError without a node."""
    active = {node.name: node for node in nodes if not node.draining and node.weight > 0}
    if not active:
        raise ValueError("no node can hold a group: all are draining, or there are none")
    work = _Placing(groups, min(replicas, len(active)), active)
    for group in range(groups):
        work.keep(group, (current or {}).get(group, ()))
    for group in sorted(range(groups), key=_mixed):
        work.fill(group)
    for name in sorted(active, key=work.load):
        if not active[name].away:
            work.give_share(name)
    return with_leaders(work.placed, active)


def ranked(group: int, nodes: Mapping[str, PlacedNode]) -> list[str]:
    """The nodes in the order in which this group prefers them."""
    return sorted(nodes, key=lambda name: _score(group, nodes[name]))


class _Placing:
    """The copies of each group while they are chosen, and how many each node has."""

    def __init__(self, groups: int, replicas: int, nodes: Mapping[str, PlacedNode]) -> None:
        self.placed: dict[int, list[str]] = {}
        self._groups = groups
        self._replicas = replicas
        self._nodes = nodes
        self._copies: Counter[str] = Counter()
        weight = sum(node.weight for node in nodes.values())
        self._share = {name: min(groups, groups * replicas * each.weight / weight) for name, each in nodes.items()}
        self._zones = len({each.zone for each in nodes.values()})

    def load(self, name: str) -> tuple[float, str]:
        """The copies of a node by its share."""
        return self._copies[name] / self._share[name], name

    def keep(self, group: int, names: Sequence[str]) -> None:
        kept = [name for name in names if name in self._nodes][: self._replicas]
        self.placed[group] = kept
        self._copies.update(kept)

    def fill(self, group: int) -> None:
        """Add copies until there are enough: first on nodes with room in other zones, then wherever one can be."""
        held = self.placed[group]
        if len(held) == self._replicas:
            return
        order = ranked(group, self._nodes)
        rules = ((True, True), (False, True), (True, False), (False, False)) if self._zones > 1 else (
            (False, True), (False, False))  # fmt: skip
        for apart, bounded in rules:
            for name in order:
                if len(held) == self._replicas:
                    return
                if name not in held and self._may(name, held, apart, bounded):
                    held.append(name)
                    self._copies[name] += 1

    def _may(self, name: str, held: Sequence[str], apart: bool, bounded: bool) -> bool:
        if bounded and (self._nodes[name].away or self._copies[name] + 1 > math.ceil(BOUND * self._share[name])):
            return False
        return not apart or self._nodes[name].zone not in {self._nodes[each].zone for each in held}

    def give_share(self, name: str) -> None:
        """A node that has much less than its share takes the groups that prefer it from their most loaded nodes; of few
        groups too few may do so, and then others.
        """
        if self._copies[name] * BOUND >= self._share[name]:
            return
        is_new = self._copies[name] * 2 < self._share[name]
        rest = [group for _, group in sorted(self._others(name))] if is_new else []
        for group in (*(group for _, group in self._preferring(name)), *rest):
            if self._copies[name] >= math.floor(self._share[name]):
                return
            if name not in self.placed[group]:
                self._take_over(name, group)

    def _others(self, name: str) -> list[tuple[float, int]]:
        """(score, group) of the groups that this node does not hold."""
        return [(_score(group, self._nodes[name]), group) for group, held in self.placed.items() if name not in held]

    def _preferring(self, name: str) -> list[tuple[float, int]]:
        """(score, group) of the groups that have this node among their first ones and not yet as a holder."""
        found = []
        for group, held in self.placed.items():
            score = _score(group, self._nodes[name])
            if name in held or all(_score(group, self._nodes[each]) < score for each in held):
                continue
            if name in heapq.nsmallest(
                self._replicas,
                self._nodes,
                key=lambda each, group=group: _score(group, self._nodes[each]),  # type: ignore[misc]
            ):
                found.append((score, group))
        return sorted(found)

    def _take_over(self, name: str, group: int) -> None:
        held = self.placed[group]
        for away in sorted(held, key=self.load, reverse=True):
            rest = [each for each in held if each != away]
            before, after = self._zones_of(held), self._zones_of([*rest, name])
            if self.load(away)[0] > 1 / BOUND and after >= before:
                held[held.index(away)] = name
                self._copies.update({name: 1, away: -1})
                return

    def _zones_of(self, names: Sequence[str]) -> int:
        return len({self._nodes[name].zone for name in names})


def with_leaders(placed: Mapping[int, Sequence[str]], nodes: Mapping[str, PlacedNode]) -> Placement:
    """The order of each group's nodes: its former leader stays the first unless it leads too many, or is not among
    `nodes`, those that may lead.
    """
    weight = sum(node.weight for node in nodes.values())
    share = {name: len(placed) * node.weight / weight for name, node in nodes.items()}
    led: Counter[str] = Counter(held[0] for held in placed.values())
    leader = {group: held[0] for group, held in placed.items()}
    for group in sorted(placed, key=_mixed):
        now, able = leader[group], [name for name in placed[group] if name in nodes]
        if not able:
            continue
        least = min(able, key=lambda name: (led[name] / share[name], name))
        if now not in nodes or _is_to_change(now, least, led, share):
            led.update({least: 1, now: -1})
            leader[group] = least
    return {group: (leader[group], *(name for name in held if name != leader[group])) for group, held in placed.items()}


def _is_to_change(now: str, least: str, led: Mapping[str, int], share: Mapping[str, float]) -> bool:
    is_too_much = led[now] > BOUND * share[now]
    is_wanted = led[least] * BOUND < share[least] and led[now] > share[now] / BOUND
    return (is_too_much or is_wanted) and (led[least] + 1) / share[least] < led[now] / share[now]


def _score(group: int, node: PlacedNode) -> float:
    """The smaller, the more a group prefers a node: an exponential variate, so that weights count in proportion."""
    uniform = (_mixed(_name_hash(node.name) ^ _mixed(group)) + 1) / (BITS_64 + 2)
    return -math.log(uniform) / node.weight


@cache
def _name_hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """splitmix64's finalizer: every bit of the result depends on every bit of the value."""
    value = (value + 0x9E3779B97F4A7C15) & BITS_64
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & BITS_64
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & BITS_64
    return value ^ value >> 31
