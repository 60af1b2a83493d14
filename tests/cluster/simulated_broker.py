"""A broker as the simulator has it: one group's log on one node, copied from a leader, with a lease and a fence.

Its log is a list of (term, number of the message). A list is shared with messages under way, so it only grows; what
cuts it makes another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tailrace.cluster import decide as d
from tailrace.cluster.view import NEVER_S, BrokerReport, BrokerRole

LAG_MAX_S = 1.5
BEAT_S = 0.4
IDLE_S = 1.0
"""After which an observer has dropped its copy."""

Entry: TypeAlias = tuple[int, int]


class Frames(NamedTuple):
    """From a leader: the first `length` entries of its log."""

    term: int
    leader: str
    log: list[Entry]
    length: int


class Held(NamedTuple):
    """From a follower: it has this many entries of the leader's log of that term."""

    term: int
    length: int


class FollowRequest(NamedTuple):
    """From a node that wants to follow, and knows of this term."""

    term: int


class Defects(NamedTuple):
    """Faults that are planted to see whether the simulator finds them."""

    no_start_fence: bool = False
    no_fence_at_promotion: bool = False  # a new leader goes on confirming messages of the former one
    no_term_fence: bool = False  # terms are not compared
    isr_ignored: bool = False  # in elections
    isr_ignored_in_acks: bool = False
    no_lease_at_ack: bool = False
    no_settling: bool = False  # a replica comes into the set before it has everything
    promise_ignored: bool = False
    no_doubt: bool = False  # a write without an answer counts as failed
    moved_unsynced: bool = False  # drops a replica before its replacement is in sync
    dropped_in_sync: bool = False  # a node drops its copy while it is still an in-sync replica


