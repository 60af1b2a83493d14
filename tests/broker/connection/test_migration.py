"""Connections move to the worker that owns their streams, unless there is a reason to stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.migration import FEW_SUBSCRIBERS, PATIENCE_S, SKEW_CONNECTIONS, STAY_S
from tailrace.broker.process.scoreboard import STATE_DRAINING
from tailrace.broker.routing.batch import Pending
from tailrace.broker.routing.router import WINDOW_MESSAGES, WINDOW_MESSAGES_MIN
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.world import Peer, World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=3) as node:
        yield node


def slot_of(node: World, peer: Peer) -> int:
    return node.worker_of(node.client_of(peer)).slot


def publish(node: World, peer: Peer, *names: str) -> None:
    """A window's worth of messages, and more, over these streams."""
    for _ in range(2 * WINDOW_MESSAGES):
        peer.send(*(f"pub {name} |x" for name in names))
    node.settle()


def test_a_publisher_moves_to_its_stream(node: World) -> None:
    quiet, loud = node.connect(0), node.connect(0)
    loud.send("ack on")
    for peer, name in ((quiet, node.name(1)), (loud, node.name(2))):
        publish(node, peer, name)
    assert (slot_of(node, quiet), slot_of(node, loud)) == (1, 2)
    assert loud.lines == ["ok ack on", *(f"ok pub {node.name(2)} {seq}" for seq in range(2 * WINDOW_MESSAGES))]
    assert node.workers[0].metrics.handed_over == 2 and not node.workers[0].movers.waiting


def test_one_that_publishes_to_a_single_worker_moves_early(node: World) -> None:
    peer, other = node.connect(0), node.connect(0)
    for number in range(WINDOW_MESSAGES_MIN):
        peer.send(f"pub {node.name(1)} |x")
        other.send(f"pub {node.name(1 if number else 0)} |x")
        node.settle()
        assert slot_of(node, peer) == (1 if number == WINDOW_MESSAGES_MIN - 1 else 0)
    assert slot_of(node, other) == 0, "one of its messages was for another worker"
    publish(node, other, node.name(1))
    assert slot_of(node, other) == 1


