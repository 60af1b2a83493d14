"""The agent of a node: it reads etcd and asks the node, decides, and acts, a few times a second.

Everything that it does to the node is a command that an operator could type. It never waits for etcd: requests are
made by threads, and their answers are taken at the next tick. So while etcd is away, the leader still gets promises of
the other in-sync replicas, and its node goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from tailrace.cluster import decide as d
from tailrace.cluster.etcd import EtcdAway
from tailrace.cluster.node_door import NodeAway, NodeDoor, NodeSocket
from tailrace.cluster.store import ClusterStore, ClusterView
from tailrace.cluster.view import (
    NEVER_S,
    AgentFigures,
    AgentState,
    BrokerReport,
    BrokerRole,
    ClusterTiming,
    GroupState,
    GroupView,
)

log = logging.getLogger(__name__)

TICK_S: Final = 0.25
PROMISE_EVERY_S: Final = 0.5
AWAY_S: Final = 3.0
"""Without a view of etcd for this long, etcd counts as away, in the log and the metrics."""


def boottime_s() -> float:
    """The clock of leases, the node's too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Requests:
    """At most one request at a time of one kind, in a thread of its own."""

    def __init__(self, name: str, woken: threading.Event) -> None:
        self._woken = woken
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._future: Future[Any] | None = None
        self._done: Callable[[Any], None] = lambda _: None
        self.sent_s = NEVER_S

    @property
    def is_busy(self) -> bool:
        return self._future is not None

    def begin(self, request: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """`done` gets the value, or the exception, when `collect` finds it."""
        self.sent_s = boottime_s()
        self._future, self._done = self._pool.submit(request), done
        self._future.add_done_callback(lambda _: self._woken.set())

    def collect(self) -> None:
        future = self._future
        if future is not None and future.done():
            self._future = None
            self._done(future.exception() or future.result())

    def stop(self) -> None:
        self._pool.shutdown()


class Agent:
    """`address`: at which other nodes reach this one. `found`: make the cluster unless it exists. `stores`: connections
    to etcd for the lease, for views and for writes.
    """

    def __init__(
        self,
        node: str,
        address: str,
        stores: tuple[ClusterStore, ClusterStore, ClusterStore],
        door: NodeDoor,
        promising: NodeSocket,
        timing: ClusterTiming,
        *,
        found: bool,
    ) -> None:
        self._node = node
        self._address = address
        self._leases, self._views, self._writes = stores
        self._door = door
        self._promising = promising
        self._timing = timing
        self._found = found
        self._woken = threading.Event()  # an answer has come
        self._renewing, self._looking = Requests("lease", self._woken), Requests("view", self._woken)
        self._writing, self._asking = Requests("write", self._woken), Requests("promises", self._woken)
        self._lease = 0
        self._lease_sent_s = NEVER_S
        self._view: ClusterView | None = None
        self._view_s = NEVER_S
        self._answered_s = boottime_s()  # the last answer of etcd, or the start
        self._leader_revision = 0
        self._written_s = NEVER_S
        self._free_s = NEVER_S
        self._no_leader_s = NEVER_S
        self._doubted: frozenset[str] | None = None  # not known before the first view
        self._promises: dict[str, float] = {}
        self._is_node_away = True
        self._shown: dict[str, str] = {}

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.tick()
            self._woken.wait(TICK_S)
            self._woken.clear()

    def tick(self) -> None:
        for requests in (self._renewing, self._looking, self._writing, self._asking):
            requests.collect()
        try:
            report = self._report()
        except NodeAway as away:
            self._is_node_away = True
            self._show("node", f"the node does not answer: {away}")
            report = None
        if not self._renewing.is_busy and boottime_s() - self._renewing.sent_s >= self._timing.ttl_s / 4:
            self._renew(report)
        looked_s = self._looking.sent_s
        if not self._looking.is_busy and (boottime_s() - looked_s >= TICK_S or looked_s < self._written_s):
            self._looking.begin(self._views.read, self._take_view)
        if report is not None and self._view is not None and self._view.group is not None:
            self._act(self._view, report)

    def figures(self) -> AgentFigures:
        """As of the last view; another thread may ask."""
        group = self._view.group if self._view is not None else None
        state, leader = (group.state, group.leader) if group is not None else (GroupState(0, (), ()), None)
        return AgentFigures(
            leader=leader is not None and leader.node == self._node,
            has_leader=leader is not None,
            in_sync_replicas=len(state.isr),
            in_sync_minimum=self._timing.min_isr,
            replicas=len(state.replicas),
            term=state.term,
            node_answers=not self._is_node_away,
            etcd_age_seconds=boottime_s() - self._answered_s,
            paused=group is not None and group.paused,
        )

    def leave(self) -> None:
        """Let another node take over at once: the node's lease first, then etcd's."""
        for requests in (self._renewing, self._looking, self._writing, self._asking):
            requests.stop()
        try:
            self._door.obey(d.StepDown(), {}, boottime_s())
            if self._lease:
                self._leases.etcd.revoke(self._lease)
            self._door.close()
        except (EtcdAway, NodeAway) as away:
            log.warning("not left in good order: %s", away)

    def _show(self, what: str, text: str) -> None:
        """A line of the log when it changes."""
        if text != self._shown.get(what, ""):
            self._shown[what] = text
            log.info("%s", text or f"{what} answers again")

    # --- known state ----------------------------------------------------------------------------------------------

    def _report(self) -> BrokerReport:
        """Raises NodeAway. A node that has just started may have given promises that it does not know any more."""
        group = self._view.group if self._view is not None else None
        report = self._door.report(boottime_s(), group.state.replicas if group is not None else ())
        if self._is_node_away:
            self._is_node_away = False
            self._show("node", "")
        self._free_s = self._door.since_s + self._timing.promise_s
        return report

    def _renew(self, report: BrokerReport | None) -> None:
        """The lease goes on, or another one is made. A node that still leads keeps the lease of its former agent."""
        leads = report is not None and report.role is BrokerRole.LEADER
        is_ready = report is not None and boottime_s() >= max(self._free_s, report.promised_s)
        self._renewing.begin(
            lambda: self._leases.renew(self._lease, self._address, self._timing, leads=leads, ready=is_ready),
            self._take_lease,
        )

    def _take_lease(self, value: int | Exception) -> None:
        if isinstance(value, int):
            self._lease, self._lease_sent_s = value, self._renewing.sent_s
        else:
            log.debug("the lease is not renewed: %s", value)

    def _take_view(self, value: ClusterView | Exception) -> None:
        """A view that may be from before a write is left out."""
        sent_s = self._looking.sent_s
        if isinstance(value, Exception):
            if boottime_s() - self._view_s > AWAY_S:
                self._show("etcd", "etcd does not answer")
            log.debug("no view: %s", value)
            return
        self._show("etcd", "")
        self._answered_s = boottime_s()
        if not self._writing.is_busy and sent_s > self._written_s:
            self._view, self._view_s, self._leader_revision = value, sent_s, value.leader_revision
            if value.group is None:
                self._show("role", "the cluster is not founded yet")
                self._begin_cluster()
            elif value.group.leader is not None:
                self._no_leader_s = NEVER_S
            elif self._no_leader_s == NEVER_S:
                self._no_leader_s = boottime_s()

    def _begin_cluster(self) -> None:
        if self._found and self._lease:
            self._writing.begin(self._writes.found, lambda _: None)

    # --- acting -----------------------------------------------------------------------------------------------

    def _act(self, view: ClusterView, report: BrokerReport) -> None:
        group = view.group
        assert group is not None
        if self._doubted is None:
            self._doubted = frozenset(group.state.isr)
        self._show(
            "role", f"{report.role.value} in term {report.term}; leader {group.leader}, in sync {group.state.isr}"
        )
        for action in d.decide(self._node, group, report, self._state(report, group), self._timing):
            if isinstance(action, d.AskPromises):
                self._ask_promises(action, view)
            elif self._writing.is_busy and not isinstance(action, d.SetLease):
                return
            elif isinstance(action, d.SetLease | d.SetIsr | d.TakeLead | d.FollowLeader | d.StepDown):
                if not self._command(action, view):
                    return
            else:
                self._write(action)
                return

    def _state(self, report: BrokerReport, group: GroupView) -> AgentState:
        assert self._doubted is not None
        others = report.isr - {self._node}
        is_alone = group.state.isr == (self._node,)  # it can have promised nothing to another leader
        return AgentState(
            boottime_s(),
            self._lease,
            self._lease_sent_s if self._lease else NEVER_S,
            self._view_s,
            NEVER_S if is_alone else self._free_s,
            min((self._promises.get(name, NEVER_S) for name in others), default=NEVER_S),
            self._no_leader_s,
            self._doubted,
        )

    def _command(self, action: d.BrokerAction, view: ClusterView) -> bool:
        """Whether the node has done it."""
        try:
            done = self._door.obey(action, view.addresses, boottime_s())
        except NodeAway as away:
            self._is_node_away = True
            self._show("node", f"the node does not answer: {away}")
            return False
        if not done:
            log.warning("the node has refused %s", action)
        elif not isinstance(action, d.SetLease):
            log.info("done: %s", action)
        return done

    def _ask_promises(self, action: d.AskPromises, view: ClusterView) -> None:
        addresses = [view.addresses[name] for name in sorted(action.nodes) if name in view.addresses]
        sent_s = boottime_s()
        if self._asking.is_busy or sent_s - self._asking.sent_s < PROMISE_EVERY_S or not addresses:
            return

        def done(value: set[str] | Exception) -> None:
            for name in () if isinstance(value, Exception) else value:
                self._promises[name] = sent_s + self._timing.promise_hold_s

        self._asking.begin(lambda: self._promising.promises(action.term, self._timing.promise_s, addresses), done)

    def _write(self, action: d.EtcdAction) -> None:
        """The next view shows the outcome."""

        def done(value: bool | Exception) -> None:
            if isinstance(action, d.WriteState):
                if value is True:
                    self._doubted = frozenset()
                elif isinstance(value, Exception):
                    self._doubted = (self._doubted or frozenset()) | frozenset(action.new.isr)
            self._view_s, self._written_s = NEVER_S, boottime_s()
            log.info("%s: %s", "done" if value is True else f"failed ({value})", action)

        revision, lease = self._leader_revision, self._lease
        messages = self._door.messages if boottime_s() >= self._free_s else -1  # it cannot be a candidate yet
        self._writing.begin(lambda: self._writes.do(action, lease, messages, revision), done)