@dataclass(slots=True)
class SimulatedBroker:
    """`send(to, message)` and `acknowledge(entry)` belong to the world; `clock` is the node's own."""

    node: str
    clock: Callable[[], float]
    send: Callable[[str, Frames | Held | FollowRequest], None]
    acknowledge: Callable[[Entry], None]
    defects: Defects
    min_isr: int = 2
    log: list[Entry] = field(default_factory=list)
    role: BrokerRole = BrokerRole.FENCED
    term: int = 0
    upstream: str = ""
    isr: frozenset[str] = frozenset()
    lease_until_s: float = NEVER_S
    sign_s: float = NEVER_S
    began_s: float = NEVER_S
    promised_s: float = NEVER_S
    on_demand: bool = False  # it observes, or did so when it was started again
    is_partial: bool = False  # it did, and has not had everything since
    idle_s: float = NEVER_S  # since when it observes
    broken: bool = False  # the connection to the leader was reset
    held: dict[str, int] = field(default_factory=dict)
    caught_up_s: dict[str, float] = field(default_factory=dict)
    joining: dict[str, int] = field(default_factory=dict)
    waits: list[tuple[int, Entry]] = field(default_factory=list)

    # --- commands of the agent --------------------------------------------------------------------------------------

    def obey(self, action: d.BrokerAction) -> bool:
        match action:
            case d.SetLease(term, until_s):
                if self.role is not BrokerRole.LEADER or term != self.term:
                    return False
                if self.clock() < self.promised_s and not self.defects.promise_ignored:
                    return False
                self.lease_until_s = until_s
            case d.SetIsr(nodes):
                self.joining = {name: self.joining.get(name, len(self.log)) for name in nodes - {self.node}
                                if name in self.joining or name not in self.isr}  # fmt: skip
                self.isr = nodes
                self.answer_due()
            case d.TakeLead(term):
                return self._promote(term)
            case d.FollowLeader(leader, term):
                return self._follow(leader, term)
            case d.Observe(leader, term, _):
                return self._observe(leader, term)
            case d.StepDown():
                self._give_up()
        return True

    def _promote(self, term: int) -> bool:
        if term < self.term and not self.defects.no_term_fence:
            return False
        if self.role is not BrokerRole.LEADER:
            self.waits = []
        self.role, self.term, self.upstream = BrokerRole.LEADER, term, ""
        self.began_s = self.clock()
        self.held, self.caught_up_s = {}, {}
        return True

    def _follow(self, leader: str, term: int) -> bool:
        if term < self.term and not self.defects.no_term_fence:
            return False
        self._give_up()
        self.role, self.upstream, self.term = BrokerRole.FOLLOWER, leader, max(term, self.term)
        self.is_partial, self.on_demand = self.is_partial or self.on_demand, False
        self.sign_s, self.broken = self.clock(), False
        self.send(leader, FollowRequest(self.term))
        return True

    def _observe(self, leader: str, term: int) -> bool:
        if term < self.term and not self.defects.no_term_fence:
            return False
        self._give_up()
        self.role, self.upstream, self.term = BrokerRole.OBSERVER, leader, max(term, self.term)
        self.on_demand, self.idle_s = True, self.clock()
        return True

    def _give_up(self) -> None:
        self.role, self.upstream, self.waits = BrokerRole.FENCED, "", []
        self.lease_until_s = NEVER_S

    def restart(self) -> None:
        """The process was killed: the log and the term are in its files."""
        fenced = not self.defects.no_start_fence or self.role is not BrokerRole.LEADER
        if fenced:
            self._give_up()
            self.isr = frozenset()
        else:
            self.lease_until_s, self.isr = math.inf, frozenset({self.node})
        self.held, self.caught_up_s, self.joining, self.waits = {}, {}, {}, []
        self.promised_s = NEVER_S

    def promise(self, term: int, length_s: float) -> bool:
        """To the leader of this term: this node leads in no later one."""
        if self.role is not BrokerRole.FOLLOWER or self.term != term:
            return False
        self.promised_s = max(self.promised_s, self.clock() + length_s)
        return True

    # --- publishes --------------------------------------------------------------------------------------------------

    @property
    def serves(self) -> bool:
        return self.role is BrokerRole.LEADER and self.clock() < self.lease_until_s

    def publish(self, number: int) -> None:
        if not self.serves:
            return
        entry = (self.term, number)
        self.log.append(entry)
        self.waits.append((len(self.log), entry))
        self.spread()
        self.answer_due()

    def spread(self) -> None:
        for name in self.held:
            self.send(name, Frames(self.term, self.node, self.log, len(self.log)))

    def answer_due(self) -> None:
        if self.role is not BrokerRole.LEADER:
            return
        if not self.serves and not self.defects.no_lease_at_ack:
            self.waits = []
            return
        enough = len(self.isr) >= self.min_isr or self.defects.no_start_fence
        others = sorted(self.held.get(name, 0) for name in self.isr - {self.node})
        if self.defects.isr_ignored_in_acks:
            others = others[-1:]
        end = min(others, default=len(self.log)) if enough else 0
        while self.waits and self.waits[0][0] <= end:
            self.acknowledge(self.waits.pop(0)[1])

    # --- messages of other brokers ----------------------------------------------------------------------------------

    def receive(self, sender: str, message: Frames | Held | FollowRequest) -> None:
        match message:
            case FollowRequest(term):
                self._on_follow(sender, term)
            case Held(term, length):
                self._on_held(sender, term, length)
            case Frames():
                self._on_frames(sender, message)

    def _on_follow(self, sender: str, term: int) -> None:
        if self.role is not BrokerRole.LEADER:
            return
        if term > self.term and not self.defects.no_term_fence:
            self._give_up()
            return
        self.held.setdefault(sender, 0)
        self.send(sender, Frames(self.term, self.node, self.log, len(self.log)))

    def _on_held(self, sender: str, term: int, length: int) -> None:
        fenced = term != self.term and not self.defects.no_term_fence
        if self.role is not BrokerRole.LEADER or fenced or sender not in self.held:
            return
        self.held[sender] = max(self.held[sender], length)
        if length >= len(self.log):
            self.caught_up_s[sender] = self.clock()
        if length >= self.joining.get(sender, 0):
            self.joining.pop(sender, None)
        self.answer_due()

    def _on_frames(self, sender: str, frames: Frames) -> None:
        if self.defects.no_fence_at_promotion and self.role is BrokerRole.LEADER:
            self.send(sender, Held(frames.term, frames.length))
        fenced = frames.term < self.term or self.role is not BrokerRole.FOLLOWER or self.upstream != sender
        if fenced and not (self.defects.no_term_fence and self.role is BrokerRole.FOLLOWER):
            return
        self.term = max(frames.term, self.term)
        self.sign_s, self.broken = self.clock(), False
        common = min(len(self.log), frames.length)
        while common and self.log[common - 1] != frames.log[common - 1]:
            common -= 1
        if common < len(self.log):
            if frames.length == common:  # an earlier message of the same leader
                self.send(sender, Held(frames.term, common))
                return
            self.log = self.log[:common]
        self.log.extend(frames.log[common : frames.length])
        self.is_partial = False
        self.send(sender, Held(frames.term, len(self.log)))

    def beat(self) -> None:
        if self.on_demand and self.clock() - self.idle_s > IDLE_S:
            self.log = []
        if self.role is BrokerRole.LEADER:
            self.spread()
            self.answer_due()
        elif self.role is BrokerRole.FOLLOWER and self.clock() - self.sign_s > BEAT_S:
            self.send(self.upstream, FollowRequest(self.term))

    def report(self) -> BrokerReport:
        now_s = self.clock()
        if self.role is BrokerRole.LEADER and now_s - self.began_s < LAG_MAX_S:
            in_step = frozenset(self.held) | self.isr
        else:
            in_step = frozenset(name for name, at_s in self.caught_up_s.items() if now_s - at_s < LAG_MAX_S)
        settled = self.isr if self.defects.no_settling else self.isr - set(self.joining)
        silent_s = math.inf if self.broken else now_s - self.sign_s
        promised_s = NEVER_S if self.defects.promise_ignored else self.promised_s
        is_partial = self.on_demand or self.is_partial
        own = self.role, self.term, self.isr, settled, in_step, self.upstream, silent_s, promised_s, is_partial
        return BrokerReport(*own)
