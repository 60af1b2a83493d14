"""The agent of a node: it reads etcd and asks the node, decides, and acts, a few times a second.

Everything that it does to the node is a command that an operator could type. It has no failsafe: while
etcd is away, the leader's lease ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from tailrace.cluster import decide as d
from tailrace.cluster.etcd import Etcd, EtcdAway
from tailrace.cluster.node_door import NodeAway, NodeDoor
from tailrace.cluster.store import ClusterStore, ClusterView
from tailrace.cluster.view import NEVER_S, AgentState, BrokerReport, ClusterTiming

log = logging.getLogger(__name__)

TICK_S: Final = 0.25


def boottime_s() -> float:
    """The clock of leases, the node's too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Agent:
    """`address`: at which other nodes reach this one. `found`: make the cluster unless it exists."""

    def __init__(
        self,
        node: str,
        address: str,
        etcd: Etcd,
        store: ClusterStore,
        door: NodeDoor,
        timing: ClusterTiming,
        *,
        found: bool,
    ) -> None:
        self._node = node
        self._address = address
        self._etcd = etcd
        self._store = store
        self._door = door
        self._timing = timing
        self._found = found
        self._lease = 0
        self._lease_sent_s = NEVER_S
        self._view_s = NEVER_S
        self._no_leader_s = NEVER_S
        self._doubted: frozenset[str] | None = None  # not known before the first view
        self._shown: object = None

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            began_s = boottime_s()
            self.tick()
            time.sleep(max(TICK_S - (boottime_s() - began_s), 0.01))

    def tick(self) -> None:
        try:
            self._renew()
            self._look()
        except EtcdAway as away:
            self._show(f"etcd does not answer: {away}")
        except NodeAway as away:
            self._show(f"the node does not answer: {away}")

    def leave(self) -> None:
        """Let another node take over at once: the node's lease first, then etcd's."""
        try:
            self._door.obey(d.StepDown(), {}, boottime_s())
            if self._lease:
                self._etcd.revoke(self._lease)
        except (EtcdAway, NodeAway) as away:
            log.warning("not left in good order: %s", away)

    def _show(self, text: str) -> None:
        """A line of the log, once."""
        if text != self._shown:
            self._shown = text
            log.info("%s", text)

    def _renew(self) -> None:
        sent_s = boottime_s()
        if sent_s - self._lease_sent_s < self._timing.ttl_s / 4:
            return
        if self._lease and not self._etcd.keep_alive(self._lease):
            self._lease, self._lease_sent_s = 0, NEVER_S
        if not self._lease:
            self._end_former_life()
            sent_s = boottime_s()
            self._lease = self._etcd.grant(int(self._timing.ttl_s))
            self._store.register(self._address, self._lease, found=self._found)
        self._lease_sent_s = sent_s

    def _end_former_life(self) -> None:
        """The keys of an agent of this node that was killed would keep others waiting, and this one from leading."""
        former = self._store.read().members.get(self._node, 0)
        if former:
            self._etcd.revoke(former)

    def _look(self) -> None:
        sent_s = boottime_s()
        view = self._store.read()
        group = view.group
        if group is None:
            self._show("the cluster is not founded yet")
            return
        self._view_s = sent_s
        if self._doubted is None:
            self._doubted = frozenset(group.state.isr)
        if group.leader is not None:
            self._no_leader_s = NEVER_S
        elif self._no_leader_s == NEVER_S:
            self._no_leader_s = boottime_s()
        report = self._door.report(boottime_s(), group.state.replicas)
        self._show(f"{report.role.value} in term {report.term}; leader {group.leader}, in sync {group.state.isr}")
        self._act(view, report)

    def _act(self, view: ClusterView, report: BrokerReport) -> None:
        assert view.group is not None and self._doubted is not None
        state = AgentState(
            boottime_s(),
            self._lease,
            self._lease_sent_s if self._lease else NEVER_S,
            self._view_s,
            no_leader_s=self._no_leader_s,
            doubted=self._doubted,
        )
        for action in d.decide(self._node, view.group, report, state, self._timing):
            if isinstance(action, d.AskPromises):
                continue
            if isinstance(action, d.SetLease | d.SetIsr | d.TakeLead | d.FollowLeader | d.StepDown):
                if not self._door.obey(action, view.addresses, boottime_s()):
                    log.warning("the node has refused %s", action)
                    return
            else:
                self._write(action)
                return
            if not isinstance(action, d.SetLease):
                log.info("done: %s", action)

    def _write(self, action: d.EtcdAction) -> None:
        """The next view shows the outcome. Raises EtcdAway."""
        assert self._doubted is not None
        try:
            done = self._store.do(action, self._lease, self._door.messages)
        except EtcdAway:
            if isinstance(action, d.WriteState):
                self._doubted |= frozenset(action.new.isr)
            raise
        if done and isinstance(action, d.WriteState):
            self._doubted = frozenset()
        log.info("%s: %s", "done" if done else "failed", action)
