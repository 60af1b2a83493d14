"""How far each node below this one holds a stream, as reported to its owner, and the publishes that wait for that.

Pure: no clock, no socket. A row is one node's report, which came one way (`Via`: the worker that serves the follower,
and the number of the follower's connection there) and is withdrawn with it. A node that comes back another way counts
once, with its last report; when that is withdrawn, with the last one that came another way. The former upstream of a
node that has moved may report it late and then miss it, and the present one sends only what has changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import NamedTuple, TypeAlias

from tailrace.broker.routing.batch import StreamBatch

NODES_MAX = 256
"""Nodes below this one that are known of one stream: those that hold most, and the in-sync replicas. A publish asks for
at most 255, so that it is answered as if all were known.
"""
WAYS_MAX = 8
"""Other ways by which a node was reported and is not yet missed; the oldest one is forgotten for one more."""
WAITS_MAX = 16_384
"""Batches of one stream that wait for replicas; more are refused before they are logged."""

Via: TypeAlias = tuple[int, int, int]
"""slot and generation of the worker that serves the follower, the number of the connection there"""


class ReplicaPosition(NamedTuple):
    """A node has every message before `next_seq`, and has those before `synced_seq` on its disk."""

    next_seq: int
    synced_seq: int
    via: Via


class ReplicaWait(NamedTuple):
    """A batch whose messages end before `end_seq`, logged here, to be notified when enough nodes hold it."""

    end_seq: int
    first_seq: int
    deadline_s: float
    timeout_s: float
    batch: StreamBatch


class ReplicaAcks:
    """The positions of one stream's copies. `line` separates reports from before its end was last set aside from later
    ones.

    end_seq: the end of the stream here, as far as known without opening it.
    """

    __slots__ = ("_others", "_waits", "end_seq", "line", "nodes")

    def __init__(self, line: int) -> None:
        self.line = line
        self.end_seq = 0
        self.nodes: dict[str, ReplicaPosition] = {}
        self._others: dict[str, dict[Via, ReplicaPosition]] = {}  # earlier reports by other ways, the last one last
        self._waits: dict[int, deque[ReplicaWait]] = {}  # by the number of nodes, each in the order of the log

    # --- reports of nodes ---------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        return len(self.nodes) >= NODES_MAX

    def record(self, node: str, held: ReplicaPosition, isr: Set[str] | None = None) -> bool:
        """Store a node's report; whether it is news. `isr`: in-sync replicas, needed if it `is_full`: they stay."""
        known = self.nodes.get(node)
        if known == held:
            return False
        if known is None and self.is_full and not self._make_room(node, held, isr or frozenset()):
            return False
        if known is not None and known.via != held.via:
            self._keep(node, known, held)
        self.nodes[node] = held
        return True

    def _make_room(self, node: str, held: ReplicaPosition, isr: Set[str]) -> bool:
        """Forget the node that holds least, if this one holds more or must be known."""
        least = min(self.nodes.keys() - isr, key=lambda each: self.nodes[each].next_seq, default=None)
        if least is None or (node not in isr and self.nodes[least].next_seq >= held.next_seq):
            return False
        del self.nodes[least]
        self._others.pop(least, None)
        return True

    def _keep(self, node: str, former: ReplicaPosition, latest: ReplicaPosition) -> None:
        """The node's position came another way than its latest. What comes a new way is later than all before it, so
        that a node which has lost messages is not known to hold them; what comes by an old one may be late.
        """
        others = self._others.setdefault(node, {})
        is_new = others.pop(latest.via, None) is None
        others[former.via] = former
        if len(others) > WAYS_MAX:
            del others[next(iter(others))]
        for way, held in others.items() if is_new else ():
            next_seq, synced_seq = min(held.next_seq, latest.next_seq), min(held.synced_seq, latest.synced_seq)
            others[way] = ReplicaPosition(next_seq, synced_seq, way)

    def withdraw(self, node: str, via: tuple[int, ...]) -> list[str]:
        """Drop reports that came by `via`, or a way that begins so, of one node or of all (""). Returns the nodes that
        are lost, or hold what they were last reported to hold by another way.
        """
        for each in [each for each in self._others if node in ("", each)]:
            left = {way: held for way, held in self._others.pop(each).items() if way[: len(via)] != via}
            if left:
                self._others[each] = left
        lost = [each for each, held in self.nodes.items() if node in ("", each) and held.via[: len(via)] == via]
        for each in lost:
            self._fall_back(each)
        return lost

    def _fall_back(self, node: str) -> None:
        others = self._others.get(node)
        if not others:
            del self.nodes[node]
            return
        self.nodes[node] = others.popitem()[1]
        if not others:
            del self._others[node]

    def cut(self, line: int) -> None:
        """The stream's end was set aside: no node is known to hold anything of its new line."""
        self.line = line
        self.nodes.clear()
        self._others.clear()

    def count_holding(self, end_seq: int) -> int:
        """How many nodes have every message before `end_seq`."""
        return sum(1 for held in self.nodes.values() if held.next_seq >= end_seq)

    def held_seq(self, replicas: int) -> int:
        """Messages before this are held by `replicas` nodes."""
        if len(self.nodes) < replicas:
            return 0
        return sorted((held.next_seq for held in self.nodes.values()), reverse=True)[replicas - 1]

    def acknowledged_seq(self, replicas: int, isr: frozenset[str] | None) -> int:
        """Messages before this are held by `replicas` nodes, and in a cluster by all in-sync replicas."""
        held_seq = self.held_seq(replicas)
        if isr is None:
            return held_seq
        ends = (self.nodes[node].next_seq if node in self.nodes else 0 for node in isr)
        return min(held_seq, min(ends, default=0))

    # --- who waits --------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waits.values()))

    @property
    def full(self) -> bool:
        return self.waiting >= WAITS_MAX

    def wait(self, wait: ReplicaWait) -> None:
        """Batches come in the order of the log, with deadlines that never go back."""
        self._waits.setdefault(wait.batch.replicas, deque()).append(wait)

    def take_due(self, isr: frozenset[str] | None) -> list[ReplicaWait]:
        """Those that enough nodes hold now; they wait no more."""
        due = []
        for replicas, waits in self._waits.items():
            held_seq = self.acknowledged_seq(replicas, isr)
            while waits and waits[0].end_seq <= held_seq:
                due.append(waits.popleft())
        return due

    def take_expired(self, now_s: float) -> list[ReplicaWait]:
        """Those whose deadline is over; they wait no more."""
        expired = []
        for waits in self._waits.values():
            while waits and waits[0].deadline_s <= now_s:
                expired.append(waits.popleft())
        return expired

    def take_all(self) -> list[ReplicaWait]:
        """All of them; they wait no more."""
        return self.take_expired(float("inf"))
