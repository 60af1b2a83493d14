"""The keys of a cluster in etcd: the view of its groups, and the transactions of `tailrace.cluster.decide`.

/tailrace/CLUSTER/config            the number of groups of streams, which never changes; one group without this key.
                                    And how many replicas each has; all nodes without that
/tailrace/CLUSTER/nodes/NODE        the address of a node that belongs to the cluster
/tailrace/CLUSTER/members/NODE      the node's agent lives, and whether the node may be a candidate; goes with its lease
/tailrace/CLUSTER/g/N/leader        of group N: node and term; goes with the leader's lease
/tailrace/CLUSTER/g/N/state         of group N: term, in-sync replicas, replicas, the preferred leader first
/tailrace/CLUSTER/g/N/suspects/NODE the node has lost contact with the leader of a term; goes with its lease
/tailrace/CLUSTER/left/NODE         the node should be a replica of nothing any more
/tailrace/CLUSTER/draining/NODE     the node should lead nothing
/tailrace/CLUSTER/pins/N            the node that should lead group N
/tailrace/CLUSTER/switchover        the node to which all leads are handed over; goes with the lease of the command
/tailrace/CLUSTER/paused            while it is there, nobody is elected

With one group its keys stand without `g/N/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

from tailrace.cluster import decide as d
from tailrace.cluster.balance import PlannedSwap, successor_of, swaps
from tailrace.cluster.etcd import Etcd, KeyValue, Put, Transaction
from tailrace.cluster.placement import PlacedNode
from tailrace.cluster.replicas import planned_targets
from tailrace.cluster.view import ClusterTiming, GroupState, GroupView, LeaderKey
from tailrace.protocol.names import GROUPS_MAX

SHOWN_BYTES: Final = 200
"""Of a value that is not valid."""


class GroupWrite(NamedTuple):
    """What a node wants written of a group; `messages`: how many it has there, for its suspicion."""

    group: int
    action: d.EtcdAction
    messages: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One reading. `groups`: none before the cluster is made; `addresses`: of the nodes; `members`: the leases of those
    whose agents live; `leader_revisions`: of the leaders' keys, 0 without one; `swaps`: leads that change by plan;
    `replicas`: how many each group is to have, 0 for all nodes.
    """

    groups: dict[int, GroupView]
    addresses: dict[str, str] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    leader_revisions: dict[int, int] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    draining: frozenset[str] = frozenset()
    pinned: dict[int, str] = field(default_factory=dict)
    swaps: tuple[PlannedSwap, ...] = ()
    replicas: int = 0

    @property
    def paused(self) -> bool:
        return any(group.paused for group in self.groups.values())

    def placed_nodes(self) -> list[PlacedNode]:
        """The nodes that hold the streams, or should. Those that are away should lead nothing."""
        kept = self.members.keys() - self.draining
        return [
            PlacedNode(name, draining=name not in kept, away=name not in self.members)
            for name in sorted(self.addresses.keys() - self.left)
        ]

    def planned(self, *, is_calm: bool = True) -> ClusterView:
        """With the target of each group, and the leads that change now: none by plan unless all is calm."""
        wanted = planned_targets(self.groups, self.placed_nodes(), self.replicas, self.pinned, is_calm=is_calm)
        next_swaps = swaps(self.groups, wanted) if is_calm else []
        planned = {swap.group: swap.successor for swap in next_swaps}
        groups = {
            group: view._replace(target=wanted[group], successor=view.successor or successor_of(view, planned, group))
            for group, view in self.groups.items()
        }
        return replace(self, groups=groups, swaps=tuple(next_swaps))


class InvalidCluster(Exception):
    """A key of the cluster has a value that no agent writes."""

    def __init__(self, kv: KeyValue, form: str) -> None:
        shown = kv.value[:SHOWN_BYTES].decode(errors="replace")
        super().__init__(f"{kv.key} is not valid in etcd: {shown}; it must be {form}")


