"""The agent of a node: it reads etcd and asks the node, decides, and acts, a few times a second.

Everything that it does to the node is a command that an operator could type. It never waits for etcd: requests are
made by threads, and their answers are taken at the next tick. So while etcd is away, the leader still gets promises of
the other in-sync replicas, and its node goes on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from tailrace.cluster import decide as d
from tailrace.cluster.etcd import EtcdAway
from tailrace.cluster.node_door import GroupAction, NodeAway, NodeDoor, NodeSocket, PromiseWish
from tailrace.cluster.store import ClusterStore, ClusterView, GroupWrite, InvalidCluster
from tailrace.cluster.view import (
    NEVER_S,
    AgentFigures,
    AgentState,
    BrokerReport,
    BrokerRole,
    ClusterTiming,
    GroupView,
    signs_of,
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
    """`address`: at which other nodes reach this one. `found`: make the cluster with this number of groups unless it
    exists; 0: do not; and with this number of `replicas` of each, 0 for all nodes; `on_demand`: the others copy only
    streams that are read there. `stores`: connections to etcd for the lease, for views and for writes.
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
        found: int,
        replicas: int = 0,
        on_demand: bool = False,
    ) -> None:
        self._node = node
        self._address = address
        self._leases, self._views, self._writes = stores
        self._door = door
        self._promising = promising
        self._timing = timing
        self._founding = partial(self._writes.found, found, replicas, on_demand=on_demand) if found else None
        self._woken = threading.Event()  # an answer has come
        self._renewing, self._looking = Requests("lease", self._woken), Requests("view", self._woken)
        self._writing, self._asking = Requests("write", self._woken), Requests("promises", self._woken)
        self._changing = Requests("roles", self._woken)
        self._waits_for_view = False  # the last tick has left all else to the answer
        self._requests = (self._renewing, self._looking, self._writing, self._asking, self._changing)
        self._changed: frozenset[int] = frozenset()  # groups in which the node changes its role just now
        self._lease = 0
        self._lease_sent_s = NEVER_S
        self._view: ClusterView | None = None
        self._view_s = NEVER_S
        self._answered_s = boottime_s()  # the last answer of etcd, or the start
        self._written_s = NEVER_S
        self._free_s = NEVER_S
        self._signs: dict[int, object] = {}
        self._stirred_s = boottime_s()
        self._no_leader_s: dict[int, float] = {}  # of groups without a leader
        self._doubted: dict[int, frozenset[str]] = {}  # not known before the first view
        self._promises: dict[tuple[int, str], float] = {}
        self._is_node_away = True
        self._shown: dict[str, str] = {}

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            self.tick()
            self._woken.wait(TICK_S)
            self._woken.clear()

    def tick(self) -> None:
        for requests in self._requests:
            requests.collect()
        self._waits_for_view = self._look() and not self._waits_for_view
        if self._waits_for_view:
            return  # what the node is asked now would be asked again with the answer, which comes in a moment
        try:
            reports = self._report()
        except NodeAway as away:
            self._note_away(away)
            reports = {}
        is_due = boottime_s() - self._renewing.sent_s >= self._timing.ttl_s / 4
        if is_due and not self._renewing.is_busy and self._view is not None:  # or else it is not known who leads
            self._renew(reports)
        if reports and self._view is not None:
            self._act(self._view, reports)

    def _look(self) -> bool:
        """Read etcd if it is time. Returns whether it is read now."""
        looked_s = self._looking.sent_s
        is_due = boottime_s() - looked_s >= TICK_S or looked_s < self._written_s
        if is_due and not self._looking.is_busy:
            self._looking.begin(self._views.read, self._take_view)
            return True
        return False

    def _note_away(self, away: NodeAway) -> None:
        self._is_node_away = True
        self._show("node", f"the node does not answer: {away}")

    def figures(self) -> AgentFigures:
        """As of the last view; another thread may ask."""
        groups = list(self._view.groups.values()) if self._view is not None else []
        led = sum(group.leader is not None and group.leader.node == self._node for group in groups)
        return AgentFigures(
            leader=led > 0,
            has_leader=bool(groups) and all(group.leader is not None for group in groups),
            groups=len(groups),
            groups_led=led,
            in_sync_replicas=min((len(group.state.isr) for group in groups), default=0),
            in_sync_minimum=self._timing.min_isr,
            replicas=max((len(group.state.replicas) for group in groups), default=0),
            out_of_sync_replicas=max(
                (len(set(group.state.replicas) - set(group.state.isr)) for group in groups), default=0
            ),
            term=max((group.state.term for group in groups), default=0),
            node_answers=not self._is_node_away,
            etcd_age_seconds=boottime_s() - self._answered_s,
            paused=self._view is not None and self._view.paused,
        )

    def leave(self) -> None:
        """Let another node take over at once: the node's lease first, then etcd's."""
        for requests in self._requests:
            requests.stop()
        try:
            self._door.obey([(group, d.StepDown()) for group in self._door.groups], boottime_s())
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

    def _report(self) -> dict[int, BrokerReport]:
        """Raises NodeAway. A node that has just started may have given promises that it does not know any more."""
        views = self._view.groups if self._view is not None else {}
        reports = self._door.report(boottime_s(), views) if views else {}
        if self._is_node_away:
            self._is_node_away = False
            self._show("node", "")
        self._free_s = self._door.since_s + self._timing.promise_s
        return reports

    def _renew(self, reports: Mapping[int, BrokerReport]) -> None:
        """The lease goes on, or another one is made. A node that still leads keeps the lease of its former agent."""
        leads = any(report.role is BrokerRole.LEADER for report in reports.values())
        promised_s = max((report.promised_s for report in reports.values()), default=math.inf)
        is_ready = boottime_s() >= max(self._free_s, promised_s)
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
        if isinstance(value, InvalidCluster):  # the view before it goes on, as if etcd were away
            self._show("etcd", str(value))
            return
        if isinstance(value, Exception):
            if boottime_s() - self._view_s > AWAY_S:
                self._show("etcd", "etcd does not answer")
            log.debug("no view: %s", value)
            return
        self._show("etcd", "")
        self._answered_s = boottime_s()
        if not self._writing.is_busy and sent_s > self._written_s:
            if (signs := signs_of(value.groups)) != self._signs:
                self._signs, self._stirred_s = signs, boottime_s()
            is_calm = boottime_s() - self._stirred_s >= self._timing.calm_s
            self._view, self._view_s = value.planned(is_calm=is_calm), sent_s
            if not value.groups:
                self._show("role", "the cluster is not founded yet")
                self._begin_cluster()
            free = [group for group, view in value.groups.items() if view.leader is None]
            self._no_leader_s = {group: self._no_leader_s.get(group, boottime_s()) for group in free}

    def _begin_cluster(self) -> None:
        if self._founding is not None and self._lease:
            self._writing.begin(self._founding, lambda _: None)

    # --- acting -----------------------------------------------------------------------------------------------

    def _act(self, view: ClusterView, reports: Mapping[int, BrokerReport]) -> None:
        """Decide for each group and act, in its order: all first steps at once, then all second ones."""
        due: dict[int, deque[d.Action]] = {}
        for group, report in reports.items():
            self._doubted.setdefault(group, frozenset(view.groups[group].state.isr))
            if group not in self._changed:
                state = self._state(report, group, view.groups[group])
                due[group] = deque(d.decide(self._node, view.groups[group], report, state, self._timing))
        self._show("role", _role_text(view, reports))
        wishes: list[PromiseWish] = []
        writes: list[GroupWrite] = []
        roles: list[GroupAction] = []
        while due:
            steps: list[GroupAction] = []
            for group, actions in list(due.items()):
                self._sort(group, actions, view, steps, roles, writes, wishes)
                if not actions:
                    del due[group]
            for (group, _), done in zip(steps, self._obey(steps), strict=True):
                if not done:
                    due.pop(group, None)
        self._ask_promises(wishes, len(view.groups))
        self._change_roles(roles, view)
        self._write(writes, view)

    def _sort(
        self,
        group: int,
        actions: deque[d.Action],
        view: ClusterView,
        steps: list[GroupAction],
        roles: list[GroupAction],
        writes: list[GroupWrite],
        wishes: list[PromiseWish],
    ) -> None:
        """Take the next action of a group, and all of them if the others have to wait for its outcome."""
        while actions:
            action = actions.popleft()
            if isinstance(action, d.AskPromises):
                addresses = (view.addresses[name] for name in sorted(action.nodes) if name in view.addresses)
                wishes.append(PromiseWish(group, action.term, tuple(addresses)))
                continue
            if self._writing.is_busy and not isinstance(action, d.SetLease):
                actions.clear()
            elif isinstance(action, d.SetLease | d.SetIsr | d.StepDown):
                steps.append((group, action))
            else:
                actions.clear()
                if isinstance(action, d.TakeLead | d.FollowLeader | d.Observe):
                    roles.append((group, action))
                else:
                    is_free = boottime_s() >= self._free_s  # or else it cannot be a candidate yet
                    writes.append(GroupWrite(group, action, self._door.groups[group].messages if is_free else -1))
            return

    def _state(self, report: BrokerReport, group: int, view: GroupView) -> AgentState:
        others = report.isr - {self._node}
        is_alone = view.state.isr == (self._node,)  # it can have promised nothing to another leader
        return AgentState(
            boottime_s(),
            self._lease,
            self._lease_sent_s if self._lease else NEVER_S,
            self._view_s,
            NEVER_S if is_alone else self._free_s,
            min((self._promises.get((group, name), NEVER_S) for name in others), default=NEVER_S),
            self._no_leader_s.get(group, NEVER_S),
            self._doubted[group],
        )

    def _obey(self, steps: Sequence[GroupAction]) -> list[bool]:
        """Whether the node has done each."""
        try:
            done = self._door.obey(steps, boottime_s())
        except NodeAway as away:
            self._note_away(away)
            return [False] * len(steps)
        self._log_outcomes(steps, done)
        return done

    def _log_outcomes(self, actions: Sequence[GroupAction], done: Sequence[bool]) -> None:
        for (group, action), is_done in zip(actions, done, strict=True):
            if not is_done:
                log.warning("the node has refused %s in group %d", action, group)
            elif not isinstance(action, d.SetLease):
                log.info("done in group %d: %s", group, action)

    def _change_roles(self, actions: list[GroupAction], view: ClusterView) -> None:
        """In another thread: the more streams there are, the longer it takes, and leases must be given meanwhile."""
        known = [
            (group, action)
            for group, action in actions
            if not isinstance(action, d.FollowLeader | d.Observe) or action.leader in view.addresses
        ]
        if self._changing.is_busy or not known:
            return

        starts = self._door.starts

        def done(value: list[bool] | Exception) -> None:
            self._changed = frozenset()
            if isinstance(value, Exception):
                log.warning("the node has not answered yet, and is asked again: %s", value)
            elif self._door.starts == starts:  # or else the node may have been started again
                self._door.roles_changed(known, value, boottime_s())
                self._log_outcomes(known, value)

        self._changed = frozenset(group for group, _ in known)
        self._changing.begin(lambda: self._door.change_roles(known, view.addresses), done)

    def _ask_promises(self, wishes: list[PromiseWish], groups: int) -> None:
        wishes = [wish for wish in wishes if wish.addresses]
        sent_s = boottime_s()
        if self._asking.is_busy or sent_s - self._asking.sent_s < PROMISE_EVERY_S or not wishes:
            return

        def done(value: list[set[str]] | Exception) -> None:
            for wish, names in () if isinstance(value, Exception) else zip(wishes, value, strict=True):
                for name in names:
                    self._promises[wish.group, name] = sent_s + self._timing.promise_hold_s

        self._asking.begin(lambda: self._promising.promises(wishes, self._timing.promise_s, groups), done)

    def _write(self, writes: list[GroupWrite], view: ClusterView) -> None:
        """The next view shows the outcome."""
        if not writes:
            return

        def done(value: list[bool] | Exception) -> None:
            for place, write in enumerate(writes):
                outcome = value if isinstance(value, Exception) else value[place]
                if isinstance(write.action, d.WriteState | d.Resign):
                    self._note_doubt(write.group, write.action, outcome)
                log.info("%s in group %d: %s", "done" if outcome is True else f"failed ({outcome})", *write[:2])
            self._view_s, self._written_s = NEVER_S, boottime_s()

        lease = self._lease
        self._writing.begin(lambda: self._writes.do(view, writes, lease), done)

    def _note_doubt(self, group: int, action: d.WriteState | d.Resign, outcome: bool | Exception) -> None:
        if outcome is True:
            self._doubted[group] = frozenset()
        elif isinstance(outcome, Exception):
            self._doubted[group] |= frozenset(action.new.isr)


def _role_text(view: ClusterView, reports: Mapping[int, BrokerReport]) -> str:
    if len(view.groups) == 1:
        report, group = reports[0], view.groups[0]
        return f"{report.role.value} in term {report.term}; leader {group.leader}, in sync {group.state.isr}"
    led = [group for group, report in reports.items() if report.role is BrokerRole.LEADER]
    followed = [group for group, report in reports.items() if report.role is BrokerRole.FOLLOWER]
    text = f"leads groups {led}, follows in groups {followed}"
    observed = [group for group, report in reports.items() if report.role is BrokerRole.OBSERVER]
    return f"{text}, observes groups {observed}" if observed else text
