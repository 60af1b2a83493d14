"""A tree of thousands of nodes on a network with a time of its own: delay by depth, and mending after a tenth died.

    python -m tests.broker.replication.wide_simulation --depth 4 --seed 1

The nodes choose their upstreams by the product's code (`choosing`). Each lists its parent, the next nodes beside that,
and those above. Delays are of the model's network, 0.1 to 10 ms a hop, and of nothing else.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.broker.replication.choosing import Model

FAN_OUT = 8
KILLED_SHARE = 0.1
MESSAGES = 100
PAUSE_S = 0.1
OTHERS_LISTED = 2
START_S = 60.0
MEND_S = 600.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Outcome:
    """`delays_s`: by depth. `mended_s`: after the death of `killed` nodes, until each living one had everything and
    followed the master, which took `moves` of them to another node.
    """

    nodes: int
    delays_s: dict[int, list[float]]
    killed: int
    orphaned: int
    moves: int
    mended_s: float
    most_children: int


def tree(depth: int, fan_out: int = FAN_OUT) -> dict[str, list[str]]:
    """The list of each node, level by level; names are its place below each node on the way, such as 0.3.7."""
    rows = [["0"]]
    lists: dict[str, list[str]] = {"0": []}
    for _ in range(depth):
        rows.append([f"{above}.{number}" for above in rows[-1] for number in range(fan_out)])
        for place, name in enumerate(rows[-1]):
            beside = [rows[-2][(place // fan_out + step) % len(rows[-2])] for step in range(OTHERS_LISTED + 1)]
            lists[name] = list(dict.fromkeys((*beside, *_above(beside[-1]))))
    return lists


def _above(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def simulate(depth: int, seed: int, fan_out: int = FAN_OUT) -> Outcome:
    """Raises AssertionError if a message is missing, or the tree is not whole again in MEND_S."""
    model = Model(tree(depth, fan_out), seed)
    assert model.run(START_S, model.all_reached), model.unreached()[:5]
    delays = _publish(model)
    killed = model.chance.sample(
        [each for each in model.nodes.values() if each.upstreams], round(len(model.nodes) * KILLED_SHARE)
    )
    died_s = model.now_s
    for node in killed:
        node.kill()
    living = [node for node in model.nodes.values() if node.alive]
    parents = {node: node.parent for node in living}
    model.publish()
    assert model.run(MEND_S, model.all_reached, LOOK_S), model.unreached()[:5]
    mended_s = model.now_s - died_s
    assert all(node.held == sorted(node.held) and len(node.held) == len(model.master.held) for node in living)
    assert not model.circle()
    moves = sum(node.parent is not parents[node] for node in living)
    orphaned = sum(parent is not None and not parent.alive for parent in parents.values())
    most = max(len(node.children) for node in living)
    return Outcome(len(model.nodes), delays, len(killed), orphaned, moves, mended_s, most)


def _publish(model: Model) -> dict[int, list[float]]:
    delays: dict[int, list[float]] = {}
    first = len(model.master.held)
    for _ in range(MESSAGES):
        model.publish()
        model.run(PAUSE_S)
    assert model.run(START_S, model.all_reached)
    for node in model.nodes.values():
        came = zip(model.master.held[first:], node.held[first:], strict=True)
        delays.setdefault(len(node.path), []).extend(here_s - sent_s for sent_s, here_s in came)
    return delays


def shown(found: Outcome) -> Iterator[str]:
    yield f"{found.nodes} nodes, {MESSAGES} messages, each at each node"
    for depth, delays_s in sorted(found.delays_s.items()):
        cuts = statistics.quantiles(delays_s, n=100)
        yield f"depth {depth}: {1e3 * cuts[49]:.1f} ms median, {1e3 * cuts[98]:.1f} ms p99"
    yield f"killed at once: {found.killed}; {found.orphaned} living nodes followed one of them, {found.moves} moved"
    yield f"each living node had everything after {found.mended_s:.2f} s; {found.most_children} follow one at most"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="a tree of thousands of simulated nodes")
    parser.add_argument("--depth", type=int, default=4, help="below the master; 4 makes 4,681 nodes")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 16))
    found = parser.parse_args(arguments)
    print(f"seed {found.seed}")
    for line in shown(simulate(found.depth, found.seed)):
        print(line)


if __name__ == "__main__":
    main(sys.argv[1:])
