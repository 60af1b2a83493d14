"""The keys of a node in etcd, in one that is a dictionary."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tailrace.cluster.etcd import Etcd, KeyValue, Put
from tailrace.cluster.store import ClusterStore
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

    def write(self, unchanged: Iterable[tuple[str, int]], puts: Iterable[Put], removed: Iterable[str] = ()) -> bool:
        self.writes += 1
        self.keys.update({put.key: put for put in puts})
        return True


def test_a_member_says_whether_it_may_be_a_candidate() -> None:
    etcd = KeptEtcd()
    store = ClusterStore(etcd, "test", "a")
    state = {"term": 1, "isr": ["a"], "replicas": ["a"]}
    etcd.keys["/tailrace/test/state"] = Put("/tailrace/test/state", json.dumps(state).encode())
    lease = store.renew(0, ADDRESS, TIMING, leads=False, ready=False)
    view = store.read()
    assert view.group is not None and view.group.state == GroupState(1, ("a",), ("a",), 1)
    assert (view.group.live, view.group.ready, view.addresses) == (frozenset("a"), frozenset(), {"a": ADDRESS})
    assert store.renew(lease, ADDRESS, TIMING, leads=False, ready=True) == lease
    view = store.read()
    assert view.group is not None and view.group.ready == frozenset("a")
    writes = etcd.writes
    assert store.renew(lease, ADDRESS, TIMING, leads=False, ready=True) == lease
    assert etcd.writes == writes, "nothing has changed"


def test_an_agent_that_was_started_again_goes_on_with_the_lease_of_a_node_that_leads_and_with_no_other() -> None:
    etcd = KeptEtcd()
    former = ClusterStore(etcd, "test", "a").renew(0, ADDRESS, TIMING, leads=True, ready=True)
    assert ClusterStore(etcd, "test", "a").renew(0, ADDRESS, TIMING, leads=True, ready=True) == former
    assert ClusterStore(etcd, "test", "a").renew(0, ADDRESS, TIMING, leads=False, ready=True) != former
    assert former not in etcd.leases
