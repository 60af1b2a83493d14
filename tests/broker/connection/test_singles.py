"""Connections that publish one message at a time are read and answered together: the same as each by itself."""

from __future__ import annotations

import os
import random
import socket
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace.broker.connection.binary import BinaryClient
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack, Op
from tailrace.shard.frame import pack_frame
from tests.broker.binary import BinaryPeer
from tests.broker.world import World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False) as node:
        yield node


def publishers(node: World, count: int, *names: str, slot: int = 0) -> list[BinaryPeer]:
    """Peers whose last read was a single publish, to the first of these streams."""
    peers = [BinaryPeer(node, slot) for _ in range(count)]
    for peer in peers:
        peer.open(*names)
        peer.publish(1, b"first")
    node.settle()
    for peer in peers:
        peer.take()
    return peers


def are_together(node: World, peers: list[BinaryPeer]) -> bool:
    """Whether all of them are to be read together."""
    known = list(node.workers[0].singles._publishers.values())
    return all(node.binary_client_of(peer.peer) in known for peer in peers)


def test_each_is_answered_with_its_number_and_its_seq(node: World) -> None:
    here, away = node.name(0), node.name(1)
    peers = publishers(node, 3, here, away)
    assert are_together(node, peers)
    requests = [peer.publish(1, b"second") for peer in peers] + [peers[0].publish(2, b"away")]
    node.settle()
    answers = [answer for peer in peers for answer in peer.take()]
    found = {(each.request, *each.results[0][:2]) for each in answers if isinstance(each, m.Published)}
    assert len(answers) == 4 and {each[0] for each in found} == set(requests)
    assert sorted(each[1] for each in found) == [0, 3, 4, 5]


def test_each_is_told_of_a_refusal(tmp_path: Path) -> None:
    with world(tmp_path, auto_master=False) as node:
        peers = publishers(node, 3, "none")
        assert are_together(node, peers)
        requests = [peer.publish(1, b"x") for peer in peers]
        node.settle()
        for peer, request in zip(peers, requests, strict=True):
            (answer,) = peer.take()
            assert isinstance(answer, m.Failed)
            assert (answer.code, answer.op, answer.id, answer.fatal) == ("disabled", Op.PUBLISH, request, False)
            assert not node.binary_client_of(peer.peer).awaited


