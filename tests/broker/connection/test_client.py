"""Behaviour of every client in either protocol: unfinished requests, full sockets, subscriptions, its end."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tailrace.broker.connection.binary import BinaryClient
from tailrace.broker.connection.client import READ_BYTES_MAX, READ_BYTES_SCATTERED_MAX, ClientConnection
from tailrace.broker.routing.router import NEW_STREAMS
from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Failed, Published, Subscribe, pack
from tailrace.protocol.places import From
from tests.broker.binary import BinaryPeer
from tests.broker.world import Peer, World, world


def speak(node: World, kind: str, *, small: bool = False) -> tuple[Peer, ClientConnection]:
    """A peer that speaks this protocol, and the broker's side of it."""
    if kind == "line":
        peer = node.connect(small=small)
        return peer, node.client_of(peer)
    peer = BinaryPeer(node, small=small).peer
    peer.received.clear()
    return peer, node.speaker_of(peer)


def codes(kind: str, peer: Peer) -> list[str]:
    """The codes of the errors it has received."""
    if kind == "line":
        return [line.split()[1] for line in peer.lines]
    return [each.code for each in ClientCodec().feed(bytes(peer.received)) if isinstance(each, Failed)]


def test_more_is_read_at_once_of_what_is_for_many_streams(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        _peer, client = speak(node, "line")
        for streams, bytes_max in ((1_000, READ_BYTES_SCATTERED_MAX), (10, READ_BYTES_MAX)):
            for _ in range(12):
                client.read_more(client.read_bytes, streams)
            assert client.read_bytes == bytes_max
        client.read_more(client.read_bytes, 0)
        assert client.read_bytes == READ_BYTES_MAX
        for number in range(NEW_STREAMS + 1):
            node.workers[0].router.batch(b"new%d" % number)
        client.read_more(client.read_bytes, 1_000)
        assert client.read_bytes == READ_BYTES_MAX, "it makes streams"


@pytest.mark.parametrize("kind", ["line", "binary"])
def test_what_is_half_said_counts_and_is_bounded(tmp_path: Path, kind: str) -> None:
    begun = b"pub a |" if kind == "line" else b"\x05\x00\x10\x00\x00"
    with world(tmp_path, max_partial_bytes=2_000) as node:
        peer, _client = speak(node, kind)
        peer.send_raw(begun + b"x" * 1_000)
        node.settle()
        assert node.workers[0].services.partial_bytes == len(begun) + 1_000
        peer.send_raw(b"x" * 1_500)
        node.settle()
        assert codes(kind, peer) == ["overloaded"] and peer.ended
        assert node.workers[0].services.partial_bytes == 0


@pytest.mark.parametrize("kind", ["line", "binary"])
def test_a_socket_that_is_full_is_known_until_it_has_room(tmp_path: Path, kind: str) -> None:
    with world(tmp_path) as node:
        peer, client = speak(node, kind, small=True)
        blocked = node.workers[0].fanout.blocked
        peer.deaf = True
        client.out += b"x" * 300_000
        node.workers[0].services.note_answered(client)
        node.settle()
        assert list(blocked) == [client]
        peer.deaf = False
        node.settle()
        assert not blocked and len(peer.received) == 300_000
        peer.deaf = True
        client.out += b"x" * 300_000
        node.workers[0].services.note_answered(client)
        node.settle()
        client.close("stopped")
        assert not blocked


def subscribe(node: World, kind: str, peer: Peer, name: str) -> None:
    peer.send_raw(
        f"sub {name} 0 wait\r\n".encode()
        if kind == "line"
        else pack(Subscribe(1, name.encode(), From("seq", 0), wait=True))
    )
    node.settle()


@pytest.mark.parametrize(("kind", "stays"), [("line", True), ("binary", False)])
def test_one_that_says_no_more_may_listen_on_in_lines(tmp_path: Path, kind: str, stays: bool) -> None:
    with world(tmp_path) as node:
        peer, client = speak(node, kind)
        subscribe(node, kind, peer, "a")
        peer.received.clear()
        peer.sock.shutdown(socket.SHUT_WR)
        node.settle()
        node.fill("a", [b"x"])
        assert client.closed is not stays and (b"msg a 0 " in peer.received) is stays
        client.close("stopped")
        assert not node.workers[0].fanout.feeds


@pytest.mark.parametrize("kind", ["line", "binary"])
def test_one_that_says_no_more_and_listens_to_nothing_is_closed(tmp_path: Path, kind: str) -> None:
    with world(tmp_path) as node:
        peer, client = speak(node, kind)
        peer.sock.shutdown(socket.SHUT_WR)
        node.settle()
        assert client.closed and peer.ended and not node.workers[0].services.clients


@pytest.mark.parametrize("kind", ["line", "binary"])
def test_a_closed_one_leaves_nothing_behind(tmp_path: Path, kind: str) -> None:
    """It has begun a request, listens, is in the middle of a chunk, and its socket is full."""
    with world(tmp_path) as node:
        node.fill("a", [b"x" * 1_000] * 500)
        peer, client = speak(node, kind, small=True)
        peer.deaf = True
        subscribe(node, kind, peer, "a")
        peer.send_raw(b"pub a |x" if kind == "line" else b"\x05\x00\x10\x00\x00")
        node.settle()
        worker = node.workers[0]
        assert client.current is not None and client in worker.fanout.blocked
        assert worker.services.partial_bytes and set(worker.fanout.feeds) == {b"a"}
        client.close("stopped")
        assert not (
            worker.fanout.blocked or worker.fanout.feeds or worker.services.partial_bytes or worker.services.clients
        )


def fatal(answers: Sequence[object]) -> list[str]:
    return [each.code for each in answers if isinstance(each, Failed) and each.fatal]


@pytest.mark.parametrize("slot", [0, 1])
def test_a_fatal_error_comes_after_every_answer_to_a_node_too(tmp_path: Path, slot: int) -> None:
    with world(tmp_path, workers=2) as node:
        peer = BinaryPeer(node, node_id="n2")
        name = node.name(slot)
        node.fill(name, [b"there"])
        peer.open(name)
        peer.publish(1, b"x")
        peer.peer.send_raw(b"\x05\xff\xff\xff\xff")
        node.settle()
        answers = peer.take()
        assert answers[0] == Published(1, ((1, 1, 0),)) and fatal(answers[1:]) == ["size"]
        assert peer.peer.ended


def test_a_worker_that_leaves_does_not_wait_for_the_answers_of_a_node(tmp_path: Path) -> None:
    """It says with `unavailable` that publishes without an answer may or may not be logged."""
    with world(tmp_path, workers=2) as node:
        peer = BinaryPeer(node, node_id="n2")
        peer.open(node.name(1))
        (client,) = [each for each in node.workers[0].services.clients.values() if isinstance(each, BinaryClient)]
        client.under_way += 1
        client.end_with(Code.UNAVAILABLE, "it is replaced")
        node.settle()
        assert fatal(peer.take()) == ["unavailable"]
