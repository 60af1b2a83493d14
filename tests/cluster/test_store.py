"""The keys of a node in etcd, in one that is a dictionary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tailrace.cli.cluster import PlanRow, plan_of
from tailrace.cluster import decide as d
from tailrace.cluster.etcd import Etcd, KeyValue, Put, Transaction
from tailrace.cluster.store import ClusterStore, GroupWrite, InvalidCluster
from tailrace.cluster.view import ClusterTiming, GroupState

TIMING = ClusterTiming()
ADDRESS = "10.0.0.1:5050"


class KeptEtcd(Etcd):
    """The keys and leases of an etcd. `writes`: how many there were."""

    def __init__(self) -> None:
        super().__init__([], 1)
        self.keys: dict[str, Put] = {}
        self.leases: set[int] = set()
        self.granted = self.writes = 0

    def grant(self, ttl_s: int) -> int:
        self.granted += 1
        self.leases.add(self.granted)
        return self.granted

    def keep_alive(self, lease: int) -> bool:
        return lease in self.leases

    def revoke(self, lease: int) -> None:
        self.leases.discard(lease)
        self.keys = {key: put for key, put in self.keys.items() if put.lease != lease}

    def read(self, prefix: str) -> list[KeyValue]:
        return [KeyValue(put.key, put.value, 1, put.lease) for key, put in self.keys.items() if key.startswith(prefix)]

    def write(self, unchanged: Sequence[tuple[str, int]], puts: Sequence[Put], removed: Sequence[str] = ()) -> bool:
        self.writes += 1
        if any((key in self.keys) != bool(revision) for key, revision in unchanged):
            return False
        self.keys = {key: put for key, put in self.keys.items() if key not in removed}
        self.keys.update({put.key: put for put in puts})
        return True

    def write_all(self, transactions: Sequence[Transaction]) -> list[bool]:
        return [self.write(*each) for each in transactions]


def test_a_member_says_whether_it_may_be_a_candidate() -> None:
    etcd = KeptEtcd()
    store = ClusterStore(etcd, "test", "a")
    state = {"term": 1, "isr": ["a"], "replicas": ["a"]}
    etcd.keys["/tailrace/test/state"] = Put("/tailrace/test/state", json.dumps(state).encode())
    lease = store.renew(0, ADDRESS, TIMING, leads=False, ready=False)
    view = store.read()
    group = view.groups[0]
    assert group.state == GroupState(1, ("a",), ("a",), 1)
    assert (group.live, group.ready, view.addresses) == (frozenset("a"), frozenset(), {"a": ADDRESS})
    assert store.renew(lease, ADDRESS, TIMING, leads=False, ready=True) == lease
    view = store.read()
    assert view.groups[0].ready == frozenset("a")
    writes = etcd.writes
    assert store.renew(lease, ADDRESS, TIMING, leads=False, ready=True) == lease
    assert etcd.writes == writes, "nothing has changed"


def test_an_agent_that_was_started_again_goes_on_with_the_lease_of_a_node_that_leads_and_with_no_other() -> None:
    etcd = KeptEtcd()
    former = ClusterStore(etcd, "test", "a").renew(0, ADDRESS, TIMING, leads=True, ready=True)
    assert ClusterStore(etcd, "test", "a").renew(0, ADDRESS, TIMING, leads=True, ready=True) == former
    assert ClusterStore(etcd, "test", "a").renew(0, ADDRESS, TIMING, leads=False, ready=True) != former
    assert former not in etcd.leases


def test_a_cluster_of_one_group_has_the_keys_of_before() -> None:
    etcd = KeptEtcd()
    assert ClusterStore(etcd, "test", "a").found(1)
    assert etcd.keys.keys() == {"/tailrace/test/config", "/tailrace/test/state"}
    assert not ClusterStore(etcd, "test", "b").found(16), "it exists"
    assert list(ClusterStore(etcd, "test", "b").read().groups) == [0]


def test_groups_are_elected_each_for_itself() -> None:
    etcd = KeptEtcd()
    store = ClusterStore(etcd, "test", "a")
    lease = store.renew(0, ADDRESS, TIMING, leads=False, ready=True)
    assert store.found(3) and not ClusterStore(etcd, "test", "b").found(3)
    view = store.read()
    assert {each.state.isr for each in view.groups.values()} == {("a",)} and len(view.groups) == 3
    elections = [
        GroupWrite(group, d.Elect(view.groups[group].state, GroupState(1, ("a",), ("a",)))) for group in (0, 2)
    ]
    assert store.do(view, elections, lease) == [True, True]
    assert store.do(view, elections[1:], lease) == [False], "somebody leads it"
    view = store.read()
    assert [group for group, each in view.groups.items() if each.leader is not None] == [0, 2]
    assert store.do(view, [GroupWrite(1, d.Suspect(0), 7)], lease) == [True]
    assert [dict(each.suspects) for each in store.read().groups.values()] == [{}, {"a": 7}, {}]
    resignation = d.Resign(view.groups[2].state, view.groups[2].state._replace(replicas=("b", "a")))
    assert store.do(view, [GroupWrite(1, d.Trust(0)), GroupWrite(2, resignation)], lease) == [True, True]
    view = store.read()
    assert not view.groups[1].suspects and view.groups[2].leader is None
    assert view.groups[2].state.replicas == ("b", "a")
    etcd.revoke(lease)
    assert all(each.leader is None for each in store.read().groups.values())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("config", b"{"),
        ("config", b'{"groups": 0}'),
        ("config", b'{"groups": 257}'),
        ("config", b'{"groups": 2, "replicas": "3"}'),
        ("config", b"[]"),
        ("g/1/state", b""),
        ("g/1/state", b'{"term": 1, "isr": ["a"], "replicas": []}'),
        ("g/1/state", b'{"term": 1, "isr": [], "replicas": ["a"]}'),
        ("g/1/state", b'{"term": 1, "isr": ["a"], "replicas": "ab"}'),
        ("g/1/state", b'{"term": 1, "isr": ["a"], "replicas": [7]}'),
        ("g/1/state", b'{"term": 1, "isr": ["a"]}'),
    ],
)
def test_a_value_that_no_agent_writes_is_an_error_that_names_it(key: str, value: bytes) -> None:
    etcd = KeptEtcd()
    store = ClusterStore(etcd, "test", "a")
    assert store.found(2)
    etcd.write([], [Put(f"/tailrace/test/{key}", value)])
    with pytest.raises(InvalidCluster, match=f"^/tailrace/test/{key} is not valid in etcd"):
        store.read()


def test_a_cluster_that_is_half_made_is_none() -> None:
    etcd = KeptEtcd()
    ClusterStore(etcd, "test", "a").found(2)
    del etcd.keys["/tailrace/test/g/1/state"]
    assert not ClusterStore(etcd, "test", "a").read().groups


def members(etcd: KeptEtcd, *names: str) -> None:
    """Nodes whose agents live."""
    for name in names:
        ClusterStore(etcd, "test", name).renew(0, f"{name}:5050", TIMING, leads=False, ready=True)


def put_group(etcd: KeptEtcd, group: int, leader: str, nodes: str) -> None:
    at, state = f"/tailrace/test/g/{group}/", {"term": 1, "isr": list(nodes), "replicas": list(nodes)}
    etcd.write([], [Put(f"{at}state", json.dumps(state).encode())])
    etcd.write([], [Put(f"{at}leader", json.dumps({"node": leader, "term": 1}).encode(), 1)])


def test_a_plan_shows_leads_and_copies() -> None:
    etcd = KeptEtcd()
    members(etcd, "a", "b", "c")
    ClusterStore(etcd, "test", "a").found(2)
    put_group(etcd, 0, "a", "abc")
    put_group(etcd, 1, "b", "abc")
    view = ClusterStore(etcd, "test", "").read()
    assert not view.replicas and not plan_of(view)
    without = plan_of(replace(view, left=frozenset("b")))
    assert without == [PlanRow(0, "a:5050", "-", "-b:5050"), PlanRow(1, "b:5050", "c:5050", "-b:5050")]


def test_a_cluster_may_be_made_whose_observers_copy_on_demand() -> None:
    etcd = KeptEtcd()
    members(etcd, "a", "b")
    store = ClusterStore(etcd, "test", "a")
    assert store.found(2, 2, on_demand=True)
    view = store.read()
    assert view.replicas == 2 and all(each.is_spread and each.on_demand for each in view.groups.values())


def test_replicas_of_each_group_are_on_as_many_nodes_as_the_cluster_has_been_made_with() -> None:
    etcd = KeptEtcd()
    members(etcd, "a", "b", "c")
    ClusterStore(etcd, "test", "a").found(2)
    etcd.write([], [Put("/tailrace/test/config", json.dumps({"groups": 2, "replicas": 2}).encode())])
    put_group(etcd, 0, "a", "ab")
    put_group(etcd, 1, "b", "bc")
    view = ClusterStore(etcd, "test", "").read()
    assert view.replicas == 2 and all(each.is_spread for each in view.groups.values()) and not plan_of(view)
    assert [set(each.target) for each in view.planned().groups.values()] == [set("ab"), set("bc")]
    assert plan_of(replace(view, left=frozenset("c"))) == [PlanRow(1, "b:5050", "-", "+a:5050 -c:5050")]
    assert not any(each.on_demand for each in view.groups.values())
    put_group(etcd, 1, "b", "b")
    lacking = ClusterStore(etcd, "test", "").read()
    assert len(lacking.planned(is_calm=False).groups[1].target) == 2, "a copy that is missing is made at once"
