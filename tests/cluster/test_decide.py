"""What a node does next, case by case. tests/cluster/test_simulation.py runs many of them together."""

from __future__ import annotations

import math

from tailrace.cluster import decide as d
from tailrace.cluster.view import (
    NEVER_S,
    AgentState,
    BrokerReport,
    BrokerRole,
    ClusterTiming,
    GroupState,
    GroupView,
    LeaderKey,
)

TIMING = ClusterTiming()
ALL = ("a", "b", "c")
STATE = GroupState(4, ALL, ALL, 17)
VIEW = GroupView(STATE, LeaderKey("a", 4, 1), live=frozenset(ALL), ready=frozenset(ALL))
NOW_S = 100.0
AGENT = AgentState(NOW_S, 1, NOW_S - 0.5, NOW_S - 0.1)
LEADING = BrokerReport(BrokerRole.LEADER, 4, frozenset(ALL), frozenset(ALL), frozenset("bc"))
FOLLOWING = BrokerReport(BrokerRole.FOLLOWER, 4, upstream="a")
FENCED = BrokerReport(BrokerRole.FENCED, 3)
LEASE = d.SetLease(4, AGENT.lease_sent_s + TIMING.hold_s)


def acts(me: str, view: GroupView, report: BrokerReport, agent: AgentState = AGENT) -> list[d.Action]:
    return d.decide(me, view, report, agent, TIMING)


def test_a_leader_with_a_lease_goes_on() -> None:
    assert acts("a", VIEW, LEADING) == [LEASE]


def test_a_leader_without_an_answer_of_etcd_asks_the_others_and_goes_on_with_their_promises() -> None:
    agent = AGENT._replace(lease_sent_s=NOW_S - 2.5, view_s=NOW_S - 3)
    asks = d.AskPromises(4, frozenset("bc"))
    assert acts("a", VIEW, LEADING, agent._replace(lease_sent_s=NOW_S - 1.9)) == [d.SetLease(4, NOW_S + 1.1)]
    assert acts("a", VIEW, LEADING, agent) == [asks, d.SetLease(4, NOW_S + 0.5)]
    assert acts("a", VIEW, LEADING, agent._replace(lease_sent_s=NOW_S - 9)) == [asks]
    promised = agent._replace(lease_sent_s=NOW_S - 9, promised_s=NOW_S + 2)
    assert acts("a", VIEW, LEADING, promised) == [asks, d.SetLease(4, NOW_S + 2)]


def test_a_leader_hands_over_to_the_node_that_an_operator_has_named() -> None:
    named = VIEW._replace(successor="c")
    resignation = d.Resign(STATE, STATE._replace(replicas=("c", "a", "b")))
    assert acts("a", named, LEADING)[1:] == [d.StepDown(), resignation]
    assert acts("a", named._replace(paused=True), LEADING) == [LEASE]
    assert acts("a", named._replace(ready=frozenset("ab")), LEADING) == [LEASE], "it has just started"
    assert acts("a", named._replace(successor="a"), LEADING) == [LEASE]
    behind = named._replace(state=STATE._replace(isr=("a", "b")))
    assert d.StepDown() not in acts("a", behind, LEADING)
    vacant, agent = named._replace(leader=None), AGENT._replace(no_leader_s=NOW_S)
    assert acts("b", vacant, FOLLOWING, agent) == []
    assert isinstance(acts("c", vacant, FOLLOWING, agent)[0], d.Elect)
    assert isinstance(acts("b", vacant, FOLLOWING, agent._replace(no_leader_s=NOW_S - 2))[0], d.Elect)


def test_a_leader_whose_key_is_gone_claims_it_again() -> None:
    agent = AGENT._replace(promised_s=NOW_S + 3)
    gone = VIEW._replace(leader=None)
    assert acts("a", gone, LEADING, agent)[-2:] == [d.SetLease(4, NOW_S + 3), d.Reclaim(STATE)]
    of_former_life = VIEW._replace(leader=LeaderKey("a", 4, 99))
    assert acts("a", of_former_life, LEADING, agent)[-1] == d.Reclaim(STATE)


def test_nothing_is_written_without_a_lease() -> None:
    """It would stay for ever: a key of a leader that is dead, such as that of an agent that was started just now."""
    agent = AGENT._replace(lease=0, lease_sent_s=NEVER_S, promised_s=NOW_S + 3, no_leader_s=NOW_S - 9)
    asks = d.AskPromises(4, frozenset("bc"))
    assert acts("a", VIEW, LEADING, agent) == [asks, d.SetLease(4, NOW_S + 3)]
    assert acts("b", VIEW._replace(leader=None), FOLLOWING, agent) == []
    assert acts("b", VIEW, FOLLOWING._replace(silent_s=math.inf), agent) == []