class ClusterStore:
    """A connection to etcd, for one thread of an agent."""

    def __init__(self, etcd: Etcd, cluster: str, node: str) -> None:
        self.etcd = etcd
        self._prefix = f"/tailrace/{cluster}/"
        self._node = node
        self._written: tuple[int, bool] = 0, False  # of the member

    def renew(self, lease: int, address: str, timing: ClusterTiming, *, leads: bool, ready: bool) -> int:
        """Keep the lease of this node, or make another one, with which it belongs to the cluster. Raises EtcdAway.

        The keys of an agent of this node that was killed would keep others waiting, and this one from leading. With
        `leads` that agent's lease goes on.
        """
        kept = self._kept_lease(lease, leads=leads)
        if kept and self._written == (kept, ready):
            return kept
        new = kept or self.etcd.grant(int(timing.ttl_s))
        member = Put(f"{self._prefix}members/{self._node}", json.dumps({"ready": ready}).encode(), new)
        self.etcd.write([], [Put(f"{self._prefix}nodes/{self._node}", address.encode()), member])
        self._written = new, ready
        return new

    def _kept_lease(self, lease: int, *, leads: bool) -> int:
        """The lease that goes on; 0 if the node needs another one."""
        if lease and self.etcd.keep_alive(lease):
            return lease
        former = self.read().members.get(self._node, 0)
        if former and leads and former != lease and self.etcd.keep_alive(former):
            return former
        if former:
            self.etcd.revoke(former)
        return 0

    def found(self, groups: int, replicas: int = 0, *, on_demand: bool = False) -> bool:
        """Make the cluster, with this node alone; nothing if there is one. `replicas`: of each group; 0: all nodes.
        `on_demand`: the other nodes copy only streams that are read there. Raises EtcdAway.

        Its keys are more than etcd takes in one transaction, so the one with their number comes last.
        """
        state = _packed_state(GroupState(0, (self._node,), (self._node,)))
        keys = [self._key(group, groups, "state") for group in range(groups)]
        value: dict[str, int] = {"groups": groups, "replicas": replicas} if replicas else {"groups": groups}
        value |= {"on_demand": True} if on_demand else {}
        config = Put(f"{self._prefix}config", json.dumps(value).encode())
        absent = [(f"{self._prefix}config", 0), (f"{self._prefix}state", 0)]
        self.etcd.write_all([Transaction([*absent, (key, 0)], [Put(key, state)]) for key in keys if groups > 1])
        return self.etcd.write(absent, [config, *(Put(key, state) for key in keys if groups == 1)])

    def _key(self, group: int, groups: int, key: str) -> str:
        return f"{self._prefix}{_at(group, groups)}{key}"

    def read(self) -> ClusterView:
        """Raises EtcdAway, InvalidCluster."""
        found = {each.key.removeprefix(self._prefix): each for each in self.etcd.read(self._prefix)}
        count, replicas = _config_of(found["config"]) if "config" in found else (1, 0)
        members = {node: kv.lease for node, kv in _below(found, "members/").items()}
        ready = frozenset(node for node, kv in _below(found, "members/").items() if json.loads(kv.value).get("ready"))
        config = json.loads(found["config"].value) if "config" in found else {}
        switchover = found["switchover"].value.decode() if "switchover" in found else ""
        groups, revisions = {}, {}
        for group in range(count):
            at = _at(group, count)
            if f"{at}state" not in found or (count > 1 and "config" not in found):
                continue
            state, leader = _state_of(found[f"{at}state"]), found.get(f"{at}leader")
            revisions[group] = leader.revision if leader else 0
            groups[group] = GroupView(
                state,
                _leader_of(leader) if leader else None,
                _suspects_of(_below(found, f"{at}suspects/"), state.term),
                frozenset(members),
                (),
                "paused" in found,
                switchover,
                ready,
                bool(replicas),
                bool(config.get("on_demand")),
            )
        return ClusterView(
            groups if len(groups) == count else {},
            {node: kv.value.decode() for node, kv in _below(found, "nodes/").items()},
            members,
            revisions,
            frozenset(_below(found, "left/")),
            frozenset(_below(found, "draining/")),
            {int(group): kv.value.decode() for group, kv in _below(found, "pins/").items()},
            replicas=replicas,
        )

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        """Write a key of the operator. Raises EtcdAway."""
        self.etcd.write([], [Put(f"{self._prefix}{key}", value, lease)])

    def remove(self, key: str) -> None:
        """Remove a key of the operator. Raises EtcdAway."""
        self.etcd.write([], [], [f"{self._prefix}{key}"])

    def do(self, view: ClusterView, writes: Sequence[GroupWrite], lease: int) -> list[bool]:
        """Whether each took effect, in the cluster as it was viewed. Raises EtcdAway."""
        return self.etcd.write_all([self._transaction(view, each, lease) for each in writes])

    def _transaction(self, view: ClusterView, write: GroupWrite, lease: int) -> Transaction:
        at = partial(self._key, write.group, len(view.groups))
        suspicion = at(f"suspects/{self._node}")
        leader = (at("leader"), view.leader_revisions[write.group])
        match write.action:
            case d.Elect(seen, new):
                return self._lead(at, leader, seen, new, lease)
            case d.Reclaim(seen):
                return self._lead(at, leader, seen, seen, lease)
            case d.Resign(seen, new):
                return Transaction([leader, (at("state"), seen.revision)], [_put_state(at, new)], [at("leader")])
            case d.WriteState(seen, new):
                return Transaction([leader, (at("state"), seen.revision)], [_put_state(at, new)])
            case d.Suspect(term):
                value = json.dumps({"term": term, "messages": write.messages}).encode()
                return Transaction([], [Put(suspicion, value, lease)])
            case d.Trust(_):
                return Transaction([], [], [suspicion])

    def _lead(
        self, at: Callable[[str], str], leader: tuple[str, int], seen: GroupState, new: GroupState, lease: int
    ) -> Transaction:
        """Both keys are as they were read, and become those of a leader at once."""
        value = json.dumps({"node": self._node, "term": new.term}).encode()
        puts = [Put(at("leader"), value, lease), *([_put_state(at, new)] if new != seen else [])]
        return Transaction([(at("state"), seen.revision), leader], puts)


