"""An agent as the simulator has it: it runs `tailrace.cluster.decide` for each group of its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from tailrace.cluster import decide as d
from tailrace.cluster.view import NEVER_S, AgentState, ClusterTiming, GroupView, signs_of
from tests.cluster.simulated_broker import Defects, SimulatedBroker
from tests.cluster.simulated_etcd import Etcd

TICK_S = 0.25
REQUEST_TIMEOUT_S = 1.0


class Surroundings(Protocol):
    """What the world does for an agent."""

    def call_etcd(
        self, node: str, request: Callable[[Etcd], object], done: Callable[[object], None]
    ) -> None: ...  # `done` gets None after REQUEST_TIMEOUT_S
    def ask_promise(
        self, node: str, other: str, group: int, term: int, length_s: float, done: Callable[[], None]
    ) -> None: ...
    def note_obeyed(self, node: str, group: int, action: d.BrokerAction) -> None: ...


@dataclass(slots=True)
class GroupMemory:
    """What an agent remembers of a group."""

    broker: SimulatedBroker
    view: GroupView | None = None
    view_s: float = NEVER_S
    no_leader_s: float = NEVER_S
    free_s: float = NEVER_S
    doubted: frozenset[str] = frozenset()
    busy: bool = False
    asked_s: float = NEVER_S
    promises: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class SimulatedAgent:
    """One per node. `life` changes with each start of it, so that answers to an earlier one are ignored."""

    node: str
    clock: Callable[[], float]
    world: Surroundings
    timing: ClusterTiming
    defects: Defects
    groups: dict[int, GroupMemory]
    life: int = 0
    lease: int = 0
    lease_sent_s: float = NEVER_S
    lease_busy: bool = False
    view_busy: bool = False
    failsafe: bool = True
    signs: dict[int, object] = field(default_factory=dict)
    stirred_s: float = NEVER_S

    def start(self) -> None:
        """The node must not be a candidate before all promises of its former life are over."""
        self.life += 1
        self.lease, self.lease_sent_s, self.lease_busy, self.view_busy = 0, NEVER_S, False, False
        free_s = self.clock() + self.timing.promise_s
        for group, memory in self.groups.items():
            everybody = frozenset(memory.view.state.replicas) if memory.view else frozenset()
            first = memory.view is None
            self.groups[group] = GroupMemory(memory.broker, free_s=NEVER_S if first else free_s, doubted=everybody)

    def tick(self) -> None:
        now_s = self.clock()
        if not self.lease_busy and (not self.lease or now_s - self.lease_sent_s > self.timing.ttl_s / 4):
            self._renew(now_s)
        if not self.view_busy:
            self._look(now_s)
        for group in self.groups:
            self.decide(group)

    def _renew(self, sent_s: float) -> None:
        self.lease_busy = True
        lease, life = self.lease, self.life
        ready = all(
            sent_s >= max(memory.free_s, memory.broker.promised_s) for memory in self.groups.values()
        )  # one word for all groups: a node's agent has one member key

        def done(value: object) -> None:
            if life != self.life:
                return
            self.lease_busy = False
            if isinstance(value, tuple):
                self.lease, self.lease_sent_s = value[0], sent_s
            elif value is False:
                self.lease = 0

        self.world.call_etcd(self.node, lambda etcd: _renewed(etcd, lease, self.node, ready=ready), done)

    def _look(self, sent_s: float) -> None:
        self.view_busy = True
        life, wanted = self.life, [group for group, memory in self.groups.items() if not memory.busy]
        is_calm = self.clock() - self.stirred_s >= self.timing.calm_s

        def done(value: object) -> None:
            if life != self.life:
                return
            self.view_busy = False
            signs = {**self.signs, **signs_of(value)} if isinstance(value, dict) else self.signs
            if signs != self.signs:
                self.signs, self.stirred_s = signs, self.clock()
            for group, view in value.items() if isinstance(value, dict) else ():
                memory = self.groups[group]
                if memory.busy or sent_s < memory.view_s:
                    continue
                memory.view, memory.view_s = view, sent_s
                if view.leader is not None:
                    memory.no_leader_s = NEVER_S
                elif memory.no_leader_s == NEVER_S:
                    memory.no_leader_s = self.clock()

        self.world.call_etcd(self.node, lambda etcd: etcd.views(wanted, is_calm=is_calm), done)

    def decide(self, group: int) -> None:
        memory = self.groups[group]
        if memory.view is None or memory.busy:
            return
        others = memory.broker.isr - {self.node}
        promised_s = min((memory.promises.get(name, NEVER_S) for name in others), default=NEVER_S)
        state = AgentState(
            self.clock(), self.lease, self.lease_sent_s if self.lease else NEVER_S, memory.view_s, memory.free_s,
            promised_s, memory.no_leader_s, memory.doubted,
        )  # fmt: skip
        view = self._misread(memory.view)
        for action in d.decide(self.node, view, memory.broker.report(), state, self.timing):
            if isinstance(action, d.Elect | d.WriteState):
                action = replace(action, seen=memory.view.state)
            if not self._do(group, memory, action):
                return

    def _misread(self, view: GroupView) -> GroupView:
        """The planted defects of decisions: any replica is a candidate, all chosen nodes count as in sync, or a node
        goes by the target when it drops its copy.
        """
        state = view.state
        if self.defects.isr_ignored and self.node in state.replicas and self.node not in state.isr:
            return view._replace(state=state._replace(isr=(*state.isr, self.node)))
        if self.defects.moved_unsynced and set(view.target) <= set(state.replicas):
            return view._replace(state=state._replace(isr=tuple(dict.fromkeys((*state.isr, *view.target)))))
        leads = view.leader is not None and view.leader.node == self.node
        if self.defects.dropped_in_sync and self.node not in (view.target or state.replicas) and not leads:
            return view._replace(
                state=state._replace(replicas=tuple(name for name in state.replicas if name != self.node))
            )
        return view

    def _do(self, group: int, memory: GroupMemory, action: d.Action) -> bool:
        """Whether the next action may be done at once."""
        match action:
            case d.AskPromises(term, nodes):
                self._ask(group, memory, term, nodes)
                return True
            case d.SetLease() | d.SetIsr() | d.TakeLead() | d.FollowLeader() | d.Observe() | d.StepDown():
                done = memory.broker.obey(action)
                if done:
                    self.world.note_obeyed(self.node, group, action)
                return done
            case _:
                self._transact(group, memory, action)
                return False

    def _transact(self, group: int, memory: GroupMemory, action: d.EtcdAction) -> None:
        memory.busy = True
        life, lease, messages = self.life, self.lease, len(memory.broker.log)

        def done(value: object) -> None:
            if life != self.life:
                return
            memory.busy, memory.view_s = False, NEVER_S
            if isinstance(action, d.WriteState):
                if value is True:
                    memory.doubted = frozenset()
                elif value is None and not self.defects.no_doubt:
                    memory.doubted |= frozenset(action.new.isr)

        self.world.call_etcd(self.node, lambda etcd: etcd.transact(group, self.node, lease, action, messages), done)

    # --- promises ---------------------------------------------------------------------------------------------------

    def _ask(self, group: int, memory: GroupMemory, term: int, nodes: frozenset[str]) -> None:
        now_s = self.clock()
        if not self.failsafe or now_s - memory.asked_s < TICK_S * 2:
            return
        memory.asked_s = now_s
        life = self.life
        for name in sorted(nodes):

            def done(name: str = name) -> None:
                if life == self.life:
                    memory.promises[name] = max(memory.promises.get(name, NEVER_S), now_s + self.timing.promise_hold_s)

            self.world.ask_promise(self.node, name, group, term, self.timing.promise_s, done)


def _renewed(etcd: Etcd, lease: int, node: str, *, ready: bool) -> object:
    """The id of the lease, or False if it is over."""
    kept = lease or etcd.grant(node)
    if not etcd.keep_alive(kept):
        return False
    (etcd.ready.add if ready else etcd.ready.discard)(kept)
    return (kept,)