def test_they_wait_for_a_stream_that_is_made(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = node.name(0), node.name(0, "n")
    peers = publishers(node, 3, old, new)
    monkeypatch.setattr("tailrace.broker.process.work.TURN_WORK_S", 0.0)
    for peer in peers:
        peer.publish(2, b"x")
    node.settle()
    seqs = [answer.results[0][0] for peer in peers for answer in peer.take() if isinstance(answer, m.Published)]
    assert sorted(seqs) == [0, 1, 2]
    clients = [node.binary_client_of(peer.peer) for peer in peers]
    assert not any(client.paused or client.held_up or client.awaited for client in clients)
    assert sum(client.created for client in clients) == 2, "each stream counts once"


def test_whoever_does_not_take_its_answers_gets_them_in_order(node: World) -> None:
    (full, other), name = publishers(node, 2, node.name(0)), node.name(0)
    small = BinaryPeer(node, 0, small=True)
    small.open(name)
    numbers = []
    for _ in range(2_000):
        numbers.append(small.publish(1, b"x", ack=Ack.APPENDED))
        node.workers[0].turn()
        if node.binary_client_of(small.peer).blocked:
            break
    assert node.binary_client_of(small.peer).blocked
    numbers += [small.publish(1, b"x") for _ in range(3)]
    for peer in (full, other):
        peer.publish(1, b"y")
    node.settle()
    assert [answer.request for answer in small.take() if isinstance(answer, m.Published)] == numbers
    assert all(len(peer.take()) == 1 for peer in (full, other))


def test_a_connection_whose_answer_is_not_sent_does_not_move(node: World) -> None:
    (peer,) = publishers(node, 1, node.name(0))
    client, worker = node.binary_client_of(peer.peer), node.workers[0]
    client.under_way += 1
    worker.singles.outcomes_known([client], m.pack(m.Published(9, ((4, 1, 0),))))
    assert (client.awaited, worker.singles.owes) == (1, True)
    worker.turn()
    assert (client.awaited, worker.singles.owes) == (0, False)
    peer.peer.read()
    assert peer.take() == [m.Published(9, ((4, 1, 0),))]


def test_two_answers_for_one_connection_keep_their_order(node: World) -> None:
    (peer,) = publishers(node, 1, node.name(0))
    client, singles = node.binary_client_of(peer.peer), node.workers[0].singles
    client.under_way += 2
    for request in (1, 2):
        singles.outcomes_known([client], m.pack(m.Published(request, ((request, 1, 0),))))
    node.settle()
    assert [answer.request for answer in peer.take() if isinstance(answer, m.Published)] == [1, 2]
    assert not client.awaited


def test_nothing_is_read_from_one_that_has_ended_meanwhile(node: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor is another's already."""
    first, second, third = publishers(node, 3, node.name(0))
    clients: list[Any] = [node.binary_client_of(peer.peer) for peer in (first, second, third)]
    received, (near, far) = BinaryClient.received, socket.socketpair()
    taken = clients[1].fd
    far.setblocking(False)

    def end_another(client: BinaryClient, count: int) -> None:
        if client is clients[0]:
            clients[1].close("slow")
            os.dup2(far.fileno(), taken)
            near.send(b"of somebody else")
        received(client, count)

    monkeypatch.setattr(BinaryClient, "received", end_another)
    first.say(m.Ping())
    second.publish(1, b"lost")
    third.publish(1, b"kept")
    node.workers[0].singles._read_together(clients)
    assert os.read(taken, 100) == b"of somebody else"
    for fd in (taken, near.detach(), far.detach()):
        os.close(fd)
    node.settle()
    assert first.take() == [m.Pong()] and second.take() == [] and len(third.take()) == 1
    assert clients[1].under_way == 0 and taken not in node.workers[0].singles._publishers


def test_one_that_closes_is_not_read_together_any_more(node: World) -> None:
    peers = publishers(node, 2, node.name(0))
    singles = node.workers[0].singles
    assert len(singles._publishers) == 2
    peers[0].publish(1, b"last")
    peers[0].peer.close()
    node.settle()
    assert len(singles._publishers) == 1
    peers[1].say(m.Close())
    peers[1].publish(1, b"too late")
    node.settle()
    assert peers[1].take() == [] and not singles._publishers


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [1, 2])
def test_a_random_life(tmp_path: Path, workers: int, seed: int) -> None:
    """Every acknowledged message is at its seq, once, and those of a connection are in their order."""
    chance = random.Random(seed)
    with world(tmp_path, workers=workers, affinity=bool(seed % 2)) as node:
        names = [node.name(slot, prefix) for slot in range(workers) for prefix in "ab"]
        peers = [BinaryPeer(node, chance.randrange(workers)) for _ in range(8)]
        sent: dict[tuple[int, int], tuple[str, bytes]] = {}  # by peer and request
        found: dict[tuple[int, int], int] = {}
        for peer in peers:
            peer.open(*names)
        for step in range(400):
            place = chance.randrange(len(peers))
            _act(chance, place, peers[place], names, sent, step)
            if chance.random() < 0.3:
                for worker in node.workers:
                    worker.turn()
            if chance.random() < 0.05:
                node.settle()
                _collect(peers, found)
        node.settle()
        _collect(peers, found)
        reader = BinaryPeer(node)
        for number, name in enumerate(names, start=1):
            reader.subscribe(number, name)
        node.settle()
        reader.take()
        _compare(names, sent, found, reader.got)
        assert not any(node.binary_client_of(peer.peer).awaited for peer in peers)


def _act(
    chance: random.Random,
    place: int,
    peer: BinaryPeer,
    names: list[str],
    sent: dict[tuple[int, int], tuple[str, bytes]],
    step: int,
) -> None:
    """Most of all single publishes; silent ones, several in one send, pings, and requests in two pieces."""
    what = chance.random()
    if what < 0.1:
        peer.say(m.Ping())
        return
    data = b""
    for part in range(chance.choice([1, 1, 1, 2, 3])):
        handle, payload = chance.randrange(len(names)) + 1, b"%d %d %d" % (place, step, part)
        ack = Ack.NONE if chance.random() < 0.2 else Ack.APPENDED
        peer.requests += 1
        frames = pack_frame(payload)
        data += m.pack_publish(peer.requests, ack, [handle], frames) + frames
        sent[place, peer.requests] = names[handle - 1], payload
    cut = chance.randrange(len(data)) if what > 0.9 else 0
    if cut:
        peer.peer.send_raw(data[:cut])
        for worker in peer.node.workers:
            worker.turn()
    peer.peer.send_raw(data[cut:])


def _collect(peers: list[BinaryPeer], found: dict[tuple[int, int], int]) -> None:
    for place, peer in enumerate(peers):
        for answer in peer.take():
            if isinstance(answer, m.Published):
                assert (place, answer.request) not in found
                found[place, answer.request] = answer.results[0][0]
            else:
                assert isinstance(answer, m.Pong), answer


def _compare(
    names: list[str],
    sent: dict[tuple[int, int], tuple[str, bytes]],
    found: dict[tuple[int, int], int],
    got: dict[int, list[tuple[int, bytes]]],
) -> None:
    logged = {name: [payload for _seq, payload in got.get(number, [])] for number, name in enumerate(names, start=1)}
    everything = [payload for payloads in logged.values() for payload in payloads]
    assert sorted(everything) == sorted(payload for _name, payload in sent.values())
    for request, seq in found.items():
        name, payload = sent[request]
        assert logged[name][seq] == payload
    orders: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for name, payloads in logged.items():
        for payload in payloads:
            place, step, part = map(int, payload.split())
            orders[name, place].append((step, part))
    assert all(order == sorted(order) for order in orders.values())
    assert len(found) > 200
