"""The figures on replication in /metrics, gathered a slice a tick."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.process.metrics import MAX_NODES, OTHER, SlaveMeasures
from tailrace.broker.replication.downstream.replica_acks import ReplicaPosition
from tailrace.broker.replication.status import metrics as survey_module
from tailrace.protocol import replication as r
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.world import World, world

B = "node-b"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(survey_module, "SLICE_S", 60.0)  # a round in one tick, on a busy machine too
    with world(tmp_path) as node:
        yield node


def survey(node: World) -> None:
    """A whole round, and the beginning of the next."""
    node.workers[0].survey.tick()
    node.workers[0].survey.tick()


def test_slaves_are_added_up_by_node(node: World) -> None:
    peer = BinaryPeer(node, node_id=B)
    for number, name in enumerate(("s", "t"), 1):
        peer.ask(r.Follow(number, name.encode(), 0, 1, "", None, FROM_START))
        node.fill(name, [b"a", b"b", b"c"])
    peer.ask(r.Held(((1, B, 3, 3), (2, B, 1, 0), (2, "below", 3, 3))))
    survey(node)
    slaves = node.workers[0].metrics.slaves
    lagging = slaves[B]
    assert (lagging.streams, lagging.caught_up, lagging.lag_messages, lagging.lag_bytes) == (2, 1, 2, 2 * 33)
    assert lagging.lag_s > 0
    assert slaves["below"] == SlaveMeasures(1, 1, 0, 0, 0.0)
    peer.ask(r.Held(((2, B, 3, 3),)))
    survey(node)
    assert node.workers[0].metrics.slaves[B] == SlaveMeasures(2, 2, 0, 0, 0.0)


def test_a_stream_that_is_not_open_is_not_opened_for_this(node: World) -> None:
    node.fill("s", [b"a", b"b"])
    owner = node.workers[0].owner
    holders = owner.replicas.holders(b"s")
    holders.end_seq = 2
    holders.record(B, ReplicaPosition(1, 1, (0, 1, 1)))
    owner.close_logs()
    survey(node)
    assert node.workers[0].metrics.slaves[B] == SlaveMeasures(1, 0, 1, 0, 0.0) and not owner.catalog.open


def test_nodes_are_bounded(node: World) -> None:
    holders = node.workers[0].owner.replicas.holders(b"s")
    for number in range(MAX_NODES + 5):
        holders.record(f"n{number}", ReplicaPosition(0, 0, (0, 1, 1)))
    survey(node)
    slaves = node.workers[0].metrics.slaves
    assert len(slaves) == MAX_NODES + 1 and slaves[OTHER].streams == 5


def test_a_round_takes_as_many_ticks_as_it_needs(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    survey(node)
    monkeypatch.setattr(survey_module, "SLICE_S", -1.0)
    for number in range(3):
        node.workers[0].owner.replicas.holders(b"s%d" % number).record(B, ReplicaPosition(0, 0, (0, 1, 1)))
    survey(node)
    assert node.workers[0].metrics.slaves == {}
    for _ in range(5):
        node.workers[0].survey.tick()
    assert node.workers[0].metrics.slaves[B].streams == 3


def test_copies_and_links_are_counted(node: World) -> None:
    assert node.ask(node.connect(), "slave 127.0.0.1 1 s 0", "slave 127.0.0.1 1 t 0")
    found = node.workers[0].uplinks.copy_of(b"s")
    assert found is not None
    found[1].end_seq = 7
    survey(node)
    metrics = node.workers[0].metrics
    assert metrics.copies == {"down": 2} and metrics.copies_lag_messages == 7
    assert (metrics.upstream_links, metrics.upstream_links_up) == ({"127.0.0.1:1": 1}, {"127.0.0.1:1": 0})
