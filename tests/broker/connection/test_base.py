"""Behaviour of every connection, also before its first byte: reasons to pause, ends, input that is not taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.connection.base import OUT_HIGH_BYTES, Connection, Pause
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Ping, Pong
from tests.broker.binary import BinaryPeer
from tests.broker.connection.test_client import codes, speak
from tests.broker.world import Peer, World, world


def connection(node: World, kind: str) -> tuple[Peer, Connection]:
    """A peer of this kind, "silent" too, and its connection."""
    if kind == "silent":
        peer = node.connect()
        return peer, node.connection_of(peer)
    return speak(node, kind)


@pytest.mark.parametrize("kind", ["line", "binary", "silent"])
def test_one_that_must_end_hears_why_and_its_input_is_thrown_away(tmp_path: Path, kind: str) -> None:
    with world(tmp_path) as node:
        peer, ending = connection(node, kind)
        ending.end_with(Code.CLOSING, "enough")
        ending.end_with(Code.CLOSING, "twice")
        peer.send_raw(b"x" * 20_000)
        node.settle()
        assert codes("binary" if kind == "binary" else "line", peer) == ["closing"] and peer.ended
        assert node.workers[0].services.partial_bytes == 0
        peer.close()
        node.settle()
        assert ending.closed and not node.workers[0].services.clients


def test_reasons_to_pause_add_up(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = BinaryPeer(node)
        paused = node.connection_of(peer.peer)
        paused.pause(Pause.LINK)
        paused.pause(Pause.MOVE)
        paused.resume(Pause.LINK)
        assert peer.ask(Ping()) == []
        assert paused.has_unread()
        paused.resume(Pause.MOVE)
        node.settle()
        assert peer.take() == [Pong()] and not paused.has_unread()


def test_answers_that_are_not_taken_count_until_the_end(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer, full = connection(node, "line")
        peer.deaf = True
        full.out += bytes(3 * OUT_HIGH_BYTES)
        node.workers[0].services.note_answered(full)
        node.settle()
        assert full.paused == Pause.ANSWERS and node.workers[0].services.unsent_bytes == len(full.out) > OUT_HIGH_BYTES
        full.close("stopped")
        assert node.workers[0].services.unsent_bytes == 0
