"""What a node knows when it decides: its last view of etcd, and the reports of its own broker and of other agents."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from tailrace.shard.replacing import replaceable

NEVER_S: Final = -1e18
"""A time before all others."""


@replaceable
class GroupState(NamedTuple):
    """The value of `g/GROUP/state`, changed by compare-and-set only.

    isr: the in-sync replicas. Each has every message that was acknowledged as replicated, and only they are elected.
    replicas: the nodes that are in sync or on the way to that; the first one is the preferred leader. Those that are to
    be no replicas any more stand last.
    revision: etcd's `mod_revision` of the key.
    """

    term: int
    isr: tuple[str, ...]
    replicas: tuple[str, ...]
    revision: int = 0


class LeaderKey(NamedTuple):
    """The value of `g/GROUP/leader`, and the lease of its node, with which it goes."""

    node: str
    term: int
    lease: int = 0


class GroupView(NamedTuple):
    """A group of streams in etcd, as of one revision.

    suspects: the nodes that suspect the leader of `state.term`, and how many messages each of them has.
    live: the nodes whose lease lives; ready: those of them that may be candidates, and have not just started.
    target: the nodes that should hold the group; () if that is what `state.replicas` has.
    successor: the node to which the lead is handed over now, by an operator or by plan.
    is_spread: whether some of the nodes are the replicas of each group; the others observe it. on_demand: these copy
    only the streams that are read there.
    """

    state: GroupState
    leader: LeaderKey | None = None
    suspects: Mapping[str, int] = {}
    live: frozenset[str] = frozenset()
    target: tuple[str, ...] = ()
    paused: bool = False
    successor: str = ""
    ready: frozenset[str] = frozenset()
    is_spread: bool = False
    on_demand: bool = False


class BrokerRole(Enum):
    """This node's broker in a group. A fenced one acknowledges nothing; an observer copies for its own clients only."""

    LEADER = "leader"
    FOLLOWER = "follower"
    FENCED = "fenced"
    OBSERVER = "observer"


class BrokerReport(NamedTuple):
    """The broker of this node, as asked a moment ago.

    term: the latest term of the group that the broker knows; a leader's own.
    isr: the nodes that it waits for before it acknowledges a message as replicated, itself included.
    settled: those of `isr` that have everything that was logged when they came into it.
    in_step: the followers that were caught up within the last LAG_MAX_S; all, if the term is not older than that.
    silent_s: for how long a follower has had no sign of its leader; a broken link counts as `inf`.
    promised_s: until then the broker has promised the leader of its term that this node leads in no later one.
    is_partial: it copies only streams that are read there, or has done so and lacks messages from that time.
    """

    role: BrokerRole
    term: int = 0
    isr: frozenset[str] = frozenset()
    settled: frozenset[str] = frozenset()
    in_step: frozenset[str] = frozenset()
    upstream: str = ""
    silent_s: float = 0.0
    promised_s: float = NEVER_S
    is_partial: bool = False


class AgentState(NamedTuple):
    """What the agent remembers. Times are of its monotonic clock, which goes on while the machine is suspended.

    lease: the id of the node's lease in etcd.
    lease_sent_s: when the last keep-alive that etcd has answered was sent.
    view_s: when the last read of the view that etcd has answered was sent.
    free_s: before this time the node must not be a candidate: it has just started, and may have promised that before.
    promised_s: until then every other in-sync replica has promised not to be a candidate. Counted from when they were
    asked; NEVER_S if one of them has not.
    no_leader_s: since when the view has had no leader.
    doubted: nodes that may be in etcd's set of in-sync replicas, or come into it: the outcome of a write is not known.
    """

    now_s: float
    lease: int = 0
    lease_sent_s: float = NEVER_S
    view_s: float = NEVER_S
    free_s: float = NEVER_S
    promised_s: float = NEVER_S
    no_leader_s: float = NEVER_S
    doubted: frozenset[str] = frozenset()


def signs_of(groups: Mapping[int, GroupView]) -> dict[int, object]:
    """What stays as it is while nodes neither fail nor come back."""
    return {group: (view.live, view.state.isr, dict(view.suspects)) for group, view in groups.items()}


class AgentFigures(NamedTuple):
    """Figures that an agent serves for Prometheus, as `tailrace_agent_NAME`."""

    leader: bool
    has_leader: bool
    groups: int
    groups_led: int
    in_sync_replicas: int
    in_sync_minimum: int
    replicas: int
    out_of_sync_replicas: int
    term: int
    node_answers: bool
    etcd_age_seconds: float
    paused: bool


class ClusterTiming(NamedTuple):
    """Settings of the cluster, the same on all nodes. `margin_s` covers clocks whose rates differ by 1 %, and more.

    promise_s: for how long a node promises to be no candidate. A leader that dies meanwhile is replaced after it.
    calm_s: leads change by plan if nothing has changed for this time: until then a node that has died seems to live.
    """

    ttl_s: float = 4.0
    margin_s: float = 1.0
    promise_s: float = 2.4
    silence_s: float = 1.5
    calm_s: float = 5.0
    rank_delay_s: float = 0.2
    min_isr: int = 2

    @property
    def promise_hold_s(self) -> float:
        """For how long after it was asked for a leader relies on a promise."""
        return self.promise_s * self.hold_s / self.ttl_s

    @property
    def hold_s(self) -> float:
        """For how long after a keep-alive was sent a leader serves."""
        return self.ttl_s - self.margin_s
