"""Whole nodes in this process that follow each other, and take turns."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from tailrace.broker.replication.upstream.connection import UpstreamConnection
from tailrace.broker.replication.upstream.fetchers import FetchState
from tests.broker.world import World, world

PATIENCE_S = 60.0


class Node:
    """A world with one worker or more, and how others reach it."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.peer = made.connect()
        self._asked = 0

    @property
    def port(self) -> int:
        port: int = self.world.listeners[0].getsockname()[1]
        return port

    @property
    def id(self) -> str:
        return self.world.directory.node_id

    @property
    def owner(self):  # type: ignore[no-untyped-def]  # that of the only worker
        return self.world.workers[0].owner

    @property
    def uplinks(self) -> list[UpstreamConnection]:
        return [uplink for worker in self.world.workers for uplink in worker.uplinks]

    def say(self, line: str) -> str:
        (answer,) = self.world.ask(self.peer, line)
        return answer

    def slave(self, upstream: Node, pattern: str = "s", place: str = "#0") -> str:
        return self.say(f"slave 127.0.0.1 {upstream.port} {pattern} {place}")

    def messages(self, name: str = "s") -> list[bytes]:
        reader = self.world.connect(self.world.owner_of(name))
        self.world.settle()
        reader.send(f"sub {name} #0 wait")
        self.world.settle()
        return [payload.encode() for _, _, payload in reader.messages()]

    def next_seq(self, name: str = "s") -> int:
        owner = self.world.workers[self.world.owner_of(name)].owner
        return owner.stream(name.encode()).log.next_seq if name.encode() in owner.catalog.names else -1

    def copy_state(self, name: str = "s") -> FetchState:
        (state,) = [uplink.copies.by_name[name.encode()].state for uplink in self.uplinks]
        return state

    def role(self, name: str = "s") -> str:
        return str(self.world.workers[self.world.owner_of(name)].owner.roles.role(name.encode()))

    def fill(self, *payloads: bytes, name: str = "s") -> None:
        self.world.fill(name, list(payloads))


class Tree:
    """Nodes that take turns."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self._path = path
        self._stack = stack
        self.nodes: list[Node] = []
        self._of: dict[Node, contextlib.ExitStack] = {}

    def node(self, workers: int = 1, **settings: object) -> Node:
        path = self._path / f"node-{len(self.nodes)}"
        path.mkdir()
        stack = self._stack.enter_context(contextlib.ExitStack())
        node = Node(stack.enter_context(world(path, workers, **settings)))
        self.nodes.append(node)
        self._of[node] = stack
        return node

    def end(self, node: Node) -> None:
        self.nodes.remove(node)
        self._of[node].close()

    def until(self, condition: Callable[[], object]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, [
                (uplink.phase, uplink.why, [(copy.state, copy.why) for copy in uplink.copies.by_name.values()])
                for node in self.nodes
                for uplink in node.uplinks
            ]
            for node in self.nodes:
                for worker in node.world.workers:
                    worker.turn()
                for peer in node.world.peers:
                    peer.read()