def test_few_publishers_move_at_a_time(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are considered again with their next messages."""
    monkeypatch.setattr("tailrace.broker.connection.migration.MOVING_MAX", 2)
    peers = [node.connect(0) for _ in range(5)]
    for peer in peers:
        peer.send(*[f"pub {node.name(1)} |x"] * WINDOW_MESSAGES_MIN)
    node.settle()
    moved = [slot_of(node, peer) for peer in peers].count(1)
    assert 0 < moved <= 2
    for _ in range(3):
        for peer in peers:
            peer.send(f"pub {node.name(1)} |x")
        node.settle()
    assert [slot_of(node, peer) for peer in peers] == [1] * 5


def test_one_that_publishes_everywhere_stays(node: World) -> None:
    peer = node.connect(0)
    publish(node, peer, node.name(0), node.name(1), node.name(2))
    assert slot_of(node, peer) == 0


def test_a_subscriber_moves_to_its_stream(node: World) -> None:
    peer = node.connect(0)
    node.fill(node.name(2), [b"1", b"2"])
    node.ask(peer, f"sub {node.name(2)} 0 wait")
    assert slot_of(node, peer) == 2
    node.fill(node.name(2), [b"3"])
    assert [payload for _, _, payload in peer.messages()][-1:] == ["3"]


def test_many_subscribers_of_one_stream_stay_spread(node: World) -> None:
    peers = [node.connect(0) for _ in range(3 * FEW_SUBSCRIBERS)]
    for peer in peers:
        peer.send(f"sub {node.name(1)} 0 wait")
    node.settle()
    assert [slot_of(node, peer) for peer in peers].count(1) == FEW_SUBSCRIBERS


def test_who_subscribes_elsewhere_stays(node: World) -> None:
    peer = node.connect(0)
    node.ask(peer, f"sub {node.name(0)} 0 wait", f"sub {node.name(1)} 0 wait")
    publish(node, peer, node.name(1))
    assert slot_of(node, peer) == 0


def test_nobody_moves_back_and_forth(node: World) -> None:
    peer = node.connect(0)
    publish(node, peer, node.name(1))
    publish(node, peer, node.name(2))
    assert slot_of(node, peer) == 1
    node.client_of(peer).moved_s -= STAY_S
    publish(node, peer, node.name(2))
    assert slot_of(node, peer) == 2


def test_no_worker_is_crowded_by_this(node: World) -> None:
    peer = node.connect(0)
    node.board.slot(1).connections = 2 + SKEW_CONNECTIONS + 1
    publish(node, peer, node.name(1))
    assert slot_of(node, peer) == 0


def test_nobody_moves_to_a_worker_that_is_not_ready(node: World) -> None:
    peer = node.connect(0)
    node.board.slot(1).state = STATE_DRAINING
    publish(node, peer, node.name(1))
    assert slot_of(node, peer) == 0


def test_one_whose_answers_are_awaited_for_long_is_read_again(node: World) -> None:
    peer = node.connect(0)
    worker, client = node.workers[0], node.client_of(peer)
    pending = Pending(client.answers_ready)
    client.pend(pending)
    worker.movers.consider(client, 1)
    assert client.paused == Pause.MOVE and len(worker.movers.waiting) == 1
    worker.movers.step()
    assert len(worker.movers.waiting) == 1
    worker.services.now_s += PATIENCE_S + 1
    worker.movers.step()
    assert not client.paused and not worker.movers.waiting
    pending.settle(b"")
    assert node.ask(peer, "ping") == ["ok pong"] and slot_of(node, peer) == 0


def test_one_that_is_gone_meanwhile_is_forgotten(node: World) -> None:
    peer = node.connect(0)
    client = node.client_of(peer)
    node.workers[0].movers.consider(client, 1)
    client.close("reset")
    node.workers[0].movers.step()
    assert not node.workers[0].movers.waiting


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, affinity=False) as node:
        peer = node.connect(0)
        node.ask(peer, f"sub {node.name(1)} 0 wait")
        publish(node, peer, node.name(1))
        assert slot_of(node, peer) == 0


def greeting(number: int, workers: int) -> m.Hello:
    return m.Hello(1, (r.FEATURE,), "test", node="node-b", address=":5050", worker=(number, workers))


def node_slot(node: World, peer: BinaryPeer) -> int:
    return node.worker_of(node.binary_client_of(peer.peer)).slot


@pytest.mark.parametrize(("number", "workers", "slot"), [(2, 3, 2), (0, 3, 0), (4, 6, 1), (2, 4, 0), (1, 2, 0)])
def test_a_node_that_follows_moves_to_the_worker_of_its_streams(
    node: World, number: int, workers: int, slot: int
) -> None:
    peer = BinaryPeer(node, hello=False, node_id="node-b")
    (welcome,) = peer.ask(greeting(number, workers))
    assert isinstance(welcome, m.Welcome) and node_slot(node, peer) == slot
    assert [len(worker.followers.nodes) for worker in node.workers] == [int(each == slot) for each in range(3)]
    name = node.name(2)
    node.fill(name, [b"a"])
    (answer,) = peer.ask(r.Follow(1, name.encode(), 0, 1, "", None, FROM_START))
    assert isinstance(answer, r.Followed) and peer.got[1] == [(0, b"a")]
    peer.ask(r.Held(((1, "node-b", 1, 1),)))
    assert node.workers[2].owner.replicas.streams[name.encode()].nodes["node-b"].next_seq == 1


def test_a_node_that_has_followed_already_stays_and_is_read_on(node: World) -> None:
    name = node.name(2)
    node.fill(name, [b"a"])
    peer = BinaryPeer(node, hello=False, node_id="node-b")
    answers = peer.ask(greeting(2, 3), r.Follow(1, name.encode(), 0, 1, "", None, FROM_START))
    assert [type(each) for each in answers] == [m.Welcome, r.Followed] and node_slot(node, peer) == 0
    assert peer.got[1] == [(0, b"a")] and peer.ask(m.Ping()) == [m.Pong()]


def test_a_node_stays_where_connections_are_not_to_move(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, affinity=False) as node:
        peer = BinaryPeer(node, hello=False, node_id="node-b")
        peer.ask(greeting(1, 2))
        assert node_slot(node, peer) == 0


def test_a_client_that_is_no_node_has_no_worker(node: World) -> None:
    peer = BinaryPeer(node, hello=False)
    peer.ask(m.Hello(1, (r.FEATURE,), "test", worker=(2, 3)))
    assert node_slot(node, peer) == 0 and not node.workers[0].movers.waiting
