"""etcd as the simulator has it: linearizable, with leases, and away at times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tailrace.cluster import decide as d
from tailrace.cluster.balance import successor_of, swaps
from tailrace.cluster.placement import PlacedNode
from tailrace.cluster.replicas import planned_targets
from tailrace.cluster.view import GroupState, GroupView, LeaderKey


@dataclass(slots=True)
class GroupKeys:
    """The keys of one group. A suspicion is of a term, and goes with its node's lease."""

    state: GroupState
    leader: LeaderKey | None = None
    suspects: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # node: term, messages, lease
    target: tuple[str, ...] = ()
    successor: str = ""


@dataclass(slots=True)
class Etcd:
    """Times are true ones. Leases end only while it is up, and all go on for their whole TTL when it is back."""

    ttl_s: float
    groups: dict[int, GroupKeys] = field(default_factory=dict)
    leases: dict[int, tuple[str, float]] = field(default_factory=dict)
    led_by: dict[tuple[int, int], int] = field(default_factory=dict)  # group, term: the lease of its leader
    ready: set[int] = field(default_factory=set)  # leases of nodes that may be candidates
    up: bool = True
    revision: int = 1
    lease_id: int = 0
    now_s: float = 0.0
    nodes: tuple[str, ...] = ()  # over which leads are spread, and copies
    replicas: int = 0  # of each group; 0: on all nodes
    on_drop: Callable[[int, GroupState, GroupState], None] = lambda *_: None  # a group loses a replica: seen, new

    def grant(self, node: str) -> int:
        self.lease_id += 1
        self.leases[self.lease_id] = (node, self.now_s + self.ttl_s)
        return self.lease_id

    def keep_alive(self, lease: int) -> bool:
        if lease not in self.leases:
            return False
        self.leases[lease] = (self.leases[lease][0], self.now_s + self.ttl_s)
        return True

    def come_back(self) -> None:
        self.up = True
        self.leases = {lease: (node, self.now_s + self.ttl_s) for lease, (node, _) in self.leases.items()}

    def expire(self) -> None:
        over = {lease for lease, (_, end_s) in self.leases.items() if end_s <= self.now_s} if self.up else set()
        for lease in over:
            del self.leases[lease]
        if not over:
            return
        for keys in self.groups.values():
            if keys.leader is not None and keys.leader.lease in over:
                keys.leader = None
            for node in [node for node, value in keys.suspects.items() if value[2] in over]:
                del keys.suspects[node]

    def views(self, wanted: Iterable[int], *, is_calm: bool) -> dict[int, GroupView]:
        """As an agent makes them of one reading: with leads and copies that are spread, if that is on."""
        seen = {group: self.view(group) for group in self.groups}
        planned: dict[int, str] = {}
        if self.nodes:
            live = {node for node, _ in self.leases.values()}
            members = [PlacedNode(name, draining=name not in live, away=name not in live) for name in self.nodes]
            ideal = planned_targets(seen, members, self.replicas, {}, is_calm=is_calm)
            seen = {group: view._replace(target=ideal[group]) for group, view in seen.items()}
            planned = {swap.group: swap.successor for swap in swaps(seen, ideal) if is_calm}
        return {
            group: seen[group]._replace(successor=seen[group].successor or successor_of(seen[group], planned, group))
            for group in wanted
        }

    def view(self, group: int) -> GroupView:
        keys = self.groups[group]
        term = keys.state.term
        suspects = {node: messages for node, (of, messages, _) in keys.suspects.items() if of == term}
        live = frozenset(node for node, _ in self.leases.values())
        latest = {node: lease for lease, (node, _) in self.leases.items()}  # a node has one member key
        ready = frozenset(node for node, lease in latest.items() if lease in self.ready)
        return GroupView(
            keys.state, keys.leader, suspects, live, keys.target, False, keys.successor, ready, bool(self.replicas)
        )

    def transact(self, group: int, node: str, lease: int, action: d.EtcdAction, messages: int) -> bool:
        """Whether the action took effect."""
        if lease not in self.leases:
            return False
        keys = self.groups[group]
        match action:
            case d.Elect(seen, new):
                taken = keys.leader is not None and node not in keys.suspects
                return not taken and self._lead(group, keys, seen, new, node, lease)
            case d.Reclaim(seen):
                own = keys.leader is None or keys.leader.node == node
                return own and self._lead(group, keys, seen, seen, node, lease)
            case d.Resign(seen, new):
                if keys.leader is None or keys.leader[:2] != (node, seen.term) or keys.state != seen:
                    return False
                keys.leader, keys.state = None, self._stamped(new)
            case d.WriteState(seen, new):
                if keys.leader is None or keys.leader[:2] != (node, seen.term) or keys.state != seen:
                    return False
                keys.state = self._stamped(new)
                if set(seen.replicas) - set(new.replicas):
                    self.on_drop(group, seen, new)
            case d.Suspect(term):
                keys.suspects[node] = (term, messages, lease)
            case d.Trust(_):
                keys.suspects.pop(node, None)
        return True

    def _lead(self, group: int, keys: GroupKeys, seen: GroupState, new: GroupState, node: str, lease: int) -> bool:
        if keys.state != seen:
            return False
        keys.leader = LeaderKey(node, new.term, lease)
        self.led_by[group, new.term] = lease
        if new != seen:
            keys.state = self._stamped(new)
        return True

    def _stamped(self, state: GroupState) -> GroupState:
        self.revision += 1
        return state._replace(revision=self.revision)
