"""Connections that have not sent anything yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.broker.connection.binary import BinaryClient
from tailrace.broker.connection.detect import UndetectedConnection
from tailrace.broker.connection.line import LineClient
from tailrace.protocol.errors import Code
from tailrace.protocol.messages import Failed, Hello, Welcome
from tests.broker.binary import BinaryPeer
from tests.broker.world import world


def test_the_first_byte_decides(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        line, binary, silent = node.connect(), BinaryPeer(node, hello=False), node.connect()
        node.settle()
        assert all(isinstance(each, UndetectedConnection) for each in node.workers[0].services.clients.values())
        line.send("ping")
        assert isinstance(binary.ask(Hello(1, (), "t"))[0], Welcome)
        kinds = [type(node.connection_of(peer)) for peer in (line, binary.peer, silent)]
        assert kinds == [LineClient, BinaryClient, UndetectedConnection]
        assert line.lines == ["ok pong"]


def test_what_it_read_is_counted_where_it_belongs(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.ask(node.connect(), "ping")
        BinaryPeer(node)
        metrics = node.workers[0].metrics
        assert metrics.line.bytes_in == len("ping\r\n") and metrics.binary.bytes_in > 10


@pytest.mark.parametrize("how", ["close", "reset"])
def test_one_that_leaves_in_silence(tmp_path: Path, how: str) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        if how == "reset":
            node.connection_of(peer).on_event(0x10)  # EPOLLHUP
            reason = "reset"
        else:
            peer.close()
            node.settle()
            reason = "ended"
        assert not node.workers[0].services.clients
        assert node.workers[0].metrics.dropped.counts == {reason: 1}


def test_one_that_is_refused_hears_so_in_its_own_words(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        line, binary, silent = node.connect(), BinaryPeer(node, hello=False), node.connect()
        for peer in (line, binary.peer, silent):
            newcomer = node.connection_of(peer)
            assert isinstance(newcomer, UndetectedConnection)
            newcomer.refused = Code.CONNECTIONS, "full"
        line.send("ping")
        (answer,) = binary.ask(Hello(1, (), "t"))
        assert answer == Failed("connections", "full", True)
        assert line.lines == ["err connections full"] and silent.lines == []
        newcomer = node.connection_of(silent)
        assert isinstance(newcomer, UndetectedConnection)
        newcomer.give_up()
        node.settle()
        assert silent.lines == ["err connections full"] and silent.ended


def test_one_that_has_no_room_for_its_refusal_is_not_waited_for(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = node.connect(small=True)
        peer.deaf = True
        newcomer = node.connection_of(peer)
        newcomer.out += bytes(400_000)
        newcomer.end_with(Code.CONNECTIONS, "full")
        node.settle()
        assert newcomer.closed and not node.workers[0].services.clients and not node.workers[0].services.unsent_bytes
        assert node.workers[0].metrics.dropped.counts == {"stalled": 1}


def test_lines_from_other_machines_where_a_token_is_wanted(tmp_path: Path) -> None:
    with world(tmp_path, token="secret") as node:
        away, here = node.connect(local=False), node.connect()
        assert [line.split()[1] for line in node.ask(away, "pub a |x", "ping")] == ["denied"] and away.ended
        assert node.ask(here, "ping") == ["ok pong"]
        assert not node.workers[0].owner.catalog.names


def test_a_worker_that_stops_tells_the_silent_too(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        peer = node.connect()
        node.connection_of(peer).end_with(Code.CLOSING, "this node stops")
        node.settle()
        assert peer.lines == ["err closing this node stops"] and peer.ended
