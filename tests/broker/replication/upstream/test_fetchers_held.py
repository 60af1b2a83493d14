"""What a slave reports of its copies, and when."""

from __future__ import annotations

import pytest

from tailrace.broker.replication.downstream.replica_acks import ReplicaPosition
from tailrace.broker.replication.upstream.fetchers import RETRY_MAX_S, FetchState
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tests.broker.replication.slaving import S, Slave


def test_what_is_held_is_reported_once(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.reports()
    slave.chunk(10, 12)
    slave.chunk(12, 20)
    assert slave.reports() == [r.Held(((1, slave.id, 20, slave.log.synced_seq),))]
    assert slave.reports() == []
    slave.log.sync()
    slave.copies.note_held(S)
    assert slave.reports() == [r.Held(((1, slave.id, 20, 20),))]


def test_a_copy_that_is_behind_reports_now_and_then(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of every chunk would wake an upstream that has gigabytes to send."""
    slave.be(FetchState.FOLLOWING)
    slave.reports()
    slave.chunk(10, 12)
    assert slave.reports() == []
    slave.tick()
    assert slave.copies.unreported
    assert [held.rows[0][2] for held in slave.reports()] == [12]
    frames = slave.original.frames(12, 16)
    monkeypatch.setattr("tailrace.broker.replication.upstream.fetchers.REPORT_BYTES", len(frames))
    slave.chunk(12, 15)
    assert slave.reports() == []
    slave.chunk(15, 16)
    assert [held.rows[0][2] for held in slave.reports()] == [16], "that much has come"
    slave.chunk(16, 17)
    assert slave.reports() == []
    slave.chunk(17, 20)
    assert [held.rows[0][2] for held in slave.reports()] == [20], "it is where the upstream's end was"
    slave.tick()
    assert slave.reports() == []


def test_a_copy_that_no_publish_waits_for_reports_now_and_then(slave: Slave, monkeypatch: pytest.MonkeyPatch) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.followed("news", awaited=False)
    assert [held.rows[0][2] for held in slave.reports()] == [10], "of what it begins with it is told at once"
    slave.original.append(b"20")
    slave.chunk(10, 20)
    slave.log.sync()
    slave.copies.note_held(S)
    assert slave.reports() == []
    slave.tick()
    assert slave.reports() == [r.Held(((1, slave.id, 20, 20),))]
    monkeypatch.setattr("tailrace.broker.replication.upstream.fetchers.UNAWAITED_REPORT_BYTES", 1)
    slave.chunk(20, 21)
    assert [held.rows[0][2] for held in slave.reports()] == [21], "that much has come"


def test_a_copy_reports_at_once_when_publishes_begin_to_wait(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.followed("news", awaited=False)
    slave.reports()
    slave.chunk(10, 19)
    slave.followed("news")
    assert [held.rows[0][2] for held in slave.reports()] == [19]
    slave.chunk(19, 20)
    assert [held.rows[0][2] for held in slave.reports()] == [20]
    slave.copies.went_down("gone")
    slave.followed("news", awaited=False, number=1)
    assert slave.reports() == []


@pytest.mark.parametrize("end", ["down", "removed"])
def test_what_was_to_be_reported_later_is_not_when_nobody_follows(slave: Slave, end: str) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.reports()
    slave.chunk(10, 12)
    if end == "down":
        slave.copies.went_down("gone")
    else:
        slave.copies.remove(S)
    slave.copies.tick(slave.now_s)
    assert not slave.copies.unreported


def test_a_following_begins_with_what_is_held(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    assert slave.reports() == [r.Held(((1, slave.id, 10, slave.log.synced_seq),))]


def test_what_nodes_below_hold_goes_up_and_what_they_hold_no_more(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.reports()
    below = slave.owner.replicas.holders(S).nodes
    below.update({"node-x": ReplicaPosition(8, 5, (0, 1, 7)), "node-y": ReplicaPosition(9, 0, (0, 1, 7))})
    slave.copies.note_held(S)
    assert slave.reports() == [r.Held(((1, "node-x", 8, 5), (1, "node-y", 9, 0)))]
    del below["node-x"]
    slave.copies.note_held(S)
    assert slave.reports() == [r.Held((), ((1, "node-x"),))], "nothing else has changed"
    below["node-y"] = ReplicaPosition(9, 9, (0, 1, 8))
    slave.copies.note_held(S)
    assert slave.reports() == [r.Held(((1, "node-y", 9, 9),))]
    below["node-y"] = ReplicaPosition(9, 9, (0, 1, 9))
    slave.copies.note_held(S)
    assert slave.reports() == [], "only the way is another one"


def test_the_next_following_is_sent_everything_again(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.owner.replicas.holders(S).nodes["node-x"] = ReplicaPosition(8, 5, (0, 1, 7))
    mine = (slave.id, 10, slave.log.synced_seq)
    assert slave.reports() == [r.Held(((1, *mine), (1, "node-x", 8, 5)))]
    slave.copies.ended(m.Ended(1, 10), slave.now_s)
    slave.tick(RETRY_MAX_S)
    slave.followed("following", 10)
    assert slave.reports() == [r.Held(((2, *mine), (2, "node-x", 8, 5)))]


@pytest.mark.parametrize("state", [state for state in FetchState if state is not FetchState.FOLLOWING])
def test_who_does_not_follow_reports_nothing(slave: Slave, state: FetchState) -> None:
    slave.be(state)
    slave.copies.note_held(S)
    slave.copies.note_held(b"unknown")
    assert slave.reports() == []


def test_what_was_to_be_reported_when_a_following_ended_is_not(slave: Slave) -> None:
    """The upstream would take the rows for those of the next FOLLOW, which it has not answered yet."""
    slave.be(FetchState.FOLLOWING)
    slave.chunk(10, 12)
    slave.copies.ended(m.Ended(1, 12), slave.now_s)
    slave.tick(RETRY_MAX_S)
    assert slave.copy.state is FetchState.ASKED and slave.reports() == []
    slave.followed("following", 12)
    assert slave.reports() == [r.Held(((2, slave.id, 12, slave.log.synced_seq),))]


def test_a_stream_that_was_closed_is_reported_as_it_was(slave: Slave) -> None:
    slave.be(FetchState.FOLLOWING)
    slave.chunk(10, 12)
    slave.owner.close_logs()
    slave.copies.note_held(S)
    assert [row[2] for held in slave.reports() for row in held.rows] == [12]
