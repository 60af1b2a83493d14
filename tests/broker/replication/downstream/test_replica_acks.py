"""Who holds how much of a stream, and which publishes may be answered."""

from __future__ import annotations

import random

import pytest

from tailrace.broker.replication.downstream import replica_acks as holders_module
from tailrace.broker.replication.downstream.replica_acks import ReplicaAcks, ReplicaPosition, ReplicaWait
from tailrace.broker.routing.batch import StreamBatch

A, B = (0, 1, 1), (1, 2, 1)


def told(**nodes: int) -> ReplicaAcks:
    """Acknowledgements with the next seq reported by each node, all by one way."""
    made = ReplicaAcks(1)
    for node, next_seq in nodes.items():
        assert made.record(node, ReplicaPosition(next_seq, 0, A))
    return made


def wait(end_seq: int, replicas: int, deadline_s: float = 10.0) -> ReplicaWait:
    return ReplicaWait(end_seq, end_seq - 1, deadline_s, 10.0, StreamBatch(b"s", 0, None, replicas))


def ends(waits: list[ReplicaWait]) -> list[int]:
    return [each.end_seq for each in waits]


# --- reports of nodes -------------------------------------------------------------------------------------------------


def test_a_message_is_held_by_those_whose_next_seq_is_behind_it() -> None:
    holders = told(b=5, c=7, d=0)
    assert [holders.count_holding(seq) for seq in (0, 1, 5, 6, 7, 8)] == [3, 2, 2, 1, 1, 0]
    assert [holders.held_seq(replicas) for replicas in (1, 2, 3, 4)] == [7, 5, 0, 0]


def test_the_same_word_is_no_news() -> None:
    holders = told(b=5)
    assert not holders.record("b", ReplicaPosition(5, 0, A))
    assert holders.record("b", ReplicaPosition(5, 5, A)) and holders.record("b", ReplicaPosition(4, 4, A))
    assert holders.count_holding(5) == 0


def test_a_node_counts_once_and_its_old_way_takes_nothing_back() -> None:
    holders = told(b=5)
    holders.record("b", ReplicaPosition(6, 0, B))
    assert holders.held_seq(1) == 6 and holders.held_seq(2) == 0
    assert holders.withdraw("b", A) == [] and holders.withdraw("", A) == []
    assert holders.withdraw("", B[:2]) == ["b"] and not holders.nodes


def test_a_node_that_its_former_upstream_reports_late_and_then_misses_holds_what_its_present_one_reported() -> None:
    holders = told(b=5)
    holders.record("b", ReplicaPosition(7, 6, B))
    holders.record("b", ReplicaPosition(6, 0, A))
    assert holders.held_seq(1) == 6
    assert holders.withdraw("b", A) == ["b"] and holders.nodes["b"] == ReplicaPosition(7, 6, B)
    assert holders.withdraw("", B[:1]) == ["b"] and not holders.nodes


def test_what_a_node_has_lost_before_it_came_another_way_is_held_by_none() -> None:
    holders = told(b=9)
    holders.record("b", ReplicaPosition(5, 4, B))
    assert holders.withdraw("b", B) == ["b"] and holders.nodes["b"] == ReplicaPosition(5, 0, A)


def test_other_ways_are_bounded_and_go_with_the_line() -> None:
    holders = ReplicaAcks(1)
    ways = [(0, 1, number) for number in range(holders_module.WAYS_MAX + 2)]
    for way in ways:
        holders.record("b", ReplicaPosition(5, 0, way))
    for way in ways[:0:-1]:
        assert holders.nodes["b"].via == way
        assert holders.withdraw("", way) == ["b"]
    assert not holders.nodes, "the oldest one was forgotten"
    for way in ways[:2]:
        holders.record("b", ReplicaPosition(5, 0, way))
    holders.cut(2)
    holders.record("b", ReplicaPosition(1, 0, ways[2]))
    assert holders.withdraw("", ways[2]) == ["b"] and not holders.nodes


