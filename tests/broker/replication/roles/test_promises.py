"""Promises of other nodes: who gives one, who may ask for it, and for how long an answer is waited for."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tailrace.broker.process.lease import boottime_ns
from tailrace.broker.replication.roles.promises import ANSWER_S
from tailrace.protocol import messages as m
from tailrace.protocol.replication import FEATURE, Ask
from tests.broker.world import Peer, World, world

BOUND = 8


def port_of(node: World) -> int:
    port: int = node.listeners[0].getsockname()[1]
    return port


def asked(node: World, other: World, line: str) -> list[str]:
    """The answer to a command that asks another node."""
    peer = node.connect()
    peer.send(line)
    while not peer.lines or peer.lines[-1] != ".":
        node.settle(0)
        other.settle(0)
    return peer.take()


def test_a_node_that_follows_in_the_term_promises(tmp_path: Path) -> None:
    with world(tmp_path / "a") as leader, world(tmp_path / "b", workers=2) as follower:
        address = f"127.0.0.1:{port_of(follower)}"
        row = f"{address} {follower.directory.node_id}"
        head = "ok address node promised"
        assert asked(leader, follower, f"promises * 3 5000 {address}") == [head, f"{row} 0", "."]
        assert follower.ask(follower.connect(), "lease * 3 0")[0].startswith("ok lease")
        assert asked(leader, follower, f"promises * 3 5000 {address}") == [head, f"{row} 1", "."]
        shown = dict(line.split(" ") for line in follower.ask(follower.connect(1), "lease *")[1:-1])
        assert int(shown["promised_ms"]) * 1_000_000 > boottime_ns()
        assert (shown["state"], shown["epoch"]) == ("over", "3")
        later = f"lease * 4 {boottime_ns() // 1_000_000 + 60_000}"
        assert follower.ask(follower.connect(), later)[0].startswith("err usage")


def test_a_promise_is_for_a_group(tmp_path: Path) -> None:
    with world(tmp_path / "a") as leader, world(tmp_path / "b", workers=2) as follower:
        address = f"127.0.0.1:{port_of(follower)}"
        assert follower.ask(follower.connect(), "lease *%1/2 3 0")[0].startswith("ok lease *%1/2")
        for pattern, promised in (("*", 0), ("*%0/2", 0), ("*%1/2", 1)):
            answer = asked(leader, follower, f"promises {pattern} 3 5000 {address}")
            assert answer[1].endswith(f" {promised}"), pattern
        rows = [row.split(" ") for row in follower.ask(follower.connect(1), "groups")[1:-1]]
        assert [row[:3] for row in rows] == [["*%0/2", "over", "0"], ["*%1/2", "over", "3"]]
        assert int(rows[1][4]) > int(rows[0][4]) == 0
        assert follower.ask(follower.connect(), "lease * 4 0")[0].startswith("err usage")
        assert follower.ask(follower.connect(), "lease *")[0].startswith("err usage")


def test_a_stranger_gets_no_promise(tmp_path: Path) -> None:
    with world(tmp_path) as node:
        node.ask(node.connect(), "lease * 3 0")
        peer = node.connect(local=False)
        peer.send_raw(m.pack(m.Hello(m.VERSION, (FEATURE,), "test")) + m.pack(Ask(1, promise=(3, 5_000))))
        node.settle()
        assert b"denied" in peer.received
        assert node.board.lease.promised_ns() == 0


def test_a_node_that_does_not_answer_has_not_promised(tmp_path: Path) -> None:
    with world(tmp_path) as node, socket.create_server(("127.0.0.1", 0)) as silent:
        peer, line = node.connect(), f"promises * 3 5000 127.0.0.1:{silent.getsockname()[1]}"
        node.ask(peer, line)
        promises, now_s = node.workers[0].scouts.promises, node.workers[0].services.now_s
        promises.tick(now_s)
        assert len(promises) == 1
        promises.tick(now_s + ANSWER_S)
        node.settle()
        assert not promises and peer.lines[1].endswith(" - 0")


def test_the_requests_of_a_worker_are_bounded_and_end_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.broker.replication.roles.promises.REQUESTS_MAX", BOUND)
    with world(tmp_path) as node, socket.create_server(("127.0.0.1", 0)) as silent:
        line = f"promises * 3 5000 127.0.0.1:{silent.getsockname()[1]}"
        peers: list[Peer] = [node.connect() for _ in range(BOUND + 1)]
        for peer in peers:
            peer.send(line)
        node.settle()
        assert [bool(peer.lines) for peer in peers] == [False] * BOUND + [True]
        assert peers[-1].lines[0].startswith("err overloaded")
        node.workers[0].scouts.promises.stop()
        node.settle()
        assert all(peer.lines[-1] == "." for peer in peers[:-1])