def _at(group: int, groups: int) -> str:
    return "" if groups == 1 else f"g/{group}/"


def _below(found: dict[str, KeyValue], prefix: str) -> dict[str, KeyValue]:
    return {key.removeprefix(prefix): kv for key, kv in found.items() if key.startswith(prefix)}


def _put_state(at: Callable[[str], str], state: GroupState) -> Put:
    return Put(at("state"), _packed_state(state))


def _packed_state(state: GroupState) -> bytes:
    return json.dumps({"term": state.term, "isr": state.isr, "replicas": state.replicas}).encode()


def _config_of(kv: KeyValue) -> tuple[int, int]:
    """The numbers of groups, and of replicas of each."""
    try:
        value = json.loads(kv.value)
        groups, replicas = value["groups"], value.get("replicas", 0)
    except (ValueError, TypeError, KeyError, AttributeError):
        groups = replicas = None
    if not (isinstance(groups, int) and isinstance(replicas, int) and 1 <= groups <= GROUPS_MAX and replicas >= 0):
        raise InvalidCluster(kv, f'{{"groups": 1 to {GROUPS_MAX}, "replicas": 0 or more}}')
    return groups, replicas


def _state_of(kv: KeyValue) -> GroupState:
    try:
        value: dict[str, Any] = json.loads(kv.value)
        term, isr, replicas = value["term"], value["isr"], value["replicas"]
    except (ValueError, TypeError, KeyError):
        term = isr = replicas = None
    if not (isinstance(term, int) and _is_of_nodes(isr) and _is_of_nodes(replicas)):
        raise InvalidCluster(kv, '{"term": NUMBER, "isr": [NODE, ...], "replicas": [NODE, ...]}')
    return GroupState(term, tuple(isr), tuple(replicas), kv.revision)


def _is_of_nodes(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(node, str) for node in value)


def _leader_of(kv: KeyValue) -> LeaderKey:
    value = json.loads(kv.value)
    return LeaderKey(value["node"], value["term"], kv.lease)


def _suspects_of(found: dict[str, KeyValue], term: int) -> dict[str, int]:
    values = {node: json.loads(kv.value) for node, kv in found.items()}
    return {node: value["messages"] for node, value in values.items() if value["term"] == term}
