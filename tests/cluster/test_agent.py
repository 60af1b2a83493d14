"""When an agent reads etcd and asks its node: an etcd whose answers the test gives, and a node that counts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from tailrace.cluster import agent as agent_module
from tailrace.cluster.agent import TICK_S, Agent
from tailrace.cluster.etcd import Etcd, KeyValue
from tailrace.cluster.node_door import NodeDoor, NodeSocket
from tailrace.cluster.store import ClusterStore, ClusterView, InvalidCluster
from tailrace.cluster.view import BrokerReport, ClusterTiming, GroupState, GroupView

TIMING = ClusterTiming()
WAIT_S = 10.0


class HeldStore(ClusterStore):
    """Each reading waits until the test lets it go on."""

    def __init__(self) -> None:
        super().__init__(Etcd([], 1), "test", "a")
        self.begun, self.let_go = threading.Semaphore(0), threading.Semaphore(0)
        self.invalid: InvalidCluster | None = None

    def read(self) -> ClusterView:
        self.begun.release()
        assert self.let_go.acquire(timeout=WAIT_S)
        if self.invalid is not None:
            raise self.invalid
        return ClusterView({0: GroupView(GroupState(1, ("a",), ("a",)))}, {"a": "10.0.0.1:5050"})

    def renew(self, lease: int, address: str, timing: ClusterTiming, *, leads: bool, ready: bool) -> int:
        return lease or 1


class CountingDoor(NodeDoor):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked = 0

    def report(self, now_s: float, views: Mapping[int, GroupView]) -> dict[int, BrokerReport]:
        self.asked += 1
        return {}


class Cell:
    """An agent on a clock that the test moves."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        patch.setattr(agent_module, "boottime_s", lambda: self.now_s)
        self.store, self.door = HeldStore(), CountingDoor(path)
        stores = self.store, self.store, self.store
        self.agent = Agent("a", "10.0.0.1:5050", stores, self.door, NodeSocket(path), TIMING, found=0)

    def tick(self, seconds: float = TICK_S) -> int:
        """A tick so much later; how often the node was asked in it."""
        self.now_s += seconds
        before = self.door.asked
        self.agent.tick()
        return self.door.asked - before

    def answer(self) -> None:
        """Etcd answers the reading that is under way, and wakes the agent. The answer about the lease does so too."""
        assert self.store.begun.acquire(timeout=WAIT_S)
        reading = self.agent._looking._future
        assert reading is not None
        self.store.let_go.release()
        reading.exception(WAIT_S)
        assert self.agent._woken.wait(WAIT_S)


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    return Cell(tmp_path / "admin.sock", monkeypatch)


def test_the_node_is_asked_once_for_each_view(cell: Cell) -> None:
    cell.tick()
    cell.answer()
    assert cell.tick(0.01) == 1
    for _ in range(3):
        assert cell.tick() == 0, "with the answer it would be asked again"
        cell.answer()
        assert cell.tick(0.01) == 1


def test_the_node_is_asked_at_each_tick_while_etcd_does_not_answer(cell: Cell) -> None:
    cell.tick()
    cell.answer()
    cell.tick(0.01)
    assert [cell.tick() for _ in range(4)] == [0, 1, 1, 1]
    cell.answer()
    assert cell.tick() == 0, "it is read again"
    assert cell.tick() == 1
    cell.answer()


def test_an_etcd_that_answers_only_after_a_tick_holds_up_one_tick_of_two_at_most(cell: Cell) -> None:
    cell.tick()
    cell.answer()
    cell.tick(0.01)
    asked = []
    for _ in range(4):
        asked.append(cell.tick(TICK_S))
        cell.answer()
    assert asked == [0, 1, 0, 1]


def test_an_invalid_state_in_etcd_is_in_the_log_and_the_view_before_it_counts(
    cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    cell.tick()
    cell.answer()
    cell.tick(0.01)
    cell.store.invalid = InvalidCluster(KeyValue("/tailrace/test/state", b'{"replicas": []}', 7, 0), "another")
    for _ in range(3):
        cell.tick()
        cell.answer()
        cell.tick(0.01)
    assert cell.agent.figures().groups == 1
    assert caplog.text.count("/tailrace/test/state is not valid in etcd") == 1
    cell.store.invalid = None
    cell.tick()
    cell.answer()
    cell.tick(0.01)
    assert "etcd answers again" in caplog.text
