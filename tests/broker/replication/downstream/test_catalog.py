"""The names of all streams of a node, for who watches them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.replication.downstream import catalog as catalog_module
from tailrace.broker.streams.owner_calls import call
from tailrace.protocol import replication as r
from tests.broker.binary import BinaryPeer
from tests.broker.owning import make_owner
from tests.broker.world import World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2) as node:
        yield node


def told(node: World, peer: BinaryPeer, ticks: int = 4) -> list[bytes]:
    """All names that the peer is notified of in `ticks` ticks."""
    found = []
    for _ in range(ticks):
        node.workers[0].catalog.tick()
        node.settle()
        found += [each for answer in peer.take() if isinstance(answer, r.Names) for each in answer.names]
    return found


def make(node: World, *names: str) -> None:
    assert node.ask(node.connect(), *(f"pub {name} |x" for name in names)) == []


def test_an_owner_tells_its_names_from_a_place_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = make_owner(tmp_path)
    monkeypatch.setattr(catalog_module, "NAMES_A_CALL", 2)
    for number in range(3):
        owner.create(b"s%d" % number)
    assert call(owner, "names", [0, 7]) == [owner.catalog.incarnation, 0, [b"s0", b"s1"]]
    assert call(owner, "names", [owner.catalog.incarnation, 2]) == [owner.catalog.incarnation, 2, [b"s2"]]
    assert call(owner, "names", [owner.catalog.incarnation, 3]) == [owner.catalog.incarnation, 3, []]


def test_many_names_come_bit_by_bit(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound, value in (("NAMES_A_CALL", 3), ("SCANNED_AT_ONCE", 4), ("NAMES_MAX", 2)):
        monkeypatch.setattr(catalog_module, bound, value)
    names = [f"s{number}" for number in range(20)]
    make(node, *names)
    peer = BinaryPeer(node, node_id="node-b")
    peer.say(r.Watch(1, b""))
    assert sorted(told(node, peer, 20)) == sorted(name.encode() for name in names)


def test_a_turn_looks_at_some_names_and_watches_take_turns(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "TURN_S", 0.0)
    monkeypatch.setattr(catalog_module, "SCANNED_AT_ONCE", 4)
    make(node, *(f"s{number}" for number in range(20)))
    peer, worker = BinaryPeer(node, node_id="node-b"), node.workers[0]
    for number in range(2):
        peer.say(r.Watch(number, b"s" * number))
    told(node, peer)
    catalog = worker.catalog
    for watch in catalog._watches.values():
        watch.place = 0
    catalog.tick()
    places = []
    while catalog.due:
        catalog.work()
        places.append([watch.place for watch in catalog._watches.values()])
    assert places[:3] == [[4, 0], [4, 4], [8, 4]] and places[-1] == [20, 20]


def test_nothing_is_asked_until_somebody_watches(node: World) -> None:
    make(node, "a")
    node.workers[0].catalog.tick()
    assert not node.workers[0].catalog._heard
    peer = BinaryPeer(node, node_id="node-b")
    peer.say(r.Watch(1, b"b"))
    assert told(node, peer) == []
    peer.say(r.Watch(1, b""))
    assert told(node, peer) == [b"a"]
    peer.say(r.Watch(2, b""))
    assert told(node, peer) == [b"a"], "from the beginning again"
    assert len(node.workers[0].catalog._watches) == 2
    peer.peer.close()
    node.settle()
    assert not node.workers[0].catalog._watches


def test_a_new_owner_is_asked_from_the_beginning(node: World) -> None:
    there = [name for name in (f"s{number}" for number in range(40)) if node.owner_of(name) == 1]
    make(node, *there[:4])
    peer = BinaryPeer(node, node_id="node-b")
    peer.say(r.Watch(1, b""))
    assert len(told(node, peer)) == 4
    owner = node.workers[1].owner
    owner.catalog.incarnation += 1
    owner.catalog.names = dict.fromkeys(sorted(owner.catalog.names, reverse=True))
    make(node, there[4])
    assert told(node, peer) == [there[4].encode()]


def test_the_brokers_own_streams_are_nobodys(node: World) -> None:
    node.workers[0].owner.create(b"$own")
    peer = BinaryPeer(node, node_id="node-b")
    peer.say(r.Watch(1, b""))
    assert told(node, peer) == []


def test_companions_are_told_by_the_names_of_their_streams(node: World) -> None:
    for name in (b"orders", b"$cursor/orders", b"orders/$dead", b"$cursor/$own", b"orders-2"):
        node.workers[node.owner_of(name.decode())].owner.create(name)
    for number, (prefix, found) in enumerate(
        [
            (b"orders", [b"$cursor/orders", b"orders", b"orders-2", b"orders/$dead"]),
            (b"orders/", []),
            (b"orders-", [b"orders-2"]),
        ]
    ):
        peer = BinaryPeer(node, node_id=f"node-{number}")
        peer.say(r.Watch(1, prefix))
        assert sorted(told(node, peer)) == found


def test_who_does_not_read_gets_no_more(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    make(node, "a")
    monkeypatch.setattr(catalog_module, "UNSENT_MAX_BYTES", 0)
    peer = BinaryPeer(node, node_id="node-b")
    peer.say(r.Watch(1, b""))
    assert told(node, peer) == []
    monkeypatch.setattr(catalog_module, "UNSENT_MAX_BYTES", 1)
    assert told(node, peer) == [b"a"]


def test_deleted_streams_are_not_told_and_do_not_add_up(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "DROPPED_MAX", 3)
    make(node, "a", "b")
    first, second = BinaryPeer(node, node_id="node-b"), BinaryPeer(node, node_id="node-c")
    first.say(r.Watch(1, b""))
    assert sorted(told(node, first)) == [b"a", b"b"]
    catalog = node.workers[0].catalog
    for _ in range(20):
        catalog.dropped(b"a")
        assert told(node, first) == [b"a"], "made again"
    assert len(catalog._names) <= 2 * 2 + 3 + 1
    catalog._known.discard(b"a")
    second.say(r.Watch(1, b""))
    node.settle()
    found = [each for answer in second.take() if isinstance(answer, r.Names) for each in answer.names]
    assert found == [b"b"]


def test_an_answer_from_before_a_deletion_does_not_count(node: World) -> None:
    make(node, "a")
    peer = BinaryPeer(node, node_id="node-b")
    peer.say(r.Watch(1, b""))
    assert told(node, peer) == [b"a"]
    catalog = node.workers[0].catalog
    catalog.dropped(b"a")
    catalog._answered(0, [1, 0, [b"a"]], catalog._drops - 1)
    assert not catalog._known
