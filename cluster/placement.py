"""Which nodes hold which groups: rendezvous hashing with bounded load that keeps the copies there are.

Pure. A node that joins takes only groups that rank it among their first ones, until it has its share; the groups of a
node that leaves are placed anew, and no others. So few copies move as can, and the same input gives the same answer on
every node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from tailrace.cluster.preferences import mixed, preferences_of, score

MOST: Final = 1.05
"""No node gets more copies than this times its share, unless the zones or too few nodes leave no other choice."""
BOUND: Final = 1.1
"""Copies, and leads, move to a node only if it has less than its share divided by this, and leads away from one that
has more than its share times this.
"""

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
    for group in sorted(range(groups), key=mixed):
        work.fill(group)
    for name in sorted(active, key=work.load):
        if not active[name].away:
            work.give_share(name)
    return with_leaders(work.placed, active)


class _Rule(NamedTuple):
    """Where copies may be. apart: in no zone that has one; bounded: with room; present: on no node that is away."""

    apart: bool
    bounded: bool
    present: bool = True


_RULES: Final = (
    _Rule(True, True),
    _Rule(False, True),
    _Rule(True, False),
    _Rule(False, False),
    _Rule(False, False, False),
)


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
        self._most = {name: max(math.ceil(share), math.floor(MOST * share)) for name, share in self._share.items()}
        self._zones = len({each.zone for each in nodes.values()})
        self._preferences = preferences_of(tuple([(name, each.weight) for name, each in nodes.items()]))

    def load(self, name: str) -> tuple[float, str]:
        """The copies of a node by its share."""
        return self._copies[name] / self._share[name], name

    def keep(self, group: int, names: Sequence[str]) -> None:
        kept = [name for name in names if name in self._nodes][: self._replicas]
        self.placed[group] = kept
        self._copies.update(kept)

    def fill(self, group: int) -> None:
        """Add copies until there are enough: first on nodes with room in other zones, then wherever one can be, and
        only then on nodes that are away.
        """
        held = self.placed[group]
        if len(held) == self._replicas:
            return
        rules = _RULES if self._zones > 1 else [rule for rule in _RULES if not rule.apart]
        for rule in rules:
            for name in self._preferences.order(group):
                if len(held) == self._replicas:
                    return
                if name not in held and self._may(name, held, rule):
                    held.append(name)
                    self._copies[name] += 1

    def _may(self, name: str, held: Sequence[str], rule: _Rule) -> bool:
        node = self._nodes[name]
        if (rule.bounded and self._copies[name] >= self._most[name]) or (rule.present and node.away):
            return False
        return not rule.apart or node.zone not in {self._nodes[each].zone for each in held}

    def give_share(self, name: str) -> None:
        """A node that has much less than its share takes the groups that prefer it from their most loaded nodes; of few
        groups too few may do so, and then others.
        """
        if self._copies[name] * BOUND >= self._share[name]:
            return
        for group in self._wanted(name, is_new=self._copies[name] * 2 < self._share[name]):
            if self._copies[name] >= math.floor(self._share[name]):
                return
            if name not in self.placed[group]:
                self._take_over(name, group)

    def _wanted(self, name: str, *, is_new: bool) -> Iterator[int]:
        """The groups of which this node may become a holder, the best first: those that have it among their first
        ones, and for a new node all others behind them.
        """
        preferring = [group for group in self._preferring.get(name, ()) if self._is_better(name, group)]
        yield from sorted(preferring, key=lambda group: self._score(group, name))
        if is_new:
            yield from sorted(self.placed, key=lambda group: self._score(group, name))

    @cached_property
    def _preferring(self) -> dict[str, list[int]]:
        """The groups that have a node among their first ones."""
        found: dict[str, list[int]] = {}
        for group in self.placed:
            for name in islice(self._preferences.order(group), self._replicas):
                found.setdefault(name, []).append(group)
        return found

    def _is_better(self, name: str, group: int) -> bool:
        """Whether the group prefers it to one of its holders."""
        mine = self._score(group, name)
        return any(self._score(group, each) >= mine for each in self.placed[group])

    def _score(self, group: int, name: str) -> float:
        return score(group, name, self._nodes[name].weight)

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
    for group in sorted(placed, key=mixed):
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
