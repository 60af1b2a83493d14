"""SIGHUP: every worker is replaced, and no client notices."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest

from tests.system.load import Load
from tests.system.node import PATIENCE_S, LineClient, Node, running, wait_for
from tests.system.processes import all_workers, worker_pids

pytestmark = pytest.mark.system

WORKERS = 3


def replace_all(node: Node, patience_s: float = 20.0) -> None:
    """SIGHUP, and wait until the last of the old workers has left."""
    before = all_workers(node)
    node.signal(signal.SIGHUP)

    def replaced() -> bool:
        now = worker_pids(node)
        pids = set(chain.from_iterable(now.values()))
        return len(pids) == len(before) == len(now) and not pids & before

    wait_for(replaced, "all workers are new", patience_s)


def begin_to_replace(node: Node) -> set[int]:
    """SIGHUP; the pids of the first successors: one, or more if this process was slow to look."""
    before = all_workers(node)
    node.signal(signal.SIGHUP)
    return wait_for(lambda: all_workers(node) - before, "a successor is there", step_s=0.001)


@contextmanager
def watching(node: Node) -> Iterator[None]:
    """For the length of a block: the node is ready all the time, and refuses and resets no connection."""
    faults: list[str] = []
    ending = threading.Event()

    def connect() -> None:
        while not ending.is_set():
            try:
                with LineClient(node.port) as client:
                    assert client.ask("ping") == "ok pong"
            except (OSError, AssertionError) as error:
                faults.append(f"a connection failed: {error!r}")

    def look() -> None:
        while not ending.is_set():
            status, text = node.get("/readyz")
            if status != 200:
                faults.append(f"/readyz: {status} {text}")
            time.sleep(0.002)

    threads = [threading.Thread(target=target, daemon=True) for target in (connect, connect, look)]
    for thread in threads:
        thread.start()
    yield
    ending.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not faults, faults[:5]


def test_nobody_notices(tmp_path: Path) -> None:
    streams = [f"s{i}" for i in range(6)]
    with running(tmp_path / "data", workers=WORKERS) as node, Load(node, streams) as load:
        load.wait_for_progress()
        with watching(node):
            replace_all(node)
            load.wait_for_progress()
            replace_all(node)
            load.wait_for_progress()
        load.finish()
        assert [publisher.fates.connections for publisher in load.publishers] == [1] * len(load.publishers)
        assert [subscriber.subscriptions for subscriber in load.subscribers] == [1] * len(load.subscribers)
        assert not [publisher.fates.errors for publisher in load.publishers if publisher.fates.errors]


@pytest.mark.thorough
def test_a_thousand_quiet_connections_move_along(tmp_path: Path) -> None:
    """More than the link to the successor takes at once."""
    with running(tmp_path / "data", workers=1) as node:
        clients = [node.client() for _ in range(1_500)]
        try:
            for number, client in enumerate(clients):
                client.send(f"sub quiet{number % 7} new wait")
            for client in clients:
                client.read_answers(1)
            replace_all(node)
            with node.client() as publisher:
                publisher.ask("ack on")
                for number in range(7):
                    assert publisher.ask(f"pub quiet{number} |there").startswith("ok pub ")
            for client in clients:
                assert [message.payload for message in client.read_messages(1)] == [b"there"]
            assert sum(int(row["connections"]) for row in node.workers()) == len(clients) + 1
        finally:
            for client in clients:
                client.close()


@pytest.mark.thorough
def test_publishers_that_never_pause_move_along(tmp_path: Path) -> None:
    """There is never a moment when a worker owes them no answer; and none of the answers may be missing or an error."""
    lines = b"".join(b"pub busy%d |message\r\n" % (number % 8) for number in range(20_000))
    with running(tmp_path / "data", "--no-affinity") as node:
        floods = [Flood(node, lines) for _ in range(3)]
        for flood in floods:
            flood.start()
        wait_for(lambda: all(flood.answers > 20_000 for flood in floods), "they are under way")
        replace_all(node)
        for flood in floods:
            flood.ending.set()
        for flood in floods:
            flood.join(PATIENCE_S)
            assert flood.error == b""
            assert flood.answers == flood.sent * 20_000 + 1


class Flood(threading.Thread):
    """A connection that is written to without end, and read only to count its answers."""

    def __init__(self, node: Node, lines: bytes) -> None:
        super().__init__(daemon=True)
        self.answers = 0
        self.sent = 0
        self.error = b""
        self.ending = threading.Event()
        self._lines = lines
        self._sock = socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S)
        self._writer = threading.Thread(target=self._write, daemon=True)

    def _write(self) -> None:
        while not self.ending.is_set():
            self._sock.sendall(self._lines)
            self.sent += 1
        self._sock.shutdown(socket.SHUT_WR)

    def run(self) -> None:
        self._sock.sendall(b"ack on\r\n")
        self._writer.start()
        while received := self._sock.recv(1 << 18):
            self.answers += received.count(b"\n")
            if b"err" in received and not self.error:
                self.error = received[received.index(b"err") :][:200]
        self._writer.join()
        self._sock.close()


@pytest.mark.thorough
def test_a_subscriber_in_the_middle_of_a_chunk_moves_along(tmp_path: Path) -> None:
    """It has half a message when its worker goes; the other half comes from the next one."""
    with running(tmp_path / "data") as node, node.client() as publisher:
        publisher.ask("ack on")
        for number in range(600):
            publisher.send(b"pub big |%04d" % number + bytes(20_000).replace(b"\0", b"x"))
        publisher.read_until(lambda: len(publisher.answers) == 601)
        subscribers = [node.client_of(slot) for slot in (0, 1)]
        for client in subscribers:
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            client.send("sub big 0 wait")
            client.read_messages(3)
        for _ in range(2):
            replace_all(node)
            for client in subscribers:
                client.read_messages(len(client.messages) + 100)
        for client in subscribers:
            client.read_messages(600)
            assert [message.seq for message in client.messages] == list(range(600))
            assert [message.payload[:4] for message in client.messages] == [b"%04d" % number for number in range(600)]
            client.close()


@pytest.mark.few(2)
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1])
def test_a_stop_in_the_middle_of_a_replacement(tmp_path: Path, after_s: float) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node, node.client() as client:
        client.ask("ack on")
        node.signal(signal.SIGHUP)
        time.sleep(after_s)  # in the middle of any step
        client.send(*(f"pub s{number % 9} |{number}" for number in range(100)))
        client.read_until(lambda: len(client.answers) == 101)
        node.signal(signal.SIGTERM)
        client.read_to_end()
        assert [answer.split()[:2] for answer in client.answers[101:]] == [["err", "closing"]]
        assert node.process is not None and node.process.wait(PATIENCE_S) == 0
    assert "SIGKILL" not in node.log() and "did not leave" not in node.log()


def test_a_successor_that_dies_costs_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data") as node, Load(node, ["a", "b", "c"]) as load:
        for number in range(3):
            load.wait_for_progress()
            os.kill(min(begin_to_replace(node)), signal.SIGKILL)
            wait_for(lambda number=number: node.log().count("SIGKILL") > number, "it is missed")  # type: ignore[misc]
            wait_for(lambda: [len(pids) for pids in worker_pids(node).values()] == [1, 1], "one worker a slot")
        load.wait_for_progress()
        load.finish()
