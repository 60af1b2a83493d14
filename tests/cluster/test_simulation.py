"""Simulated clusters under faults keep acknowledged messages, and a planted defect is found."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.cluster import schedule
from tests.cluster.simulated_broker import Defects
from tests.cluster.simulation import COPIES, Violation, World
from tests.thorough import examples

SEEDS = examples(60)
SPREAD_SEEDS = examples(2)
DEFECTS_SEEDS = 500
RECOVERY_SEEDS = 12


def test_three_nodes_keep_what_they_acknowledge() -> None:
    acknowledged = 0
    for seed in range(1, SEEDS + 1):
        ledgers = schedule.run(seed).ledgers
        acknowledged += sum(len(ledger.acknowledged) for ledger in ledgers.values())
    assert acknowledged > 100 * SEEDS, "they hardly ran"


def test_leads_of_groups_are_spread_again_after_faults() -> None:
    world = schedule.run(1, groups=3)
    led = Counter(keys.leader.node for keys in world.etcd.groups.values() if keys.leader is not None)
    assert sorted(led.values()) == [1, 1, 1]


@pytest.mark.thorough
def test_more_nodes_and_groups() -> None:
    for seed in range(1, 3):
        schedule.run(seed, nodes=7, groups=4)


@pytest.mark.parametrize(
    "name",
    [
        "no_start_fence",
        "no_fence_at_promotion",
        "isr_ignored",
        "isr_ignored_in_acks",
        "no_lease_at_ack",
        "promise_ignored",
    ],
)
def test_a_planted_defect_is_found(name: str) -> None:
    assert schedule.first_found(Defects(**{name: True}), DEFECTS_SEEDS) is not None


def test_groups_on_some_of_the_nodes_keep_what_they_acknowledge() -> None:
    for seed in range(1, SPREAD_SEEDS + 1):
        schedule.run(seed, nodes=5, groups=3, is_spread=True)


@pytest.mark.parametrize(
    ("name", "seed", "found"),
    [
        ("moved_unsynced", 16, r"is dropped while n\d lacks [1-9]"),
        ("dropped_in_sync", 1, "is an in-sync replica of it"),
    ],
)
def test_a_planted_defect_of_moves_is_found(name: str, seed: int, found: str) -> None:
    with pytest.raises(Violation, match=found):
        schedule.run(seed, 5, 3, Defects(**{name: True}), is_spread=True)


def test_a_join_and_a_leave_move_the_share_of_the_node_and_nobody_waits_for_long() -> None:
    world = World(1, 5, 8, is_spread=True)
    world.is_slow = False
    world.every(0.01, world.publish)
    world.run(20)
    holders = {group: set(keys.state.replicas) for group, keys in world.etcd.groups.items()}
    world.leave("n4")
    world.run(40)
    after = {group: set(keys.state.replicas) for group, keys in world.etcd.groups.items()}
    assert all(holders[group] - after[group] <= {"n4"} and len(after[group]) == COPIES for group in after)
    world.join("n4")
    world.run(40)
    joined = Counter(name for keys in world.etcd.groups.values() for name in keys.state.replicas)
    assert sum(joined.values()) == 8 * COPIES and 4 <= joined["n4"] <= 5, "its share is 4.8"
    world.require_whole()
    for ledger in world.ledgers.values():
        assert max(after - before for before, after in pairwise(ledger.times_s[50:])) < 2


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "limit_s"), [("kill", 3.0), ("pause", 8.0), ("cut", 8.0)])
def test_a_group_without_its_leader_is_served_again(kind: str, limit_s: float) -> None:
    assert max(schedule.outage_s(seed, kind) for seed in range(1, RECOVERY_SEEDS + 1)) < limit_s


def test_a_group_moves_to_other_nodes() -> None:
    world = World(1, 6, 1)
    world.is_slow = False
    world.every(0.05, world.publish)
    world.run(5)
    there = tuple(sorted(world.nodes.keys() - set(world.etcd.groups[0].state.replicas)))
    world.move(0, there)
    world.run(15)
    state = world.etcd.groups[0].state
    assert set(state.replicas) == set(state.isr) == set(there)
    world.require_whole()
    assert max(after - before for before, after in pairwise(world.ledgers[0].times_s)) < 2


def test_the_lead_goes_to_a_node_that_has_just_started_once_and_not_before_it_can_take_it() -> None:
    world = World(2, 3, 1)
    world.is_slow = False
    world.every(0.05, world.publish)
    world.run(8)
    keys = world.etcd.groups[0]
    term, leader = keys.state.term, keys.leader
    assert leader is not None
    chosen = next(name for name in keys.state.isr if name != leader.node)
    world.kill(chosen)
    world.run(0.1)
    world.restart(chosen)
    keys.successor = chosen
    world.run(8)
    assert keys.leader is not None and (keys.leader.node, keys.state.term) == (chosen, term + 1)
    times_s = world.ledgers[0].times_s
    assert max(after - before for before, after in pairwise(times_s)) < 2


def test_a_violation_is_one() -> None:
    world = World(1, 3, 1)
    world.every(0.05, world.publish)
    world.run(5)
    ledger = world.ledgers[0]
    with pytest.raises(Violation, match="without"):
        ledger.began(ledger.leader[0] + 1, "n0", [])
    with pytest.raises(Violation, match="without a lease"):
        ledger.acknowledge("n0", (0, 1), False, [], 5.0)
