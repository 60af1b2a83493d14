"""What a node does next in a group: a pure function of its view of etcd, its broker's report and the time.

The agent runs it a few times a second and does the actions in order, until one fails. The simulator in tests/cluster
runs the same code. Two rules keep messages that were acknowledged as replicated:

- A leader's broker waits for at least the nodes that etcd has as in-sync replicas. So a node is added to the broker's
  set first, and to etcd's once it has everything; it is removed from etcd's first.
- Only a node of etcd's set is elected, by a transaction that fails if the set or the term has changed. From its
  promotion on it confirms nothing to the former leader, which can therefore acknowledge nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from tailrace.cluster.view import NEVER_S, AgentState, BrokerReport, BrokerRole, ClusterTiming, GroupState, GroupView

SUCCESSOR_RANKS: Final = 5
"""By so many places others stand behind a successor who can take the lead at once."""


@dataclass(frozen=True, slots=True)
class SetLease:
    """Broker: append and acknowledge in `term` until `until_s` of the monotonic clock."""

    term: int
    until_s: float


@dataclass(frozen=True, slots=True)
class SetIsr:
    """Broker: acknowledge as replicated only what all of these have."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class TakeLead:
    """Broker: be the master, in this term."""

    term: int


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """Broker: follow `leader`, and take part in no term before this one."""

    leader: str
    term: int


@dataclass(frozen=True, slots=True)
class Observe:
    """Broker: follow `leader`, of this term, for the clients of this node only. Its copy counts for nothing.

    on_demand: copy only streams that are read here.
    """

    leader: str
    term: int
    on_demand: bool = False


@dataclass(frozen=True, slots=True)
class StepDown:
    """Broker: take and acknowledge nothing more."""


@dataclass(frozen=True, slots=True)
class Elect:
    """etcd: if `seen` is still the state, and the leader key is gone or of that term: this node leads in `new`."""

    seen: GroupState
    new: GroupState


@dataclass(frozen=True, slots=True)
class Reclaim:
    """etcd: if `seen` is still the state: the leader key of its term goes with this node's present lease."""

    seen: GroupState


@dataclass(frozen=True, slots=True)
class Resign:
    """etcd: if this node leads in its term: remove the leader key, and replace `seen`, with the next leader first."""

    seen: GroupState
    new: GroupState


@dataclass(frozen=True, slots=True)
class WriteState:
    """etcd: replace `seen` by `new`, if this node leads in its term and it is still there."""

    seen: GroupState
    new: GroupState


@dataclass(frozen=True, slots=True)
class Suspect:
    """etcd: this node has no contact with the leader of this term."""

    term: int


@dataclass(frozen=True, slots=True)
class Trust:
    """etcd: this node has contact again."""

    term: int


@dataclass(frozen=True, slots=True)
class AskPromises:
    """Other nodes: promise the leader of this term to lead in no later one for a while."""

    term: int
    nodes: frozenset[str]


BrokerAction: TypeAlias = SetLease | SetIsr | TakeLead | FollowLeader | Observe | StepDown
EtcdAction: TypeAlias = Elect | Reclaim | Resign | WriteState | Suspect | Trust
Action: TypeAlias = BrokerAction | EtcdAction | AskPromises


def decide(me: str, view: GroupView, report: BrokerReport, agent: AgentState, timing: ClusterTiming) -> list[Action]:
    """The actions of node `me`, in order."""
    is_leader = report.role is BrokerRole.LEADER
    if report.term > view.state.term:  # the view is older than the broker's term
        return []
    if is_leader and report.term == view.state.term:
        return list(_lead(me, view, report, agent, timing))
    if is_leader and not _leads(me, view, agent):
        return [StepDown()]
    return [] if view.paused else list(_stand_by(me, view, report, agent, timing))


# --- a leader -------------------------------------------------------------------------------------------------------


def _lead(me: str, view: GroupView, report: BrokerReport, agent: AgentState, timing: ClusterTiming) -> Iterator[Action]:
    missing = frozenset(view.state.isr) - report.isr
    if missing:
        yield SetIsr(report.isr | missing)
    until_s = agent.lease_sent_s + timing.hold_s if _leads(me, view, agent) else NEVER_S
    if until_s - agent.now_s < timing.hold_s / 3:  # etcd does not answer: the other in-sync replicas may
        yield AskPromises(report.term, report.isr - {me})
        until_s = max(until_s, agent.promised_s)
    if until_s > agent.now_s:
        yield SetLease(report.term, until_s)
    if not _is_fresh(agent, timing):
        return
    if not _leads(me, view, agent):
        if (view.leader is None and me in view.state.isr) or (view.leader and view.leader[:2] == (me, report.term)):
            yield Reclaim(view.state)
    elif not view.paused:
        yield from _care_for_replicas(me, view, report, agent, timing)


def _leads(me: str, view: GroupView, agent: AgentState) -> bool:
    return view.leader == (me, view.state.term, agent.lease)


def _is_fresh(agent: AgentState, timing: ClusterTiming) -> bool:
    """Whether to go by the view. Keys that are written without a lease would stay when this node dies."""
    return agent.lease != 0 and agent.now_s - agent.view_s < timing.silence_s