def test_one_node_is_withdrawn_or_all_of_a_way() -> None:
    holders = told(b=5, c=6)
    assert holders.withdraw("c", A) == ["c"] and list(holders.nodes) == ["b"]
    holders.record("d", ReplicaPosition(1, 1, (0, 1, 2)))
    assert holders.withdraw("", A) == ["b"] and list(holders.nodes) == ["d"]


def test_nodes_are_bounded() -> None:
    holders = ReplicaAcks(1)
    for number in range(holders_module.NODES_MAX):
        assert holders.record(f"n{number}", ReplicaPosition(1, 1, A))
    assert not holders.record("one more", ReplicaPosition(1, 1, A))
    assert holders.record("n0", ReplicaPosition(2, 2, A)) and len(holders.nodes) == holders_module.NODES_MAX


def test_the_nodes_that_hold_most_are_known() -> None:
    """A publish is answered as if all 1,000 nodes were counted, in any order of their reports."""
    positions = random.Random(7).sample(range(1, 10_000), 1_000)
    holders = ReplicaAcks(1)
    for number, next_seq in enumerate(positions):
        holders.record(f"n{number}", ReplicaPosition(next_seq, 0, A))
    latest = sorted(positions, reverse=True)
    assert [holders.held_seq(replicas) for replicas in (1, 100, 255)] == [latest[0], latest[99], latest[254]]


def test_an_in_sync_replica_is_known_beside_any_number_of_others() -> None:
    holders, isr = ReplicaAcks(1), frozenset({"b", "c"})
    holders.record("b", ReplicaPosition(1, 0, A), isr)
    for number in range(holders_module.NODES_MAX):
        holders.record(f"n{number}", ReplicaPosition(9, 0, A), isr)
    assert holders.record("c", ReplicaPosition(5, 0, B), isr) and len(holders.nodes) == holders_module.NODES_MAX
    assert holders.acknowledged_seq(1, isr) == 1
    holders.record("b", ReplicaPosition(6, 0, A), isr)
    assert holders.acknowledged_seq(1, isr) == 5


def test_a_node_that_made_room_is_known_by_no_earlier_way_when_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holders_module, "NODES_MAX", 1)
    holders = ReplicaAcks(1)
    holders.record("b", ReplicaPosition(3, 0, A))
    holders.record("b", ReplicaPosition(2, 0, B))
    assert holders.record("x", ReplicaPosition(9, 0, A)) and holders.record("b", ReplicaPosition(10, 0, B))
    assert holders.withdraw("b", B) == ["b"] and not holders.nodes


def test_after_a_cut_nobody_is_known_to_hold_anything() -> None:
    holders = told(b=5)
    holders.cut(2)
    assert (holders.line, holders.held_seq(1)) == (2, 0)


# --- who waits --------------------------------------------------------------------------------------------------------


def test_a_batch_waits_for_as_many_nodes_as_it_asked_for() -> None:
    holders = told(b=0, c=0)
    for each in (wait(3, 1), wait(5, 2), wait(7, 1)):
        holders.wait(each)
    assert holders.waiting == 3 and holders.take_due(None) == []
    holders.record("b", ReplicaPosition(7, 0, A))
    assert ends(holders.take_due(None)) == [3, 7]
    holders.record("c", ReplicaPosition(4, 0, A))
    assert holders.take_due(None) == []
    holders.record("c", ReplicaPosition(5, 0, A))
    assert ends(holders.take_due(None)) == [5] and holders.waiting == 0


def test_what_waits_too_long_waits_no_more() -> None:
    holders = told(b=0)
    for each in (wait(1, 1, 10.0), wait(2, 2, 10.5), wait(3, 1, 11.0)):
        holders.wait(each)
    assert holders.take_expired(9.9) == []
    assert ends(holders.take_expired(10.5)) == [1, 2]
    assert ends(holders.take_all()) == [3] and holders.waiting == 0


def test_waits_are_bounded() -> None:
    holders = ReplicaAcks(1)
    for seq in range(holders_module.WAITS_MAX):
        assert not holders.full
        holders.wait(wait(seq + 1, 1 + seq % 2))
    assert holders.full
