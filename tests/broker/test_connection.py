"""What every connection does, whatever it speaks: blocked sockets, bounds of what is held, ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.connection import Connection, Pause
from broker.protocol.binary import ClientCodec
from broker.protocol.errors import Code
from broker.protocol.messages import Failed, Ping, Pong
from tests.broker.binary import BinaryPeer
from tests.broker.world import Peer, World, world


def speak(node: World, kind: str, **how: bool) -> tuple[Peer, Connection]:
    """A peer that speaks this protocol, and its connection."""
    if kind == "line":
        peer = node.connect(**how)
        return peer, node.client_of(peer)
    peer = BinaryPeer(node, **how).peer
    peer.received.clear()
    return peer, node.connection_of(peer)


def codes(kind: str, peer: Peer) -> list[str]:
    """Of the errors it has heard."""
    if kind == "line":
        return [line.split()[1] for line in peer.lines]
    return [each.code for each in ClientCodec().feed(bytes(peer.received)) if isinstance(each, Failed)]


@pytest.mark.parametrize("kind", ["line", "binary"])
def test_one_that_must_end_hears_why_and_its_input_is_thrown_away(tmp_path: Path, kind: str) -> None:
    with world(tmp_path) as node:
        peer, connection = speak(node, kind)
        connection.end_with(Code.CLOSING, "enough")
        connection.end_with(Code.CLOSING, "twice")
        peer.send_raw(b"x" * 20_000)
        node.settle()
        assert codes(kind, peer) == ["closing"] and peer.ended
        assert node.workers[0].partial_bytes == 0
        peer.close()
        node.settle()
        assert connection.closed and not node.workers[0].clients


@pytest.mark.parametrize("kind", ["line", "binary"])
def test_what_is_half_said_counts_and_is_bounded(tmp_path: Path, kind: str) -> None:
    begun = b"pub a |" if kind == "line" else b"\x05\x00\x10\x00\x00"
    with world(tmp_path, max_partial_bytes=2_000) as node:
        peer, _connection = speak(node, kind)
        peer.send_raw(begun + b"x" * 1_000)
        node.settle()
        assert node.workers[0].partial_bytes == len(begun) + 1_000
        peer.send_raw(b"x" * 1_500)
        node.settle()
        assert codes(kind, peer) == ["overloaded"] and peer.ended
        assert node.workers[0].partial_bytes == 0


@pytest.mark.parametrize("kind", ["line", "binary"])
def test_a_socket_that_is_full_is_known_until_it_has_room(tmp_path: Path, kind: str) -> None:
    with world(tmp_path) as node:
        peer, connection = speak(node, kind, small=True)
        blocked = node.workers[0].fanout.blocked
        peer.deaf = True
        connection.out += b"x" * 300_000
        node.workers[0].note_answered(connection)
        node.settle()
        assert list(blocked) == [connection]
        peer.deaf = False
        node.settle()
        assert not blocked and len(peer.received) == 300_000
        peer.deaf = True
        connection.out += b"x" * 300_000
        node.workers[0].note_answered(connection)
        node.settle()
        connection.close("stopped")
        assert not blocked


def test_reasons_to_pause_add_up(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = BinaryPeer(node)
        connection = node.connection_of(peer.peer)
        connection.pause(Pause.LINK)
        connection.pause(Pause.MOVE)
        connection.resume(Pause.LINK)
        assert peer.ask(Ping()) == []
        assert connection.has_unread()
        connection.resume(Pause.MOVE)
        node.settle()
        assert peer.take() == [Pong()] and not connection.has_unread()
