"""Several nodes in one process that share streams in memory over real connections."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tailrace.broker import worker as worker_module
from tailrace.broker.process.settings import Settings
from tailrace.broker.replication.upstream import choice, connection
from tests.broker.udp.test_door import UdpPeer_
from tests.broker.world import World

PATIENCE_S = 30.0
QUIET_ROUNDS = 4


class Nodes:
    """`at`: the nodes that run, by number. They have `peers` to ask: all of them, unless a test says otherwise."""

    def __init__(self, path: Path, size: int, workers: int, **settings: Any) -> None:
        self.path = path
        self._kept = [_kept_port() for _ in range(size)]
        self.ports = [sock.getsockname()[1] for sock in self._kept]
        self._workers = workers
        self.settings = settings
        self.peers = {each: list(range(size)) for each in range(size)}
        self._runs = count()
        self.clients: list[UdpPeer_] = []
        self.at: dict[int, World] = {}

    def start(self, *numbers: int) -> None:
        for number in numbers or self.peers:
            addresses = tuple(f"127.0.0.1:{self.ports[each]}" for each in self.peers[number])
            given = {"udp": True, "affinity": False, "share_memory": True, "replication_peers": addresses}
            path = self.path / f"node{number}.{next(self._runs)}"
            path.mkdir()
            settings = Settings(**{**given, **self.settings})
            self.at[number] = World(path, self._workers, settings, self.ports[number])
        self.settle()

    def kill(self, number: int) -> None:
        self.at.pop(number).close()
        self.settle()

    def client(self, number: int) -> UdpPeer_:
        self.clients.append(UdpPeer_(self.at[number]))
        return self.clients[-1]

    def ask(self, client: UdpPeer_, *data: bytes) -> list[bytes]:
        client.send(*data)
        self.settle()
        return client.take()

    def settle(self) -> None:
        """Turns for all workers, until they have moved nothing for some rounds."""
        quiet, before, end_s = 0, None, time.monotonic() + PATIENCE_S
        while quiet < QUIET_ROUNDS:
            assert time.monotonic() < end_s, "the nodes do not come to rest"
            for world in self.at.values():
                world.settle()
                for worker in world.workers:
                    worker._often()
            now = [self._measure(world) for world in self.at.values()]
            quiet, before = (quiet + 1, before) if now == before else (0, now)

    def wait(self, nodes_up: int) -> None:
        """Until each node has what the others want: `nodes_up` connections to others in all."""
        end_s = time.monotonic() + PATIENCE_S
        while sum(len(w.shared.sessions.by_node) for world in self.at.values() for w in world.workers) < nodes_up:
            assert time.monotonic() < end_s
            self.settle()
        self.settle()

    def _measure(self, world: World) -> list[int]:
        return [
            number
            for worker in world.workers
            for number in (
                worker.metrics.appended_messages,
                worker.metrics.shared_sent,
                worker.metrics.udp.messages_out,
                len(worker.shared.serving.filters.trie),
                sum(worker.shared.serving.filters.trie._holders),
                len(worker.services.clients),
                len(worker.shared.sessions.by_node),
            )
        ]

    def filters(self, number: int) -> set[bytes]:
        """Those that other nodes want of this one."""
        tries = [worker.shared.serving.filters.trie for worker in self.at[number].workers]
        return {each for trie in tries for each in trie._filters if each}

    def count(self, name: str) -> int:
        return sum(getattr(worker.metrics, name) for world in self.at.values() for worker in world.workers)

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()
        for world in self.at.values():
            world.close()
        for sock in self._kept:
            sock.close()


def _kept_port() -> socket.socket:
    """Bound and not listening: the kernel gives its port to nobody who asks for any, and a node can listen there."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


@contextlib.contextmanager
def nodes(path: Path, size: int = 3, workers: int = 1, **settings: Any) -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "IDLE_S", 0)
        patch.setattr(worker_module, "REST_S", 0)
        patch.setattr(worker_module, "gc", Mock())
        patch.setattr(choice, "DIAL_S", 0.01)
        patch.setattr(connection, "SHARED_DIAL_MAX_S", 0.02)
        made = Nodes(path, size, workers, **settings)
        try:
            yield made
        finally:
            made.close()
