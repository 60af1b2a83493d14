"""By hand: a cluster with agents and etcd whose nodes share UDP topics, and whose leader is killed and comes back.

    python -m tests.system.udp_cluster --rounds 3

Each node has subscribers of its own. From the kill on, each of the two nodes that live must have the other's filters
at each look, and deliver what is published at the other; the filters of the dead one go. When it is back it must have
those of both within WHOLE_S of being ready. A client with the addresses of all three must go on. Needs root and etcd.
"""

from __future__ import annotations

import argparse
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tailrace.udp import UdpClient
from tests.system.cluster_ground import NODES, ClusterGround, cluster_ground
from tests.system.node import wait_for
from tests.system.tree_net import Net
from tests.system.tree_node import MachineNode

WHOLE_S: Final = 1.0
LOOKS_S: Final = 3.0
LEASE_S: Final = 3_600
RECEIVE_S: Final = 5.0
SHARED: Final = "all/+"


def extra(net: Net) -> str:
    peers = ", ".join(f'"{net.machines[name].address}:5050"' for name in NODES)
    return (
        f'[listen]\nudp = true\n[replication]\nshare_memory = true\npeers = ["198.18.0.0/15", {peers}]\n'
        f'[udp]\nlease_s = "{LEASE_S} s"\n'
    )


class Subscriber:
    """A socket on the machine of a node, with two subscriptions there."""

    def __init__(self, name: str, node: MachineNode) -> None:
        self.own = f"own/{name}"
        self._address = ("127.0.0.1", node.port)
        self._sock = node.machine.within(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._sock.settimeout(RECEIVE_S)
        self.subscribe()

    def subscribe(self) -> None:
        for topic in (self.own, SHARED):
            self._sock.sendto(f"SUB {topic}\n".encode(), self._address)
            while not (answer := self._sock.recv(2_048)).startswith(b"OK SUB "):
                assert answer.startswith(b"MSG "), answer

    def publish(self, topic: str, body: str) -> None:
        self._sock.sendto(f"PUB {topic}\n{body}".encode(), self._address)

    def gets(self, topic: str, body: str) -> bool:
        try:
            while self._sock.recv(2_048) != f"MSG {topic}\n{body}".encode():
                pass
        except TimeoutError:
            return False
        return True


def pushed(node: MachineNode) -> dict[str, set[str]]:
    """By the address of another node the filters that it has pushed here."""
    with node.client() as client:
        text = "\n".join(client.ask_table("pull"))
    found: dict[str, set[str]] = {}
    for topic, nodes in re.findall(r"^PUSH\n(.+)\n((?:/.+\n)+)", text, re.MULTILINE):
        for each in nodes.split("\n")[:-1]:
            found.setdefault(each.split()[0].removeprefix("/"), set()).add(topic)
    return found


class Wanderer:
    """A client with the addresses of all nodes, in a thread. `last_s`: when the last message came."""

    def __init__(self, addresses: list[str]) -> None:
        self.last_s = 0.0
        self._ends = threading.Event()
        self._client = UdpClient(addresses, timeout_s=60)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._client as client:
            client.subscribe(SHARED)
            while not self._ends.is_set():
                if client.receive(0.05) is not None:
                    self.last_s = time.monotonic()

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


class Round:
    """The leader is killed, and comes back."""

    def __init__(self, ground: ClusterGround, subscribers: dict[str, Subscriber], number: int) -> None:
        self._ground = ground
        self._nodes = ground.tree.nodes
        self._subscribers = subscribers
        self._number = number
        self._sent = 0

    def filters(self, *names: str) -> dict[str, set[str]]:
        return {self._nodes[name].address: {self._subscribers[name].own, SHARED} for name in names}

    def has(self, name: str, *others: str) -> bool:
        found = pushed(self._nodes[name])
        return {address: found.get(address, set()) & wanted for address, wanted in self.filters(*others).items()} == (
            self.filters(*others)
        )

    def delivers(self, at: str, to: str) -> bool:
        self._sent += 1
        body = f"{self._number}.{self._sent}"
        self._subscribers[at].publish(f"all/{at}", body)
        return self._subscribers[to].gets(f"all/{at}", body)

    def play(self) -> bool:
        leader = self._ground.leader()
        one, other = (name for name in NODES if name != leader)
        for name in NODES:
            others = [each for each in NODES if each != name]
            wait_for(lambda name=name, others=others: self.has(name, *others), f"{name} has all filters", 60)  # type: ignore[misc]
        self._ground.kill(leader)
        killed_s = time.monotonic()
        looks = misses = 0
        gone_s = 0.0
        while time.monotonic() - killed_s < LOOKS_S:
            looks += 2
            misses += (not self.has(one, other)) + (not self.has(other, one))
            misses += not self.delivers(one, other)
            if not gone_s and self._nodes[leader].address not in pushed(self._nodes[one]):
                gone_s = time.monotonic() - killed_s
        wait_for(lambda: self._ground.leader() not in ("", leader), "another one leads", 60)
        led_s = time.monotonic() - killed_s
        self._ground.restart(leader)
        self._nodes[leader].wait_ready()
        ready_s = time.monotonic()
        wait_for(lambda: self.has(leader, one, other), "it has all filters again", 60)
        whole_s = time.monotonic() - ready_s
        self._subscribers[leader].subscribe()
        wait_for(lambda: self.has(one, leader) and self.has(other, leader), "both have its filters again", 60)
        misses += not self.delivers(leader, one) or not self.delivers(other, leader)
        print(
            f"{leader} killed: {looks} looks and half as many publishes, {misses} misses; its filters gone"
            f" after {gone_s:.2f} s; another leads after {led_s:.1f} s; whole again {whole_s:.2f} s after it was ready",
            flush=True,
        )
        self._ground.wait_in_sync()
        return not misses and 0 < gone_s <= WHOLE_S and whole_s <= WHOLE_S


def play(folder: Path, rounds: int) -> bool:
    with cluster_ground(folder, extra=extra) as ground, ExitStack() as stack:
        nodes = ground.tree.nodes
        subscribers = {name: Subscriber(name, nodes[name]) for name in NODES}
        leader = ground.leader()
        order = [leader, *(name for name in NODES if name != leader)]
        wanderer = Wanderer([nodes[name].address for name in order])
        stack.callback(wanderer.end)
        outcomes = [Round(ground, subscribers, number).play() for number in range(rounds)]
        ended_s = time.monotonic()
        subscribers[order[1]].publish("all/end", "end")
        wait_for(lambda: wanderer.last_s > ended_s, "the client with three addresses gets messages", 60)
        return all(outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        return 0 if play(folder, options.rounds) else 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