def test_a_leader_of_an_earlier_term_gives_up() -> None:
    assert acts("a", VIEW._replace(state=STATE._replace(term=5)), LEADING) == [d.StepDown()]


def test_a_broker_that_knows_a_later_term_than_the_view_is_left_alone() -> None:
    assert acts("b", VIEW, FOLLOWING._replace(term=5)) == []


def test_the_broker_waits_for_all_that_etcd_has() -> None:
    assert acts("a", VIEW, LEADING._replace(isr=frozenset("ab")))[0] == d.SetIsr(frozenset(ALL))


def test_a_replica_that_is_behind_leaves_the_set_in_etcd_first() -> None:
    behind = LEADING._replace(in_step=frozenset("b"))
    assert acts("a", VIEW, behind) == [LEASE, d.WriteState(STATE, STATE._replace(isr=("a", "b")))]
    written = VIEW._replace(state=STATE._replace(isr=("a", "b")))
    assert acts("a", written, behind) == [LEASE, d.SetIsr(frozenset("ab"))]


def test_a_leader_that_has_lost_live_replicas_leaves_them_the_lead() -> None:
    alone = LEADING._replace(in_step=frozenset())
    assert acts("a", VIEW, alone) == [LEASE]
    dead = VIEW._replace(live=frozenset("a"))
    assert acts("a", dead, alone) == [LEASE, d.WriteState(STATE, STATE._replace(isr=("a",)))]


def test_a_replica_that_has_caught_up_comes_into_the_set_of_the_broker_first() -> None:
    two = STATE._replace(isr=("a", "b"))
    view = VIEW._replace(state=two)
    leading = LEADING._replace(isr=frozenset("ab"), settled=frozenset("ab"))
    assert acts("a", view, leading) == [LEASE, d.SetIsr(frozenset(ALL))]
    assert acts("a", view, leading._replace(isr=frozenset(ALL))) == [LEASE], "it lacks messages still"
    assert acts("a", view, LEADING) == [LEASE, d.WriteState(two, two._replace(isr=ALL))]


def test_a_write_of_unknown_outcome_is_settled_by_another_one() -> None:
    agent = AGENT._replace(doubted=frozenset("c"))
    two = STATE._replace(isr=("a", "b"))
    assert acts("a", VIEW._replace(state=two), LEADING, agent) == [LEASE, d.WriteState(two, two)]


def test_in_a_pause_a_leader_leads_and_nobody_is_elected() -> None:
    paused = VIEW._replace(paused=True)
    assert acts("a", paused, LEADING._replace(in_step=frozenset())) == [LEASE]
    assert acts("b", paused._replace(leader=None), FOLLOWING) == []


def test_followers_follow_the_leader_of_the_term() -> None:
    assert acts("b", VIEW, FOLLOWING) == []
    assert acts("b", VIEW, FENCED) == [d.FollowLeader("a", 4)]
    assert acts("b", VIEW, FOLLOWING._replace(upstream="c")) == [d.FollowLeader("a", 4)]
    assert acts("b", VIEW, FENCED, AGENT._replace(view_s=NOW_S - 9)) == [], "the view is old"


def test_a_follower_suspects_a_silent_leader_and_trusts_it_again() -> None:
    assert acts("b", VIEW, FOLLOWING._replace(silent_s=math.inf)) == [d.Suspect(4)]
    suspected = VIEW._replace(suspects={"b": 10})
    assert acts("b", suspected, FOLLOWING) == [d.Trust(4)]


def test_if_all_suspect_the_leader_the_one_with_most_is_elected() -> None:
    silent = FOLLOWING._replace(silent_s=3.0)
    suspected = VIEW._replace(suspects={"b": 10, "c": 11})
    elect = d.Elect(STATE, STATE._replace(term=5, isr=("b", "c")))
    assert acts("c", suspected, silent) == [elect]
    assert acts("b", suspected, silent) == []
    assert acts("b", VIEW._replace(suspects={"b": 10}), silent) == [], "c has contact"
    assert acts("b", VIEW._replace(suspects={"b": 10}, live=frozenset("ab")), silent) == [
        d.Elect(STATE, STATE._replace(term=5))
    ], "c is dead too, and b alone would be fewer than must hold a message"


