"""A wide tree of real nodes on this machine: how late a message is at each depth, and how soon a tree mends.

    python -m tests.system.wide_tree --nodes 64 --seed 1

Publishes at the master, and reads at every node. Then kills a tenth of the nodes at once, inner ones among them, while
it goes on publishing. Every message must come to every living node, once and in order. All nodes and the reader share
the processors of this machine, and the network is its loopback: the figures are of the broker's work, not of a network.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import selectors
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.node import PATIENCE_S, RECEIVE_BYTES, LineClient, Node, wait_for

FAN_OUT = 4
STARTED_AT_ONCE = 8
OTHERS_LISTED = 2
"""Nodes beside the parent that each node lists, before the nodes above the parent."""
KILLED_SHARE = 0.1
PAUSE_S = 0.05
"""Between two messages."""
LATE_S = 1.0
"""A message that comes later than this shows that the node had lost its way."""
MEND_S = 120.0
CONFIG = """
[limits]
max_connections = 256

[timing]
upstream_switch_s = "{switch_s} s"
"""
SLAVE = """
[[slave]]
streams = "*"
upstream = [{upstreams}]
"""


@dataclass(slots=True)
class Place:
    """A node in the tree. `got`: when each message was published, and when its reader here received it."""

    number: int
    depth: int
    parent: Place | None
    node: Node
    got: list[tuple[float, float]] = field(default_factory=list)
    alive: bool = True


class WideTree:
    """`places`: from the master downwards."""

    def __init__(self, folder: Path, count: int, switch_s: float, fan_out: int = FAN_OUT) -> None:
        self.places: list[Place] = []
        for number in range(count):
            parent = self.places[(number - 1) // fan_out] if number else None
            config = CONFIG.format(switch_s=switch_s)
            if parent is not None:
                listed = ", ".join(f'"127.0.0.1:{each.node.port}"' for each in self._upstreams(parent))
                config += SLAVE.format(upstreams=listed)
            node = Node(folder / f"node-{number}", workers=1, config=config)
            self.places.append(Place(number, 0 if parent is None else parent.depth + 1, parent, node))

    def _upstreams(self, parent: Place) -> list[Place]:
        """The parent, the next ones of its depth, and those above it."""
        row = [each for each in self.places if each.depth == parent.depth]
        at = row.index(parent)
        listed = [*row[at:], *row[:at]][: OTHERS_LISTED + 1]
        while (above := listed[-1].parent) is not None:
            listed.append(above)
        return listed

    @property
    def living(self) -> list[Place]:
        return [each for each in self.places if each.alive]

    def start(self) -> None:
        for first in range(0, len(self.places), STARTED_AT_ONCE):
            some = self.places[first : first + STARTED_AT_ONCE]
            for each in some:
                each.node.start(wait=False)
            for each in some:
                each.node.wait_ready()

    def kill_some(self, chance: random.Random) -> list[Place]:
        """A tenth, at least one that others follow; never the master."""
        inner = [each for each in self.places[1:] if any(other.parent is each for other in self.places)]
        chosen = [
            chance.choice([each for each in inner if each.depth == depth]) for depth in {each.depth for each in inner}
        ]
        others = [each for each in self.places[1:] if each not in chosen]
        chosen += chance.sample(others, max(0, round(len(self.places) * KILLED_SHARE) - len(chosen)))
        for each in chosen:
            each.alive = False
        for each in chosen:
            each.node.kill()
        return chosen

    def close(self) -> None:
        for each in self.places:
            if each.node.process is not None:
                each.node.kill()


class Traffic:
    """Publishes at the master every PAUSE_S, and reads at all living nodes meanwhile."""

    def __init__(self, tree: WideTree) -> None:
        self._tree = tree
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, LineClient] = {}
        self.published: list[float] = []
        self._publisher = tree.places[0].node.client()
        self._publisher.send("pub s |0")
        self.published.append(time.monotonic())
        for place in tree.places:
            wait_for(lambda place=place: _has_stream(place.node), f"node {place.number} has the stream")  # type: ignore[misc]
            client = self._clients[place.number] = place.node.client()
            assert client.ask("sub s #0").startswith("ok sub")
            client.sock.setblocking(False)
            self._selector.register(client.sock, selectors.EVENT_READ, place)
            self._take(place)

    def run(self, until: Callable[[], bool], patience_s: float, *, publishing: bool = True) -> None:
        """Publish until it is so."""
        end_s = next_s = time.monotonic()
        end_s += patience_s
        while not until():
            now_s = time.monotonic()
            assert now_s < end_s, [(each.number, len(each.got)) for each in self._tree.living]
            if publishing and now_s >= next_s:
                next_s += PAUSE_S
                self._publisher.sock.sendall(b"pub s |%d\r\n" % len(self.published))
                self.published.append(time.monotonic())
            for key, _ in self._selector.select(max(0.0, min(next_s - time.monotonic(), PAUSE_S))):
                self._read(key.data)

    def _read(self, place: Place) -> None:
        client = self._clients[place.number]
        try:
            data = client.sock.recv(RECEIVE_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            assert not place.alive, f"node {place.number} has closed its reader's connection"
            self._selector.unregister(client.sock)
            client.close()
            return
        client._received += data
        client._parse()
        self._take(place)

    def _take(self, place: Place) -> None:
        """Raises AssertionError for a gap, or a message that comes twice."""
        now_s, client = time.monotonic(), self._clients[place.number]
        for message in client.messages:
            assert message.seq == len(place.got) == int(message.payload), (place.number, message, len(place.got))
            place.got.append((self.published[message.seq], now_s))
        client.messages.clear()

    def all_there(self) -> bool:
        return all(len(each.got) == len(self.published) for each in self._tree.living)

    def close(self) -> None:
        self._publisher.close()
        for client in self._clients.values():
            client.close()
        self._selector.close()


def _has_stream(node: Node) -> bool:
    with node.client() as client:
        return not client.ask_table("stat s")[0].startswith("err")


@dataclass(frozen=True, slots=True)
class Figures:
    """`delays_s`: by depth, of each message before the kill; `late`: of each node that lost its way, how long after the
    kill its last late message came.
    """

    delays_s: dict[int, list[float]]
    killed: list[int]
    late_s: list[float]
    messages: int


def measure(tree: WideTree, chance: random.Random, count: int) -> Figures:
    traffic = Traffic(tree)
    try:
        first = len(traffic.published)
        traffic.run(lambda: len(traffic.published) >= first + count, MEND_S + count * PAUSE_S)
        traffic.run(traffic.all_there, PATIENCE_S, publishing=False)
        delays: dict[int, list[float]] = {}
        for place in tree.places:
            delays.setdefault(place.depth, []).extend(came_s - sent_s for sent_s, came_s in place.got[first:])
        began_s, before = time.monotonic(), len(traffic.published)
        killed = tree.kill_some(chance)
        living = tree.living
        traffic.run(lambda: _is_mended(living, len(traffic.published), before), MEND_S)
        traffic.run(traffic.all_there, PATIENCE_S, publishing=False)
        late = [_last_late_s(place, before) for place in living]
        found = [each - began_s for each in late if each]
        return Figures(delays, [each.number for each in killed], found, len(traffic.published))
    finally:
        traffic.close()


def _is_mended(living: Sequence[Place], published: int, before: int) -> bool:
    """Whether all nodes have all but the messages of the last second, and some that were published after the kill."""
    wanted = published - round(LATE_S / PAUSE_S)
    return wanted > before and all(len(each.got) >= wanted for each in living)


def _last_late_s(place: Place, before: int) -> float:
    """When the last message came that was late; 0 for a node that had everything in time."""
    return max((came_s for sent_s, came_s in place.got[before:] if came_s - sent_s > LATE_S), default=0.0)


@contextlib.contextmanager
def wide_tree(folder: Path, count: int, switch_s: float, fan_out: int = FAN_OUT) -> Iterator[WideTree]:
    tree = WideTree(folder, count, switch_s, fan_out)
    try:
        tree.start()
        yield tree
    finally:
        tree.close()


def shown(figures: Figures) -> Iterator[str]:
    yield f"{figures.messages} messages, each at each living node, once and in order"
    for depth, delays_s in sorted(figures.delays_s.items()):
        cuts = statistics.quantiles(delays_s, n=100)
        yield f"depth {depth}: {1e3 * cuts[49]:.1f} ms median, {1e3 * cuts[98]:.1f} ms p99, {len(delays_s)} deliveries"
    yield f"killed at once: {len(figures.killed)} nodes, numbers {', '.join(map(str, sorted(figures.killed)))}"
    if figures.late_s:
        middle, last = statistics.median(figures.late_s), max(figures.late_s)
        yield f"{len(figures.late_s)} living nodes were late, the median for {middle:.1f} s, the last for {last:.1f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a wide tree of real nodes: delay by depth, and mending")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--switch", type=float, default=5.0, help="upstream_switch_s of the nodes")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    found = parser.parse_args(arguments)
    print(f"seed {found.seed}, {found.nodes} nodes, load of the machine {os.getloadavg()[0]:.1f}", flush=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        wide_tree(Path(folder), found.nodes, found.switch) as tree,
    ):
        print(f"started; load {os.getloadavg()[0]:.1f}", flush=True)
        for line in shown(measure(tree, random.Random(found.seed), found.messages)):
            print(line, flush=True)
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
