"""Between the connections of followers and the owners of the streams they follow, on two workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.replication.downstream import registry as followers_module
from tailrace.broker.replication.downstream.replica_acks import ReplicaAcks
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tests.broker.binary import FROM_START, BinaryPeer
from tests.broker.world import World, world

B = "node-b"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2) as node:
        yield node


@pytest.fixture(params=["own", "sibling's"])
def name(node: World, request: pytest.FixtureRequest) -> str:
    """A stream of worker 0, which serves the followers, or of its sibling."""
    return node.name(0 if request.param == "own" else 1)


def following(node: World, *names: str) -> BinaryPeer:
    """A follower of streams that have two messages each, which it holds."""
    peer = BinaryPeer(node, node_id=B)
    for number, name in enumerate(names, 1):
        node.fill(name, [b"a", b"b"])
        peer.ask(r.Follow(number, name.encode(), 0, 1, "", None, FROM_START))
        peer.ask(r.Held(((number, B, 2, 1),)))
    return peer


def holders(node: World, name: str) -> ReplicaAcks:
    return node.workers[node.owner_of(name)].owner.replicas.holders(name.encode())


def held(node: World, name: str) -> dict[str, tuple[int, int]]:
    return {node_id: each[:2] for node_id, each in holders(node, name).nodes.items()}


def test_the_owner_hears_the_latest_word_of_a_turn(node: World, name: str) -> None:
    peer = following(node, name)
    changes: list[bytes] = []
    node.workers[node.owner_of(name)].owner.events.on_held = changes.append  # type: ignore[method-assign]
    peer.ask(r.Held(((1, B, 1, 1), (1, B, 2, 2), (1, "below", 1, 1))), r.Held((), ((1, "below"),)))
    assert held(node, name) == {B: (2, 2)}
    assert changes == [name.encode()], "one word of each node, and none of who came and went in one turn"


def test_after_a_cut_those_that_go_on_are_told_again(node: World, name: str) -> None:
    following(node, name)
    worker, line = node.workers[node.owner_of(name)], holders(node, name).line
    worker.owner.events.on_cut(name.encode(), 2)
    assert not held(node, name)
    node.settle()
    assert holders(node, name).line != line and held(node, name) == {B: (2, 1)}


def test_a_new_owner_is_told_everything(node: World) -> None:
    names = [node.name(1, prefix) for prefix in ("s", "t")]
    peer = following(node, *names)
    owner = node.workers[1].owner
    owner.replicas.streams.clear()
    for known in owner.context.path_above, (lambda _name: ("node-a",)):
        owner.context.path_above = known  # type: ignore[method-assign]
        node.workers[0].siblings.owner_is(1, 2)
        node.settle()
        assert [held(node, name) for name in names] == [{B: (2, 1)}] * 2
        owner.replicas.streams.clear()
    news = peer.take()
    assert [(each.id, each.state, each.path[1:]) for each in news if isinstance(each, r.Followed)] == [
        (1, "news", ("node-a",)),
        (2, "news", ("node-a",)),
    ]


def test_many_streams_are_told_of_bit_by_bit(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers_module, "SLICE_STREAMS", 2)
    names = [node.name(1, prefix) for prefix in "abcde"]
    peer = following(node, *names)
    owner = node.workers[1].owner
    owner.close_logs()
    owner.stream(names[4].encode())
    owner.replicas.streams.clear()
    node.workers[0].siblings.owner_is(1, 2)
    node.workers[0].turn()
    opened = []
    timers = node.workers[1].timers
    timers.next_due_s = float("inf")  # what goes by the clock opens streams too
    for _ in range(3):
        node.workers[1].turn()
        opened.append(len(owner.catalog.open))
    timers.next_due_s = 0.0
    assert opened == [3, 5, 5], "what is open comes first"
    node.settle()
    assert [held(node, name) for name in names] == [{B: (2, 1)}] * 5
    owner.context.path_above = lambda _name: ("node-a",)  # type: ignore[method-assign]
    for name in names:
        owner.events.on_path(name.encode())
    node.settle()
    assert sorted(each.id for each in peer.take() if isinstance(each, r.Followed)) == [1, 2, 3, 4, 5]


def test_nothing_is_told_of_what_has_ended(node: World, name: str) -> None:
    peer = following(node, name)
    peer.ask(r.Held(((1, B, 2, 2),)), m.Unsubscribe(1))
    assert held(node, name) == {}
    node.workers[node.owner_of(name)].owner.events.on_path(name.encode())
    node.settle()
    assert peer.take() == []


def test_nodes_are_known_while_they_are_connected(node: World) -> None:
    peers = [BinaryPeer(node, node_id=B), BinaryPeer(node, node_id=B)]
    nodes = node.workers[0].followers.nodes
    assert [(each.node, each.address) for each in nodes] == [(B, "peer:5050")] * 2
    assert len({each.connection for each in nodes}) == 2
    peers[0].peer.close()
    peers[1].ask(m.Close())
    node.settle()
    assert not nodes