def _care_for_replicas(
    me: str, view: GroupView, report: BrokerReport, agent: AgentState, timing: ClusterTiming
) -> Iterator[Action]:
    """One change at a time: drop nodes that are behind, admit those that have caught up, then move to the target."""
    state = view.state
    if agent.doubted:  # once this is written, a write of before that is still under way fails
        yield WriteState(state, state)
        return
    lost = [name for name in state.isr if name != me and name not in report.in_step]
    if lost:
        kept = tuple([name for name in state.isr if name not in lost])
        if len(kept) >= timing.min_isr or not view.live.intersection(lost):  # else one of them can take over
            yield WriteState(state, state._replace(isr=kept))
        return
    joining = [name for name in state.replicas if name not in state.isr and name in report.in_step]
    wanted = frozenset((*state.isr, *joining))
    if report.isr != wanted:
        yield SetIsr(wanted)
        return
    settled = tuple([name for name in joining if name in report.settled])
    if settled:
        yield WriteState(state, state._replace(isr=(*state.isr, *settled)))
    elif view.successor != me and view.successor in state.isr and view.successor in view.ready:
        yield StepDown()
        yield _resignation(state, view.successor)
    else:
        yield from _move(me, view)


def _resignation(state: GroupState, successor: str) -> Resign:
    others = (name for name in state.replicas if name != successor)
    return Resign(state, state._replace(replicas=(successor, *others)))


def _move(me: str, view: GroupView) -> Iterator[Action]:
    """Copies first, then leadership, then the copies that are not wanted any more."""
    state, target = view.state, view.target or view.state.replicas
    absent = tuple([name for name in target if name not in state.replicas])
    if absent:
        kept = tuple([name for name in state.replicas if name in target])
        leaving = tuple([name for name in state.replicas if name not in target])
        yield WriteState(state, state._replace(replicas=(*kept, *absent, *leaving)))
    elif not set(target) <= set(state.isr) or (me not in target and not view.ready.intersection(target)):
        return
    elif me not in target:
        yield StepDown()
        yield _resignation(state, next(name for name in target if name in view.ready))
    elif set(state.replicas) != set(target):
        isr = tuple([name for name in state.isr if name in target])
        yield WriteState(state, state._replace(isr=isr, replicas=tuple(target)))


# --- all others -----------------------------------------------------------------------------------------------------


def _stand_by(
    me: str, view: GroupView, report: BrokerReport, agent: AgentState, timing: ClusterTiming
) -> Iterator[Action]:
    state = view.state
    if not _is_fresh(agent, timing):
        return
    if me not in state.replicas:
        yield from _observe(view, report)
        return
    free_s = max(agent.free_s, report.promised_s)
    if _leads(me, view, agent):
        if agent.now_s >= free_s:  # it may have promised after it was elected
            yield from _take_office(me, view, agent, timing)
        return
    if view.leader is not None and view.leader.term == state.term and view.leader.node != me:
        yield from _follow(me, view, view.leader.node, report, timing)
    is_vacant = view.leader is None or _all_suspect(me, view)
    may_lead = me in state.isr and not report.is_partial
    if is_vacant and may_lead and agent.now_s >= max(free_s, _turn_s(me, view, agent, timing)):
        yield Elect(state, _next_state(me, view, timing))


def _next_state(me: str, view: GroupView, timing: ClusterTiming) -> GroupState:
    """The next term. Nodes that are away need not be waited for in it, if there are enough others."""
    state, former = view.state, view.leader.node if view.leader else ""
    present = tuple([name for name in state.isr if name == me or (name != former and name in view.live)])
    enough = len(present) >= min(timing.min_isr, len(state.isr))
    return state._replace(term=state.term + 1, isr=present if enough else state.isr)


def _take_office(me: str, view: GroupView, agent: AgentState, timing: ClusterTiming) -> Iterator[Action]:
    """The broker is promoted before it has a lease, and gets its in-sync replicas before both."""
    yield SetIsr(frozenset(view.state.isr))
    yield TakeLead(view.state.term)
    if agent.lease_sent_s + timing.hold_s > agent.now_s:
        yield SetLease(view.state.term, agent.lease_sent_s + timing.hold_s)


def _observe(view: GroupView, report: BrokerReport) -> Iterator[Action]:
    """Others are the replicas of the group: they were in sync before this node was taken out of them."""
    leader, term = view.leader, view.state.term
    if not view.is_spread or leader is None or leader.term != term:
        return
    if report.role is not BrokerRole.OBSERVER or report.upstream != leader.node or report.term < term:
        yield Observe(leader.node, term, view.on_demand)


def _follow(me: str, view: GroupView, leader: str, report: BrokerReport, timing: ClusterTiming) -> Iterator[Action]:
    term = view.state.term
    if report.role is not BrokerRole.FOLLOWER or report.upstream != leader or report.term < term:
        yield FollowLeader(leader, term)
    elif report.silent_s >= timing.silence_s and me not in view.suspects:
        yield Suspect(term)
    elif report.silent_s < timing.silence_s and me in view.suspects:
        yield Trust(term)


def _all_suspect(me: str, view: GroupView) -> bool:
    """Whether all in-sync replicas that live, this one too, have lost contact with the leader."""
    leader = view.leader.node if view.leader else ""
    return me in view.suspects and all(
        name in view.suspects for name in view.state.isr if name != leader and name in view.live
    )


def _turn_s(me: str, view: GroupView, agent: AgentState, timing: ClusterTiming) -> float:
    """When this node may be a candidate: the one with the most messages first, then by preference."""
    if view.leader is not None:
        order = sorted(view.suspects, key=lambda name: (-view.suspects[name], _preference(name, view)))
        return agent.now_s if order[:1] == [me] else agent.now_s + timing.rank_delay_s
    return agent.no_leader_s + timing.rank_delay_s * _preference(me, view)


def _preference(name: str, view: GroupView) -> int:
    if name == view.successor:
        return 0
    wanted = view.target or view.state.replicas
    waits_for = SUCCESSOR_RANKS if view.successor in view.ready else 0
    return (wanted.index(name) if name in wanted else len(wanted)) + waits_for
