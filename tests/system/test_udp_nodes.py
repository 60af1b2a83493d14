"""Clients of UDP with the addresses of three real nodes that share streams in memory: one vanishes, one is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.ports import free_port
from tailrace.core.datagram_nodes import SILENT_PINGS
from tailrace.udp import AsyncUdpClient, UdpClient
from tests.system.node import PATIENCE_S, Node, wait_for

pytestmark = pytest.mark.system

CONFIG = """
[listen]
udp = true

[replication]
share_memory = true
peers = [{peers}]
"""
TOPIC = "weather/rome"
EVERY_S = 0.02
PING_S = 0.2


class Listener:
    """A client in a thread of its own, with its messages, and when each came."""

    def __init__(self, addresses: list[str]) -> None:
        self.got: dict[bytes, float] = {}
        self.twice: list[bytes] = []
        self.address = ""
        self._addresses = addresses
        self._ends = False
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ends = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def take(self, body: bytes) -> None:
        if body in self.got:
            self.twice.append(body)
        self.got[body] = time.monotonic()

    def _run(self) -> None:
        with UdpClient(self._addresses, timeout_s=PATIENCE_S, ping_s=PING_S) as client:
            client.subscribe(TOPIC)
            while not self._ends:
                self.address = client.address
                if (message := client.receive(EVERY_S)) is not None:
                    self.take(message.body)


class AsyncListener(Listener):
    def _run(self) -> None:
        asyncio.run(self._listen())

    async def _listen(self) -> None:
        async with AsyncUdpClient(self._addresses, timeout_s=PATIENCE_S, ping_s=PING_S) as client:
            await client.subscribe(TOPIC)
            while not self._ends:
                self.address = client.address
                if (message := await client.receive(EVERY_S)) is not None:
                    self.take(message.body)


class Publisher:
    """Publishes all the time at one node. `sent`: when each message was."""

    def __init__(self, address: str) -> None:
        self.sent: dict[bytes, float] = {}
        self._address = address
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        with UdpClient(self._address) as client:
            while not self._ends.wait(EVERY_S):
                body = b"%d" % len(self.sent)
                self.sent[body] = time.monotonic()
                client.publish(TOPIC, body)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    ports = [free_port() for _ in range(3)]
    peers = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    with ExitStack() as stack:
        made = []
        for number, port in enumerate(ports):
            node = Node(tmp_path / f"node{number}", workers=1, config=CONFIG.format(peers=peers))
            node.port = port
            stack.callback(node.kill)
            made.append(node.start(wait=False))
        for node in made:
            node.wait_ready()
        yield made


def address_of(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def test_clients_go_on_at_another_node(nodes: list[Node]) -> None:
    first, second, third = nodes
    publisher = Publisher(address_of(third))
    listeners = [kind([address_of(first), address_of(second)]) for kind in (Listener, AsyncListener)]
    with ExitStack() as stack:
        publisher.begin()
        stack.callback(publisher.end)
        for each in listeners:
            each.begin()
            stack.callback(each.end)
        wait_until_all(listeners, lambda each: bool(each.got), "messages come by way of the first node")
        assert {each.address for each in listeners} == {address_of(first)}

        assert first.process is not None
        os.killpg(first.process.pid, signal.SIGSTOP)  # as if its machine had vanished: no answer of any kind
        goes_on(publisher, listeners, second)
        os.killpg(first.process.pid, signal.SIGCONT)
        first.wait_ready()

        second.kill()
        goes_on(publisher, listeners, first)
    assert [each.twice for each in listeners] == [[], []]


def goes_on(publisher: Publisher, listeners: list[Listener], node: Node) -> None:
    """Waits until messages that are sent from now on come by way of this node."""
    since_s = time.monotonic()

    def gets_new(listener: Listener) -> bool:
        return listener.address == address_of(node) and any(
            publisher.sent.get(body, 0.0) > since_s for body in list(listener.got)
        )

    wait_until_all(listeners, gets_new, f"messages come by way of {address_of(node)}")
    firsts = [min(at for body, at in list(each.got.items()) if publisher.sent[body] > since_s) for each in listeners]
    print(f"after {[round(at - since_s, 3) for at in firsts]} s, {SILENT_PINGS} pings of {PING_S} s")


def wait_until_all(listeners: list[Listener], condition: Callable[[Listener], bool], what: str) -> None:
    wait_for(lambda: all(map(condition, listeners)), what, step_s=EVERY_S)
