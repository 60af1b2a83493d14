"""A connection that goes from one worker to another: the peer notices nothing, at any point of its requests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.broker.connection import handover
from tailrace.broker.routing.batch import Pending
from tests.broker.world import Peer, World, world


@pytest.fixture
def node(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path, workers=2, affinity=False, chunk_bytes=65_536) as node:
        yield node


def move(node: World, peer: Peer) -> None:
    """To the other worker, by the link between them, as value and descriptor."""
    client = node.client_of(peer)
    source = node.worker_of(client)
    assert handover.possible(client)
    link = source.links.link_to(1 - source.slot)
    assert link is not None
    fd, state = handover.detach(client)
    source.links.hand_over(link, fd, state)
    source.siblings.flush()
    assert source.services.clients.keys().isdisjoint({client.fd}) and client.closed
    node.workers[1 - source.slot].turn()
    assert node.worker_of(node.client_of(peer)) is node.workers[1 - source.slot]


@pytest.mark.parametrize("local", [True, False])
def test_one_that_has_said_nothing_is_a_peer_and_a_descriptor(node: World, local: bool) -> None:
    peer = node.connect(local=local)
    connection = node.connection_of(peer)
    assert handover.possible(connection)
    fd, state = handover.detach(connection)
    assert state == {"peer": "peer:1", "identity": connection.identity.export_state()}
    assert not node.workers[0].services.clients
    node.workers[1].acceptor.adopt(socket.socket(fileno=fd), state)
    assert node.ask(peer, "ping") == ["ok pong"]
    assert node.client_of(peer).identity.local is local and node.worker_of(node.client_of(peer)) is node.workers[1]


def test_everything_a_line_can_be_in_the_middle_of(node: World) -> None:
    peer = node.connect()
    for byte in b"\xff\xfd\x06ack on\r\npub a |x\xff\xff\r\nPing\r\n\xff\xf4pub a |y\r\n":
        peer.send_raw(bytes([byte]))
        node.settle()
        move(node, peer)
    node.settle()
    assert peer.received == b"\xff\xfc\x06ok ack on\r\nok pub a 0\r\nok pong\r\nok pub a 1\r\n"
    reader = node.connect()
    reader.send("sub a 0 wait")
    node.settle()
    assert b" 2 |x\xff\r\n" in reader.received, "telnet doubles this byte"


def test_a_line_that_is_too_long_goes_on_being_thrown_away(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, max_line_bytes=2_000, max_message_bytes=1_000) as node:
        peer = node.connect()
        peer.send_raw(b"ping\r\n" + b"x" * 5_000)
        node.settle()
        move(node, peer)
        peer.send_raw(b"x" * 5_000 + b"\r\nping\r\nstreams\r\n")
        node.settle()
        assert [line.split()[1] for line in peer.lines] == ["pong", "line", "pong", "denied"]


def test_limits_and_rights_go_along(tmp_path: Path) -> None:
    with world(tmp_path, workers=2, max_streams_connection=2) as node:
        peer = node.connect(local=False)
        for number in range(3):
            peer.send(f"pub {node.name(number % 2, f'made{number}')} |x")
            node.settle()
            move(node, peer)
        assert node.client_of(peer).created == 2
        lines = node.ask(peer, "streams")
        assert lines[-1].startswith("err denied")


def test_partial_lines_are_counted_where_they_are(node: World) -> None:
    peer = node.connect()
    peer.send_raw(b"pub a |12345")
    node.settle()
    assert [worker.services.partial_bytes for worker in node.workers] == [12, 0]
    move(node, peer)
    assert [worker.services.partial_bytes for worker in node.workers] == [0, 12]


def test_subscriptions_go_along_without_a_gap(node: World) -> None:
    names = [node.name(0), node.name(1)]
    peer = node.connect()
    node.ask(peer, *(f"sub {name} 0 wait" for name in names))
    for number in range(8):
        for name in names:
            node.fill(name, [b"%d" % number])
        move(node, peer)
        assert [set(worker.fanout.feeds) for worker in node.workers].count(set()) == 1
    node.settle()
    for name in names:
        assert [each for each in peer.messages() if each[0] == name] == [(name, n, str(n)) for n in range(8)]
    assert sum(len(worker.siblings.interest.streams) for worker in node.workers) == 1


def test_a_reader_in_the_middle_of_a_chunk(node: World) -> None:
    """It moves again and again while its socket takes a few bytes at a time; other work goes on."""
    payloads = [b"%d %s" % (number, b"x" * (number % 300)) for number in range(1_000)]
    name = node.name(0)
    node.fill(name, payloads)
    peer = node.connect(small=True)
    peer.deaf = True
    peer.send(f"sub {name} 0 wait")
    node.settle()
    moves = in_chunk = 0
    while len(peer.messages()) < 1_000:
        client = node.client_of(peer)
        in_chunk += client.current is not None and client.current.skip > 0
        move(node, peer)
        moves += 1
        for worker in node.workers:
            worker.renderings.cache.clear()
        peer.received += peer.sock.recv(5_000)
        node.settle()
        assert moves < 500
    assert [payload.encode() for _, _, payload in peer.messages()] == payloads
    assert in_chunk > 10


def test_answers_that_were_not_sent_and_a_chunk_of_a_subscription_that_has_ended(node: World) -> None:
    name = node.name(0)
    node.fill(name, [b"%d %s" % (number, b"x" * 500) for number in range(500)])
    peer = node.connect(small=True)
    peer.deaf = True
    peer.send(f"sub {name} 0 wait")
    node.settle()
    peer.send(f"unsub {name}", f"sub {name} #490 wait", "ping")
    node.settle()
    client = node.client_of(peer)
    assert client.current is not None and client.current.done and client.out
    move(node, peer)
    node.settle()
    peer.deaf = False
    node.settle()
    seqs = [seq for _, seq, _ in peer.messages()]
    first = seqs.index(490)
    assert seqs == [*range(first), *range(490, 500)] and 0 < first < 490
    answers = [line for line in peer.lines if not line.startswith("msg ")]
    assert answers == [f"ok sub {name} 0", f"ok unsub {name}", f"ok sub {name} 490", "ok pong"]
    assert peer.lines.index("ok pong") > first


def test_an_end_of_input_goes_along(node: World) -> None:
    peer = node.connect()
    node.ask(peer, "sub a 0 wait")
    peer.sock.shutdown(socket.SHUT_WR)
    node.settle()
    move(node, peer)
    assert node.client_of(peer).eof
    node.fill("a", [b"x"])
    assert peer.messages() == [("a", 0, "x")]


def test_not_while_an_answer_is_awaited_nor_while_it_ends(node: World) -> None:
    peer = node.connect()
    client = node.client_of(peer)
    pending = Pending(client.answers_ready)
    client.pend(pending)
    assert not handover.possible(client)
    pending.settle(b"")
    assert handover.possible(client)
    client.finish()
    assert not handover.possible(client)
    client.close("ended")
    assert not handover.possible(client)


def test_a_subscription_that_cannot_go_on_is_told(node: World, tmp_path: Path) -> None:
    name = node.name(0)
    node.fill(name, [b"x"])
    peer = node.connect()
    node.ask(peer, f"sub {name} 0 wait", "sub other 0 wait")
    for file in (tmp_path / "data").glob(f"*/{name}.*"):
        file.unlink()
    peer.take()
    move(node, peer)
    node.settle()
    assert [" ".join(line.split()[:3]) for line in peer.lines] == [f"err unavailable {name}:"]
    assert list(node.client_of(peer).cursors) == [b"other"]


def test_a_peer_that_is_gone_meanwhile_does_no_harm(node: World) -> None:
    peer = node.connect()
    node.ask(peer, "sub a 0 wait")
    client = node.client_of(peer)
    peer.close()
    link = node.workers[0].links.link_to(1)
    assert link is not None
    node.workers[0].links.hand_over(link, *handover.detach(client))
    node.settle()
    node.fill("a", [b"x", b"y"])
    assert all(not worker.services.clients and not worker.fanout.feeds for worker in node.workers)
