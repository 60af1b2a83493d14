"""Faults of a simulated cluster, from a seed, and the runs with them.

python -m tests.cluster.schedule --seeds 10000 --first 1 [--nodes 3] [--groups 1] [--defect NAME]
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from itertools import pairwise

from tests.cluster.simulated_broker import Defects
from tests.cluster.simulation import COPIES, ETCD, Violation, World

START_S = 10.0
FAULTS_S = 60.0
CALM_S = 15.0
PUBLISH_S = 0.08


class Faults:
    """One fault after another, some of them at the same time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self._over = False

    def next(self) -> None:
        if self._over:
            return
        kinds = SPREAD_KINDS if self._world.etcd.replicas else KINDS
        getattr(self, f"_{self._random.choice(kinds)}")()
        self._world.at(self._random.choice((0.3, 2.0, 6.0, 10.0)) * self._random.random(), self.next)

    def end(self) -> None:
        self._over = True
        world = self._world
        world.is_slow = False
        world.heal()
        if not world.etcd.up:
            world.etcd.come_back()
        for name in world.nodes:
            world.resume(name)
            world.restart(name)

    def _name(self) -> str:
        """A node; in half of the cases one that leads."""
        leading = [keys.leader.node for keys in self._world.etcd.groups.values() if keys.leader is not None]
        if leading and self._random.random() < 0.5:
            return self._random.choice(leading)
        return self._random.choice(list(self._world.nodes))

    def _kill(self) -> None:
        name = self._name()
        self._world.kill(name)
        self._world.at(self._random.uniform(0.05, 15), partial(self._world.restart, name))

    def _pause(self) -> None:
        name = self._name()
        self._world.pause(name, "broker", "agent")
        self._world.at(self._random.uniform(0.5, 20), partial(self._world.resume, name))

    def _pause_agent(self) -> None:
        name = self._name()
        self._world.pause(name, "agent")
        self._world.at(self._random.uniform(0.5, 15), partial(self._world.resume, name))

    def _cut(self) -> None:
        one, other = self._random.sample([*self._world.nodes, ETCD], 2)
        self._world.cut(one, other, both=self._random.random() < 0.5)
        self._world.at(self._random.uniform(0.5, 15), self._world.heal)

    def _isolate(self) -> None:
        """A node loses some others, and perhaps etcd, while clients reach it."""
        name = self._name()
        for other in (*self._world.nodes, ETCD):
            if other != name and self._random.random() < 0.8:
                self._world.cut(name, other, both=self._random.random() < 0.7)
        self._world.at(self._random.uniform(0.5, 15), self._world.heal)

    def _etcd_away(self) -> None:
        if self._world.etcd.up:
            self._world.etcd.up = False
            self._world.at(self._random.uniform(0.5, 20), self._etcd_back)

    def _etcd_back(self) -> None:
        if not self._world.etcd.up:
            self._world.etcd.come_back()

    def _move(self) -> None:
        """A group goes to other nodes, of more than three."""
        names = self._random.sample(list(self._world.nodes), min(COPIES, len(self._world.nodes)))
        self._world.move(self._random.randrange(len(self._world.etcd.groups)), tuple(names))

    def _hand_over(self) -> None:
        """To a node that an operator names, in sync or not."""
        keys = self._world.etcd.groups[self._random.randrange(len(self._world.etcd.groups))]
        keys.successor = self._random.choice(list(self._world.nodes))
        self._world.at(self._random.uniform(0.5, 5), partial(setattr, keys, "successor", ""))

    def _leave(self) -> None:
        """A node, of those that are more than the copies, or an earlier leaver's return."""
        world = self._world
        away = sorted(world.nodes.keys() - set(world.etcd.nodes))
        if away and (len(world.etcd.nodes) <= COPIES or self._random.random() < 0.5):
            world.join(self._random.choice(away))
        elif len(world.etcd.nodes) > COPIES:
            world.leave(self._random.choice(world.etcd.nodes))


KINDS = ("move", "hand_over", "kill", "kill", "pause", "pause_agent", "cut", "cut", "isolate", "etcd_away")
SPREAD_KINDS = (*(kind for kind in KINDS if kind != "move"), "leave", "leave", "leave")


def run(
    seed: int, nodes: int = 3, groups: int = 1, defects: Defects | None = None, *, is_spread: bool = False
) -> World:
    """A run with faults. Raises Violation."""
    world = World(seed, nodes, groups, defects, is_spread=is_spread)
    world.every(PUBLISH_S / groups, world.publish)
    world.run(START_S)
    faults = Faults(world)
    faults.next()
    world.run(FAULTS_S)
    faults.end()
    world.run(CALM_S)
    world.require_whole()
    return world


def outage_s(seed: int, kind: str, nodes: int = 3) -> float:
    """The longest time without an acknowledgement after one fault of the leader: `kill`, `pause` or `cut`."""
    world = World(seed, nodes, 1)
    world.is_slow = False
    world.every(PUBLISH_S, world.publish)
    world.run(START_S + world.random.random())
    leader = world.etcd.groups[0].leader
    if leader is None:
        raise Violation("nobody leads after the start")
    if kind == "kill":
        world.kill(leader.node)
    elif kind == "pause":
        world.pause(leader.node, "broker", "agent")
        world.at(30, partial(world.resume, leader.node))
    else:
        for other in (*world.nodes, ETCD):
            if other != leader.node:
                world.cut(leader.node, other, both=True)
    began_s = world.now_s
    world.run(40)
    times_s = [began_s, *(at_s for at_s in world.ledgers[0].times_s if at_s >= began_s), world.now_s]
    return max(after - before for before, after in pairwise(times_s))


def first_found(defects: Defects, seeds: int, *, is_spread: bool = False) -> int | None:
    """The first seed that finds a planted defect: of three nodes and a group, or of five and three that are spread."""
    nodes, groups = (5, 3) if is_spread else (3, 1)
    for seed in range(1, seeds + 1):
        try:
            run(seed, nodes, groups, defects, is_spread=is_spread)
        except Violation:
            return seed
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--spread", action="store_true", help="each group is on three nodes by plan")
    parser.add_argument("--defect", choices=Defects._fields)
    given = parser.parse_args()
    defects = Defects(**{given.defect: True}) if given.defect else Defects()
    failed, acknowledged, began_s = 0, 0, time.monotonic()
    for seed in range(given.first, given.first + given.seeds):
        try:
            world = run(seed, given.nodes, given.groups, defects, is_spread=given.spread)
        except Violation as violation:
            failed += 1
            print(f"seed {seed}: {violation}", flush=True)
        else:
            acknowledged += sum(len(ledger.acknowledged) for ledger in world.ledgers.values())
    print(f"{given.seeds} seeds, {failed} failed, {acknowledged} acknowledged, {time.monotonic() - began_s:.1f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
