"""The unix socket of administration: its peers are known by uid, may administer, and are distinguished from others."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from tailrace.broker.connection.admin_door import AdminDoor, peer_credentials
from tailrace.broker.connection.line import LineClient
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tailrace.shard.unix_socket import connect_unix
from tailrace.supervisor.listeners import open_admin_listener
from tests.broker.consumers.owning import Member, Owners
from tests.broker.world import Peer, World, world


def knock(node: World, path: Path) -> Peer:
    sock = socket.socket(socket.AF_UNIX)
    connect_unix(sock, path)
    peer = Peer(sock)
    node.peers.append(peer)
    node.settle()
    return peer


def open_door(node: World, path: Path) -> None:
    acceptor = node.workers[0].acceptor
    acceptor._admin_door = AdminDoor(open_admin_listener(path), node.workers[0].poller, acceptor._take_in_administrator)
    acceptor._admin_door.start()


def test_its_peers_administer_and_the_log_has_who_did(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailrace.broker.process.event_log")
    with world(tmp_path, admin="unix", max_connections=1) as node:
        open_door(node, tmp_path / "admin.sock")
        peers = [knock(node, tmp_path / "admin.sock") for _ in range(3)]
        assert node.ask(peers[0], "master a") == ["ok master a 1"]
        assert node.ask(peers[2], "streams")[0] == "ok stream role epoch", "they count for no limit"
        assert caplog.messages == [
            f"event=admin peer=unix/{os.getuid()}:{os.getpid()} user=- uid={os.getuid()} proof=socket command={command}"
            for command in ('"master stream=a force=False"', '"streams prefix="')
        ]


def test_a_stream_that_is_deleted_by_the_binary_protocol_is_in_the_log_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailrace.broker.process.event_log")
    with world(tmp_path) as node:
        node.fill("s", [b"a"])
        owners, member = Owners(node), Member(node)
        stranger = Member(node, local=False)
        (refused,) = stranger.ask(c.Consume(1, "drop", b"s"))
        assert isinstance(refused, m.Failed) and refused.code == "denied" and owners.asked == []
        member.ask(c.Consume(1, "drop", b"s"))
        assert owners.asked == [c.Consume(1, "drop", b"s")]
        (line,) = (each for each in caplog.messages if each.startswith("event=admin"))
        assert line == 'event=admin peer=peer:2 user=- uid=- proof=loopback command="delete stream=s"'


def test_its_connections_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newcomer gets in, in place of one that has done nothing for long."""
    monkeypatch.setattr("tailrace.broker.connection.admission.ADMINISTRATORS_MAX", 2)
    with world(tmp_path, admin="unix") as node:
        open_door(node, tmp_path / "admin.sock")
        idle, busy = [knock(node, tmp_path / "admin.sock") for _ in range(2)]
        assert node.ask(idle, "ping") == node.ask(busy, "ping") == ["ok pong"]
        for client, used_s in zip(node.workers[0].services.clients.values(), (1.0, 2.0), strict=True):
            assert isinstance(client, LineClient)
            client.life_s = client.progress_s = used_s
        newcomer = knock(node, tmp_path / "admin.sock")
        assert node.ask(newcomer, "streams")[0] == "ok stream role epoch"
        assert idle.ended and node.ask(busy, "ping") == ["ok pong"]
        silent = [knock(node, tmp_path / "admin.sock") for _ in range(3)]
        assert silent[0].ended and len(node.workers[0].services.clients) == 2


@pytest.mark.parametrize(("admin", "answer"), [("loopback", "ok"), ("unix", "err"), ("none", "err")])
def test_lines_from_this_machine_administer_only_if_they_may(tmp_path: Path, admin: str, answer: str) -> None:
    """A tunnel's or a proxy's peers come from this machine too, and so do its other users."""
    with world(tmp_path, admin=admin, token="secret") as node:
        sock = socket.create_connection(node.listeners[0].getsockname())
        peer = Peer(sock)
        node.peers.append(peer)
        assert [line.split()[0] for line in node.ask(peer, "master a")] == [answer]
        assert peer.ended == (answer == "err"), "it has not shown the token either"


def test_who_may_open_it(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20) / ("longer" * 10)
    folder.mkdir(parents=True)
    path = folder / "admin.sock"
    with open_admin_listener(path) as listener:
        assert path.stat().st_mode & 0o777 == 0o660
        with socket.socket(socket.AF_UNIX) as sock:
            connect_unix(sock, path)
            accepted, _address = listener.accept()
            with accepted:
                assert peer_credentials(accepted) == (os.getpid(), os.getuid(), os.getgid())
