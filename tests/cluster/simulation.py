"""A simulated cluster: brokers, agents with the real decision code, etcd, a network and clocks, from one seed.

The assertions are in `Ledger`. Time is simulated, so a minute of a small cluster takes a fraction of a second.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from tailrace.cluster import decide as d
from tailrace.cluster.placement import PlacedNode, place
from tailrace.cluster.view import NEVER_S, BrokerRole, ClusterTiming, GroupState
from tests.cluster.simulated_agent import REQUEST_TIMEOUT_S, TICK_S, GroupMemory, SimulatedAgent
from tests.cluster.simulated_broker import BEAT_S, Defects, Entry, FollowRequest, Frames, Held, SimulatedBroker
from tests.cluster.simulated_etcd import Etcd, GroupKeys

ETCD = "etcd"
COPIES = 3


class Violation(AssertionError):
    """Something happened that must not."""


@dataclass(slots=True)
class Ledger:
    """Messages of a group that were acknowledged as replicated, and their leaders."""

    acknowledged: dict[int, Entry] = field(default_factory=dict)
    leader: tuple[int, str] = (0, "")  # of the latest term that was begun
    latest_term: int = 0  # in which something was acknowledged
    times_s: list[float] = field(default_factory=list)

    def began(self, term: int, node: str, log: list[Entry]) -> None:
        missing = self.acknowledged.keys() - {number for _, number in log}
        if missing:
            raise Violation(f"{node} leads in term {term} without {len(missing)} acknowledged messages")
        self.leader = max(self.leader, (term, node))

    def acknowledge(self, node: str, entry: Entry, has_lease: bool, leader_log: list[Entry], now_s: float) -> None:
        term, number = entry
        if term < self.latest_term and not has_lease:
            raise Violation(f"{node} acknowledged in term {term} without a lease, after term {self.latest_term} did")
        if term < self.leader[0] and entry not in leader_log:
            raise Violation(f"{node} acknowledged in term {term} what the leader of term {self.leader[0]} has not")
        self.acknowledged[number] = entry
        self.latest_term = max(self.latest_term, term)
        self.times_s.append(now_s)


@dataclass(slots=True)
class SimulatedNode:
    """A machine: its clock, its agent, its brokers (one a group). Work of a paused one waits."""

    name: str
    rate: float
    offset_s: float
    brokers: dict[int, SimulatedBroker] = field(default_factory=dict)
    agent: SimulatedAgent | None = None
    life: int = 0
    alive: bool = True
    paused: set[str] = field(default_factory=set)  # "broker", "agent"
    waiting: list[tuple[str, Callable[[], None]]] = field(default_factory=list)


class World:
    """The event loop, the network and the clients."""

    def __init__(
        self,
        seed: int,
        nodes: int,
        groups: int,
        defects: Defects | None = None,
        *,
        drift: float = 0.01,
        is_spread: bool = False,
    ) -> None:
        """`is_spread`: each group is on COPIES nodes by plan, and nodes join and leave."""
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.is_slow = True  # one message of a hundred takes up to 3 s
        self.defects = defects or Defects()
        self.timing = ClusterTiming(calm_s=1.0) if is_spread else ClusterTiming()
        self.etcd = Etcd(self.timing.ttl_s)
        self.ledgers: dict[int, Ledger] = defaultdict(Ledger)
        self.cuts: set[tuple[str, str]] = set()  # one way
        self.nodes: dict[str, SimulatedNode] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._numbers = count(1)
        self._free_s: dict[tuple[str, str], float] = {}  # when a connection has delivered all that is under way
        self._leaders: dict[int, set[str]] = defaultdict(set)
        for number in range(nodes):
            name = f"n{number}"
            rate = 1 + self.random.uniform(-drift, drift)
            self.nodes[name] = SimulatedNode(name, rate, self.random.uniform(0, 1000))
        placed = place(groups, min(COPIES, nodes), [PlacedNode(name) for name in self.nodes])
        self.etcd.nodes = tuple(self.nodes) if is_spread or (groups > 1 and nodes <= COPIES) else ()
        self.etcd.replicas = COPIES if is_spread else 0
        self.etcd.on_drop = self._check_drop
        for group, names in placed.items():
            self.etcd.groups[group] = GroupKeys(GroupState(0, names, names))
            for name in self.nodes if is_spread else names:
                self._add_broker(self.nodes[name], group)
        for node in self.nodes.values():
            self._start_node(node)
        self.every(0.05, self._expire)

    # --- events -----------------------------------------------------------------------------------------------------

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), act))

    def every(self, period_s: float, act: Callable[[], None]) -> None:
        def again() -> None:
            act()
            self.at(period_s, again)

        self.at(self.random.uniform(0, period_s), again)

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self._events and self._events[0][0] <= end_s:
            self.now_s, _, act = heapq.heappop(self._events)
            self.etcd.now_s = self.now_s
            act()
        self.now_s = end_s

    def _expire(self) -> None:
        self.etcd.expire()

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _clock(self, node: SimulatedNode) -> float:
        return self.now_s * node.rate + node.offset_s

    def _add_broker(self, node: SimulatedNode, group: int) -> None:
        clock = partial(self._clock, node)
        node.brokers[group] = SimulatedBroker(
            node.name, clock, partial(self._send, node, group), partial(self._acknowledge, node, group), self.defects
        )

    def _start_node(self, node: SimulatedNode) -> None:
        memories = {group: GroupMemory(broker) for group, broker in node.brokers.items()}
        node.agent = SimulatedAgent(node.name, partial(self._clock, node), self, self.timing, self.defects, memories)
        node.agent.start()
        self._loop(node, "agent", TICK_S, node.agent.tick)
        self._loop(node, "broker", BEAT_S, partial(self._beat, node))

    def _loop(self, node: SimulatedNode, part: str, period_s: float, act: Callable[[], None]) -> None:
        life = node.life

        def again() -> None:
            if node.alive and node.life == life:
                if part not in node.paused:
                    act()
                self.at(period_s, again)

        self.at(self.random.uniform(0, period_s), again)

    def _beat(self, node: SimulatedNode) -> None:
        for broker in node.brokers.values():
            up = self.nodes.get(broker.upstream)
            if broker.role is BrokerRole.FOLLOWER and up is not None and not up.alive:
                broker.broken = broker.broken or self.connected(node.name, up.name)  # a reset
            broker.beat()

    def _later(self, node: SimulatedNode, part: str, life: int, act: Callable[[], None]) -> None:
        """An event for a node: a dead one never gets it, a paused one when it goes on."""
        if not node.alive or node.life != life:
            return
        if part in node.paused:
            node.waiting.append((part, act))
        else:
            act()

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        node.alive = False
        node.life += 1
        node.waiting, node.paused = [], set()

    def restart(self, name: str) -> None:
        node = self.nodes[name]
        if node.alive or node.agent is None:
            return
        node.alive = True
        for broker in node.brokers.values():
            broker.restart()
        node.agent.start()
        self._loop(node, "agent", TICK_S, node.agent.tick)
        self._loop(node, "broker", BEAT_S, partial(self._beat, node))

    def pause(self, name: str, *parts: str) -> None:
        self.nodes[name].paused.update(parts)

    def resume(self, name: str) -> None:
        node = self.nodes[name]
        node.paused, waiting, node.waiting = set(), node.waiting, []
        for _, act in waiting:
            act()

    def move(self, group: int, names: tuple[str, ...]) -> None:
        """From now on these nodes should hold the group."""
        for name in names:
            node = self.nodes[name]
            if group not in node.brokers:
                self._add_broker(node, group)
                if node.agent is not None:
                    node.agent.groups[group] = GroupMemory(node.brokers[group])
        self.etcd.groups[group].target = names

    def leave(self, name: str) -> None:
        """The node should hold nothing any more."""
        self.etcd.nodes = tuple(each for each in self.etcd.nodes if each != name)

    def join(self, name: str) -> None:
        """A node that has left comes back."""
        self.etcd.nodes = tuple(dict.fromkeys((*self.etcd.nodes, name)))

    # --- network ----------------------------------------------------------------------------------------------------

    def connected(self, one: str, other: str) -> bool:
        return (one, other) not in self.cuts and (other, one) not in self.cuts

    def cut(self, one: str, other: str, both: bool) -> None:
        self.cuts.update({(one, other), (other, one)} if both else {(one, other)})

    def heal(self) -> None:
        self.cuts.clear()

    def _delay_s(self) -> float:
        slow = self.is_slow and self.random.random() < 0.01
        return self.random.uniform(0.1, 3.0) if slow else self.random.uniform(0.0005, 0.01)

    def _carry(self, one: str, other: str, act: Callable[[], None]) -> None:
        """In order on each connection. A cut loses messages, or holds them until it is healed."""
        if (one, other) in self.cuts:
            if self.random.random() < 0.5:
                self.at(0.5, partial(self._carry, one, other, act))
            return
        arrives_s = max(self._free_s.get((one, other), 0.0), self.now_s + self._delay_s())
        self._free_s[one, other] = arrives_s
        self.at(arrives_s - self.now_s, act)

    def _send(self, node: SimulatedNode, group: int, to: str, message: Frames | Held | FollowRequest) -> None:
        other = self.nodes[to]
        broker = other.brokers.get(group)
        if broker is not None:
            receive = partial(broker.receive, node.name, message)
            life = other.life
            self._carry(node.name, to, lambda: self._later(other, "broker", life, receive))

    def call_etcd(self, node: str, request: Callable[[Etcd], object], done: Callable[[object], None]) -> None:
        """A request may be carried out although it has no answer in time, and long after that."""
        caller = self.nodes[node]
        life, answered = caller.life, [False]

        def finish(value: object) -> None:
            if not answered[0]:
                answered[0] = True
                self._later(caller, "agent", life, partial(done, value))

        def serve() -> None:
            if self.etcd.up:
                value = request(self.etcd)
                self._carry(ETCD, node, partial(finish, value))

        self._carry(node, ETCD, serve)
        self.at(REQUEST_TIMEOUT_S, partial(finish, None))

    def ask_promise(
        self, node: str, other: str, group: int, term: int, length_s: float, done: Callable[[], None]
    ) -> None:
        caller, asked = self.nodes[node], self.nodes[other]
        lives = caller.life, asked.life

        def ask() -> None:
            broker = asked.brokers.get(group)
            if broker is not None and broker.promise(term, length_s):
                self._carry(other, node, lambda: self._later(caller, "agent", lives[0], done))

        self._carry(node, other, lambda: self._later(asked, "broker", lives[1], ask))

    # --- clients, and what must hold ----------------------------------------------------------------------------------

    def publish(self) -> None:
        """One message, to one of the nodes that take any in a group."""
        group = self.random.randrange(len(self.etcd.groups))
        takes = [name for name in sorted(self._leaders[group]) if self.nodes[name].alive]
        if takes:
            node = self.nodes[self.random.choice(takes)]
            act = partial(node.brokers[group].publish, next(self._numbers))
            self.at(self._delay_s(), partial(self._later, node, "broker", node.life, act))

    def note_obeyed(self, node: str, group: int, action: d.BrokerAction) -> None:
        broker = self.nodes[node].brokers[group]
        if broker.role is BrokerRole.LEADER:
            self._leaders[group].add(node)
        else:
            self._leaders[group].discard(node)
        if isinstance(action, d.Observe) and node in self.etcd.groups[group].state.isr:
            raise Violation(f"{node} has dropped its copy of group {group}, and is an in-sync replica of it")
        if isinstance(action, d.TakeLead):
            self.ledgers[group].began(broker.term, node, broker.log)
        if isinstance(action, d.SetLease):
            self._check_promises(node, group, broker.term)

    def _check_drop(self, group: int, seen: GroupState, new: GroupState) -> None:
        """A copy is dropped only after all that are to be there have what was acknowledged."""
        acknowledged = self.ledgers[group].acknowledged
        for name in new.replicas:
            missing = acknowledged.keys() - {number for _, number in self.nodes[name].brokers[group].log}
            if missing or name not in seen.isr:
                raise Violation(f"a copy of group {group} is dropped while {name} lacks {len(missing)} messages")

    def _check_promises(self, node: str, group: int, term: int) -> None:
        """A node that leads now has promised that to no leader of an earlier term which relies on it still."""
        for other in self.nodes.values():
            broker = other.brokers.get(group)
            if other.agent is None or broker is None or broker.role is not BrokerRole.LEADER or broker.term >= term:
                continue
            if other.alive and other.agent.groups[group].promises.get(node, NEVER_S) > self._clock(other):
                raise Violation(f"{node} leads in term {term}, against its promise to {other.name} in {broker.term}")

    def _acknowledge(self, node: SimulatedNode, group: int, entry: Entry) -> None:
        leads = self.etcd.led_by.get((group, entry[0])) in self.etcd.leases
        leader = self.ledgers[group].leader[1]
        log = self.nodes[leader].brokers[group].log if leader else []
        self.ledgers[group].acknowledge(node.name, entry, leads, log, self.now_s)

    def require_whole(self) -> None:
        """At the end, when all is healed: every group has a leader that has all and acknowledges."""
        for group, ledger in self.ledgers.items():
            term, name = ledger.leader
            broker = self.nodes[name].brokers[group]
            ledger.began(term, name, broker.log)
            if not ledger.times_s or ledger.times_s[-1] < self.now_s - 5:
                raise Violation(f"group {group}: nothing is acknowledged 15 s after all faults are over")
