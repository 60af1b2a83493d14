"""Which faults come over a tree of nodes, and when: a seed decides it all, and nothing is asked of clocks or processes.

Faults of different nodes may overlap; those of one node do not, and leave it time to come back in between. All are over
when the time is. If there is time for it, each kind comes at least once.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

SEED_VARIABLE = "TAILRACE_TEST_SEED"
LENGTH_VARIABLE = "TAILRACE_FAULTS_S"
LENGTH_S = 12.0

AT_ONCE_MAX = 3  # faults
PAUSE_S = 1.5  # at least, between two of one node
EVERY_S = 1.2  # about: the mean time from one to the next
DELAYS_MS = (5, 60)
LOSSES_PERCENT = (0.5, 5.0)


class Kind(Enum):
    KILL_NODE = "node killed"
    CUT_LINK = "link cut"
    IMPAIR_LINK = "link slow and lossy"
    KILL_WORKER = "worker killed"
    PAUSE_NODE = "node paused"
    REBUILD = "node rebuilt from nothing"


LASTS_S = {
    Kind.KILL_NODE: (0.1, 2.0),
    Kind.CUT_LINK: (0.5, 3.0),
    Kind.IMPAIR_LINK: (1.0, 4.0),
    Kind.KILL_WORKER: (0.0, 0.0),
    Kind.PAUSE_NODE: (0.5, 2.5),
    Kind.REBUILD: (0.1, 1.0),
}
"""The shortest and the longest time from when a fault begins to when it is taken back."""


class Fault(NamedTuple):
    """Times in seconds from the start. `slot` is the worker's, as a part of all: 0 the first, just below 1 the last."""

    at_s: float
    lasts_s: float
    kind: Kind
    node: str
    delay_ms: int = 0
    loss_percent: float = 0.0
    slot: float = 0.0

    @property
    def end_s(self) -> float:
        return self.at_s + self.lasts_s

    def __str__(self) -> str:
        link = f", {self.delay_ms} ms and {self.loss_percent} %" if self.kind is Kind.IMPAIR_LINK else ""
        return f"{self.at_s:6.2f} s: {self.node}: {self.kind.value}{link}, for {self.lasts_s:.2f} s"


class Step(NamedTuple):
    """A fault begins, or is taken back."""

    at_s: float
    begins: bool
    fault: Fault


def chosen_seed() -> int:
    """A new one each time; printed, so that a failure shows it, and taken back from the environment."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1 << 32))
    print(f"{SEED_VARIABLE}={seed}")
    return seed


def chosen_length_s(default_s: float = LENGTH_S) -> float:
    """How long the faults go on. The seed's schedule depends on it, so it is printed as well."""
    length_s = float(os.environ.get(LENGTH_VARIABLE) or default_s)
    print(f"{LENGTH_VARIABLE}={length_s:g}")
    return length_s


def schedule(seed: int, nodes: Sequence[str], top: str, length_s: float) -> list[Fault]:
    """The faults, in the order they begin. The top is never rebuilt: nobody else has its messages."""
    dice = random.Random(seed)
    possible = [kind for kind in Kind if kind is not Kind.REBUILD or len(nodes) > 1]
    kinds = dice.sample(possible, len(possible))
    faults: list[Fault] = []
    at_s = dice.uniform(0, EVERY_S)
    while at_s < length_s:
        kind = kinds.pop() if kinds else dice.choice(possible)
        fault = _fault(dice, kind, at_s, length_s, _free(faults, nodes, top, kind, at_s))
        if fault is not None:
            faults.append(fault)
        elif len(faults) < len(possible):
            kinds.append(kind)  # so that it comes all the same
        at_s += dice.uniform(0.2, 2 * EVERY_S - 0.2)
    return faults


def _free(faults: Sequence[Fault], nodes: Sequence[str], top: str, kind: Kind, at_s: float) -> list[str]:
    """The nodes that a fault of this kind may come over now."""
    under_way = [fault for fault in faults if fault.end_s > at_s]
    if len(under_way) >= AT_ONCE_MAX:
        return []
    busy = {fault.node for fault in faults if fault.end_s + PAUSE_S > at_s}
    return [node for node in nodes if node not in busy and not (kind is Kind.REBUILD and node == top)]


def _fault(dice: random.Random, kind: Kind, at_s: float, length_s: float, nodes: list[str]) -> Fault | None:
    """A fault of this kind over one of the nodes; None if no node allows it or no time is left for it."""
    shortest_s, longest_s = LASTS_S[kind]
    longest_s = min(longest_s, length_s - at_s)
    if not nodes or longest_s < shortest_s:
        return None
    return Fault(
        round(at_s, 3),
        round(dice.uniform(shortest_s, longest_s), 3),
        kind,
        dice.choice(nodes),
        dice.randint(*DELAYS_MS) if kind is Kind.IMPAIR_LINK else 0,
        round(dice.uniform(*LOSSES_PERCENT), 1) if kind is Kind.IMPAIR_LINK else 0.0,
        dice.random() if kind is Kind.KILL_WORKER else 0.0,
    )


def steps(faults: Sequence[Fault]) -> list[Step]:
    """Beginnings and ends, in the order they come; what ends goes before what begins at the same time."""
    begins = [Step(fault.at_s, True, fault) for fault in faults]
    ends = [Step(fault.end_s, False, fault) for fault in faults if fault.kind is not Kind.KILL_WORKER]
    return sorted([*ends, *begins], key=lambda step: step.at_s)