def test_without_a_leader_the_preferred_candidate_goes_first() -> None:
    gone = VIEW._replace(leader=None, live=frozenset("bc"))
    agent = AGENT._replace(no_leader_s=NOW_S - 0.3)
    elect = d.Elect(STATE, STATE._replace(term=5, isr=("b", "c")))
    assert acts("b", gone, FOLLOWING, agent) == [elect]
    assert acts("c", gone, FOLLOWING, agent) == []
    assert acts("c", gone, FOLLOWING, agent._replace(no_leader_s=NOW_S - 0.5)) == [elect]


def test_only_an_in_sync_replica_that_has_promised_nothing_is_a_candidate() -> None:
    gone = VIEW._replace(leader=None)
    agent = AGENT._replace(no_leader_s=NOW_S - 9)
    assert acts("b", gone._replace(state=STATE._replace(isr=("a", "c"))), FOLLOWING, agent) == []
    assert acts("b", gone, FOLLOWING, agent._replace(free_s=NOW_S + 1)) == []


def test_the_elected_one_knows_whom_to_wait_for_before_it_serves() -> None:
    own = VIEW._replace(leader=LeaderKey("b", 4, 1))
    assert acts("b", own, FENCED) == [d.SetIsr(frozenset(ALL)), d.TakeLead(4), LEASE]
    assert acts("b", own, FENCED, AGENT._replace(lease_sent_s=NEVER_S)) == [d.SetIsr(frozenset(ALL)), d.TakeLead(4)]
    assert acts("b", own._replace(leader=LeaderKey("b", 4, 99)), FENCED) == [], "the key of its former life"


def test_a_group_moves_by_copies_then_leadership_then_dropping() -> None:
    there = VIEW._replace(target=("b", "c", "d"))
    four = STATE._replace(replicas=("b", "c", "d", "a"))
    assert acts("a", there, LEADING)[1:] == [d.WriteState(STATE, four)]
    copying = there._replace(state=four)
    assert acts("a", copying, LEADING)[1:] == []
    copied = there._replace(state=four._replace(isr=(*ALL, "d")))
    names = frozenset((*ALL, "d"))
    leading = BrokerReport(BrokerRole.LEADER, 4, names, names, names)
    resignation = d.Resign(copied.state, copied.state._replace(replicas=("b", "c", "d", "a")))
    assert acts("a", copied, leading)[1:] == [d.StepDown(), resignation]
    assert acts("a", copied._replace(ready=frozenset("a")), leading)[1:] == [], "all others have just started"
    led = copied._replace(leader=LeaderKey("b", 4, 1))
    target = GroupState(4, ("b", "c", "d"), ("b", "c", "d"), 17)
    assert acts("b", led, leading)[1:] == [d.WriteState(led.state, target)]


def test_a_node_that_is_no_replica_observes_and_does_nothing_else() -> None:
    spread = VIEW._replace(is_spread=True)
    assert acts("d", VIEW, FENCED) == [], "all nodes are replicas: it is one soon"
    assert acts("d", spread, FENCED) == [d.Observe("a", 4)]
    observing = BrokerReport(BrokerRole.OBSERVER, 4, upstream="a", silent_s=math.inf)
    assert acts("d", spread, observing) == []
    assert acts("d", spread._replace(leader=None), observing) == []
    elected = spread._replace(state=STATE._replace(term=5), leader=LeaderKey("b", 5, 1))
    assert acts("d", elected, observing) == [d.Observe("b", 5)]
    chosen = spread._replace(state=STATE._replace(replicas=(*ALL, "d")))
    assert acts("d", chosen, observing) == [d.FollowLeader("a", 4)]


def test_an_observer_copies_on_demand_if_the_cluster_says_so() -> None:
    assert acts("d", VIEW._replace(is_spread=True, on_demand=True), FENCED) == [d.Observe("a", 4, on_demand=True)]


def test_a_node_with_a_part_of_a_copy_is_no_candidate() -> None:
    """It may be in etcd's in-sync replicas by a decision from before."""
    vacant = VIEW._replace(leader=None)
    for report in (FOLLOWING, FENCED):
        assert any(isinstance(act, d.Elect) for act in acts("b", vacant, report))
        assert not any(isinstance(act, d.Elect) for act in acts("b", vacant, report._replace(is_partial=True)))


def test_a_node_that_has_promised_is_no_candidate_and_takes_no_office() -> None:
    vacant, elected = VIEW._replace(leader=None), VIEW._replace(leader=LeaderKey("b", 4, 1))
    promised = FOLLOWING._replace(promised_s=1e12)
    assert any(isinstance(act, d.Elect) for act in acts("b", vacant, FOLLOWING))
    assert not any(isinstance(act, d.Elect) for act in acts("b", vacant, promised))
    assert any(isinstance(act, d.TakeLead) for act in acts("b", elected, FOLLOWING))
    assert acts("b", elected, promised) == []
