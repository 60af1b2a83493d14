"""Three nodes with a lease and in-sync replicas, by commands as an operator types them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

import tailrace
from tailrace import Ack
from tailrace.shard.directory import open_data_dir
from tests.system.node import wait_for
from tests.system.tree_node import PORT, MachineNode, Tree, growing

pytestmark = pytest.mark.system

PARENTS = {"a": None, "b": "a", "c": "a"}
CONFIG = """
[cluster]
start_fenced = true

[timing]
replication_timeout_s = "30 s"
"""
FAR_MS = 10**11
STREAM = "orders"
ENOUGH = 20


class Publisher:
    """Publishes numbers, each until it is acknowledged as replicated."""

    def __init__(self, tree: Tree) -> None:
        self._addresses = [node.address for node in tree.nodes.values()]
        self._ended = threading.Event()
        self.acknowledged: list[bytes] = []
        self.times_s: list[float] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with tailrace.connect(self._addresses) as client:
            number = 0
            while not self._ended.is_set():
                payload = b"%d" % number
                client.publish(STREAM, payload, ack=Ack.REPLICATED, timeout_s=60)
                self.acknowledged.append(payload)
                self.times_s.append(time.monotonic())
                number += 1
                time.sleep(0.005)

    def wait_more(self) -> None:
        enough = len(self.acknowledged) + ENOUGH
        wait_for(lambda: len(self.acknowledged) >= enough or not self._thread.is_alive(), "it goes on")
        assert self._thread.is_alive(), "a publish has failed"

    def longest_gap_s(self, since_s: float) -> float:
        """The longest time between two acknowledgements, from that moment on."""
        times_s = [since_s, *(each for each in self.times_s if each > since_s)]
        return max(after - before for before, after in pairwise(times_s))

    def finish(self) -> list[bytes]:
        self._ended.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.acknowledged


def ids(tree: Tree, *names: str) -> str:
    return ",".join(open_data_dir(tree.nodes[name].data).node_id for name in names)


def lead(tree: Tree, name: str, term: int, *in_sync: str, group: str = "*") -> None:
    """In this order: the node knows its in-sync replicas, and is the master, before it takes messages."""
    node = tree.nodes[name]
    assert node.ask(f"isr {group} {ids(tree, *in_sync)}").startswith("ok isr")
    if term > 1:
        assert node.ask(f"promote {group} {term} force").startswith("ok promote")
    assert node.ask(f"lease {group} {term} {FAR_MS}").startswith("ok lease")


def is_settled(node: MachineNode, node_id: str) -> bool:
    with node.client() as client:
        rows = [row.split() for row in client.ask_table("isr *")]
    return [node_id, "1"] in [[*row[:1], *row[3:4]] for row in rows]


def read_all(node: MachineNode, stream: str = STREAM) -> list[bytes]:
    with tailrace.connect(node.address) as client:
        return [message.payload for message in client.subscribe(stream, start=0, end=tailrace.NOW)]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with growing(tmp_path, PARENTS, config=CONFIG) as tree:
        for name in tree.slaves():
            tree.follow(name)
        yield tree


def test_nothing_is_lost_or_doubled_when_the_master_is_killed(tree: Tree) -> None:
    a, b, c = tree.nodes.values()
    lead(tree, "a", 1, "a", "b", "c")
    publisher = Publisher(tree)
    publisher.wait_more()
    a.kill()
    lead(tree, "b", 2, "b", "c")
    assert c.ask(f"slave {b.host} {PORT} * 0").startswith("ok slave")
    publisher.wait_more()
    a.start()
    with a.client() as client:
        client.ask("ack on")
        assert client.ask("pub other |x").startswith("err unavailable"), "nobody's master before a lease"
    assert a.ask(f"slave {b.host} {PORT} * 0").startswith("ok slave")
    assert b.ask(f"isr * {ids(tree, 'a', 'b', 'c')}").startswith("ok isr")
    wait_for(lambda: is_settled(b, ids(tree, "a")), "the former master has everything")
    publisher.wait_more()
    acknowledged = publisher.finish()
    assert read_all(b) == acknowledged
    wait_for(lambda: read_all(a) == acknowledged, "the former master has it, too")


def test_a_master_whose_lease_has_ended_acknowledges_nothing(tree: Tree) -> None:
    """Not even a message that waits for another node when the lease ends."""
    a, _b, c = tree.nodes.values()
    lead(tree, "a", 1, "a", "b", "c")
    with tailrace.connect(a.address) as client:
        client.publish(STREAM, b"0", ack=Ack.REPLICATED, timeout_s=60)
        wait_for(lambda: read_all(c) == [b"0"], "c follows")
        c.pause()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.publish, STREAM, b"1", ack=Ack.REPLICATED, timeout_s=10)
            wait_for(lambda: len(read_all(a)) == 2, "it is logged")
            assert not waiting.done()
            assert a.ask("lease * 1 0").startswith("ok lease")
            c.resume()
            assert isinstance(waiting.exception(60), tailrace.TailraceError)
        with pytest.raises(tailrace.TailraceError):
            client.publish(STREAM, b"2", timeout_s=1)
    assert read_all(a) == [b"0", b"1"]


@pytest.mark.thorough
def test_two_nodes_lead_a_group_each(tmp_path: Path) -> None:
    """`clicks` is of group 0 of 2, `orders` of group 1. Any node takes both."""
    streams = {"*%0/2": "clicks", "*%1/2": STREAM}
    with growing(tmp_path, PARENTS, config=CONFIG) as tree:
        a, b, c = tree.nodes.values()
        for group, leader in zip(streams, "ab", strict=True):
            lead(tree, leader, 1, "a", "b", "c", group=group)
            for follower in {"a", "b", "c"} - {leader}:
                assert tree.nodes[follower].ask(f"lease {group} 1 0").startswith("ok lease")
                answer = tree.nodes[follower].ask(f"slave {tree.nodes[leader].host} {PORT} {group} 0")
                assert answer.startswith("ok slave")
        with tailrace.connect(c.address) as client:
            for payload in (b"0", b"1"):
                for stream in streams.values():
                    client.publish(stream, payload, ack=Ack.REPLICATED, timeout_s=60)
        for stream in streams.values():
            assert [read_all(node, stream) for node in (a, b, c)] == [[b"0", b"1"]] * 3
        a.kill()
        lead(tree, "c", 2, "b", "c", group="*%0/2")
        lead(tree, "b", 1, "b", "c", group="*%1/2")
        assert b.ask("lease *%0/2 2 0").startswith("ok lease")
        assert b.ask(f"slave {c.host} {PORT} *%0/2 0").startswith("ok slave")
        with tailrace.connect(b.address) as client:
            for stream in streams.values():
                client.publish(stream, b"2", ack=Ack.REPLICATED, timeout_s=60)
        for stream in streams.values():
            assert [read_all(node, stream) for node in (b, c)] == [[b"0", b"1", b"2"]] * 2
        with b.client() as client:
            rows = [client.ask_table(f"stat {stream}") for stream in streams.values()]
        assert ["role slave" in row for row in rows] == [True, False]
        a.start()
