"""The keys of a cluster in etcd: the view of its one group, and the transactions of `tailrace.cluster.decide`.

/tailrace/CLUSTER/nodes/NODE      the address of a node that belongs to the cluster
/tailrace/CLUSTER/members/NODE    the node's agent lives, and whether the node may be a candidate; goes with its lease
/tailrace/CLUSTER/leader          node and term; goes with the leader's lease
/tailrace/CLUSTER/state           term, in-sync replicas, replicas
/tailrace/CLUSTER/suspects/NODE   the node has lost contact with the leader of a term; goes with its lease
/tailrace/CLUSTER/left/NODE       the node should hold nothing any more
/tailrace/CLUSTER/switchover      the node to which the lead is handed over; goes with the lease of the command
/tailrace/CLUSTER/paused          while it is there, nobody is elected
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tailrace.cluster import decide as d
from tailrace.cluster.etcd import Etcd, KeyValue, Put
from tailrace.cluster.view import ClusterTiming, GroupState, GroupView, LeaderKey


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One reading. `addresses`: of the nodes; `members`: the leases of those whose agents live; `leader_revision`: of
    the key of the leader, 0 without one.
    """

    group: GroupView | None
    addresses: dict[str, str] = field(default_factory=dict)
    members: dict[str, int] = field(default_factory=dict)
    leader_revision: int = 0
    left: frozenset[str] = frozenset()


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

    def found(self) -> bool:
        """Make the cluster, with this node alone; nothing if there is one. Raises EtcdAway."""
        state = GroupState(0, (self._node,), (self._node,))
        return self.etcd.write([(f"{self._prefix}state", 0)], [Put(f"{self._prefix}state", _packed_state(state))])

    def read(self) -> ClusterView:
        found = {each.key.removeprefix(self._prefix): each for each in self.etcd.read(self._prefix)}
        addresses = {key.removeprefix("nodes/"): kv.value.decode() for key, kv in found.items() if key[:6] == "nodes/"}
        members = {key.removeprefix("members/"): kv.lease for key, kv in found.items() if key[:8] == "members/"}
        left = frozenset(key.removeprefix("left/") for key in found if key[:5] == "left/")
        if "state" not in found:
            return ClusterView(None, addresses, members, left=left)
        leader = found.get("leader")
        state = _state_of(found["state"])
        view = GroupView(
            state,
            _leader_of(leader) if leader else None,
            _suspects_of(found, state.term),
            frozenset(members),
            tuple(
                node for node in (*state.replicas, *sorted(addresses.keys() - set(state.replicas))) if node not in left
            ),
            "paused" in found,
            found["switchover"].value.decode() if "switchover" in found else "",
            frozenset(node for node in members if json.loads(found[f"members/{node}"].value).get("ready")),
        )
        return ClusterView(view, addresses, members, leader.revision if leader else 0, left)

    def put(self, key: str, value: bytes, lease: int = 0) -> None:
        """Write a key of the operator. Raises EtcdAway."""
        self.etcd.write([], [Put(f"{self._prefix}{key}", value, lease)])

    def remove(self, key: str) -> None:
        """Remove a key of the operator. Raises EtcdAway."""
        self.etcd.write([], [], [f"{self._prefix}{key}"])

    def do(self, action: d.EtcdAction, lease: int, messages: int, leader_revision: int) -> bool:
        """Whether it took effect; `leader_revision` is that of the view. Raises EtcdAway."""
        own_leader = [(f"{self._prefix}leader", leader_revision)]
        match action:
            case d.Elect(seen, new):
                return self._lead(seen, new, lease, leader_revision)
            case d.Reclaim(seen):
                return self._lead(seen, seen, lease, leader_revision)
            case d.Resign(_):
                return self.etcd.write(own_leader, [], [f"{self._prefix}leader"])
            case d.WriteState(seen, new):
                unchanged = [*own_leader, (f"{self._prefix}state", seen.revision)]
                return self.etcd.write(unchanged, [Put(f"{self._prefix}state", _packed_state(new))])
            case d.Suspect(term):
                value = json.dumps({"term": term, "messages": messages}).encode()
                return self.etcd.write([], [Put(f"{self._prefix}suspects/{self._node}", value, lease)])
            case d.Trust(_):
                return self.etcd.write([], [], [f"{self._prefix}suspects/{self._node}"])

    def _lead(self, seen: GroupState, new: GroupState, lease: int, leader_revision: int) -> bool:
        """Both keys are as they were read, and become those of a leader at once."""
        value = json.dumps({"node": self._node, "term": new.term}).encode()
        puts = [Put(f"{self._prefix}leader", value, lease)]
        if new != seen:
            puts.append(Put(f"{self._prefix}state", _packed_state(new)))
        unchanged = [(f"{self._prefix}state", seen.revision), (f"{self._prefix}leader", leader_revision)]
        return self.etcd.write(unchanged, puts)


def _packed_state(state: GroupState) -> bytes:
    return json.dumps({"term": state.term, "isr": state.isr, "replicas": state.replicas}).encode()


def _state_of(kv: KeyValue) -> GroupState:
    value: dict[str, Any] = json.loads(kv.value)
    return GroupState(value["term"], tuple(value["isr"]), tuple(value["replicas"]), kv.revision)


def _leader_of(kv: KeyValue) -> LeaderKey:
    value = json.loads(kv.value)
    return LeaderKey(value["node"], value["term"], kv.lease)


def _suspects_of(found: dict[str, KeyValue], term: int) -> dict[str, int]:
    values = {
        key.removeprefix("suspects/"): json.loads(kv.value) for key, kv in found.items() if key[:9] == "suspects/"
    }
    return {node: value["messages"] for node, value in values.items() if value["term"] == term}
