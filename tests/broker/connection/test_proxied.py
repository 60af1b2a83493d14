"""Connections through a proxy: its client's address counts, and a preamble from anybody else is refused by name."""

from __future__ import annotations

from pathlib import Path

from tailrace.broker.connection.base import Pause
from tests.broker.connection.test_admission import dial, later
from tests.broker.world import world

PREAMBLE = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 5050\r\n"


def test_the_address_of_the_client_counts(tmp_path: Path) -> None:
    with world(tmp_path, proxies=("127.0.0.9",), max_address_connections=1) as node:
        peer = dial(node, "127.0.0.9")
        for piece in (PREAMBLE[:20], PREAMBLE[20:] + b"ping\r\n", b"streams\r\n"):
            peer.send_raw(piece)
            node.settle()
        assert [line.split()[1] for line in peer.lines] == ["pong", "denied"], "its client is not of this machine"
        (client,) = node.workers[0].services.clients.values()
        assert client.peer == "192.0.2.7:40000" and not client.identity.local
        for source, answer in ((b"192.0.2.7", "connections"), (b"192.0.2.8", "pong")):
            other = dial(node, "127.0.0.9")
            other.send_raw(PREAMBLE.replace(b"192.0.2.7", source) + b"ping\r\n")
            node.settle()
            assert [line.split()[1] for line in other.lines] == [answer]


def test_a_client_of_a_proxy_is_not_of_this_machine_whatever_it_says(tmp_path: Path) -> None:
    with world(tmp_path, proxies=("127.0.0.9",)) as node:
        for address in (b"127.0.0.1", None):
            peer = dial(node, "127.0.0.9")
            preamble = PREAMBLE.replace(b"192.0.2.7", address) if address else b"PROXY UNKNOWN\r\n"
            peer.send_raw(preamble + b"streams\r\n")
            node.settle()
            assert [line.split()[1] for line in peer.lines] == ["denied"]


def test_a_proxy_must_begin_with_its_preamble(tmp_path: Path) -> None:
    with world(tmp_path, proxies=("127.0.0.0/24",)) as node:
        peer = dial(node)
        peer.send("ping ping ping")
        node.settle()
        assert [line.split()[1] for line in peer.lines] == ["protocol"] and peer.ended
        silent = dial(node)
        silent.send_raw(PREAMBLE[:-1])
        node.settle()
        later(node, 31.0)
        assert [line.split()[1] for line in silent.lines] == ["timeout"] and silent.ended


def test_from_others_a_preamble_is_refused_by_name(tmp_path: Path) -> None:
    with world(tmp_path, proxies=("127.0.0.9",)) as node:
        peer = dial(node)
        peer.send_raw(PREAMBLE + b"ping\r\n")
        node.settle()
        assert len(peer.lines) == 1 and "PROXY protocol v1" in peer.lines[0] and peer.ended


def test_a_worker_that_leaves_closes_it(tmp_path: Path) -> None:
    with world(tmp_path, proxies=("127.0.0.9",)) as node:
        peer = dial(node, "127.0.0.9")
        peer.send_raw(PREAMBLE[:-1])
        node.settle()
        (client,) = node.workers[0].services.clients.values()
        client.pause(Pause.LEAVING)
        node.settle()
        assert peer.ended
