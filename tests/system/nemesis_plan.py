"""What a nemesis does to a tree of nodes, and when: a seed decides it all, and a plan can be written down and read
again.

A plan is for one round: a tree, and phases of faults and of an operator's commands. At the end of each phase everything
is healed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

NODES = (3, 5)
WORKERS_MAX = 2
AT_ONCE_MAX = 3  # faults
EVERY_S = 1.3  # about: the mean time from one event to the next
PROMOTED_PERCENT = 60  # after a fault that may take the master away
PROMOTED_AFTER_S = (0.2, 3.0)
DELETED_PERCENT = 60  # of phases, beside those that come by chance, when hardly a failover follows any more
DELETED_BEFORE_END_S = (0.1, 2.0)


class Kind(Enum):
    KILL = "kill"  # all processes; started again at its end
    STOP = "stop"  # SIGSTOP
    SPLIT = "split"  # a partition between `nodes` and the others
    ONE_WAY = "one way"  # nothing goes from `nodes` to the others
    FULL = "full disk"
    RELOAD = "reload"  # SIGHUP
    PROMOTE = "promote"  # an operator who reaches the first of `nodes` fails over
    REPARENT = "re-parent"  # the first of `nodes` is made to follow the second
    DELETE = "delete"  # an operator who reaches the first of `nodes` deletes streams


LASTS_S = {
    Kind.KILL: (0.1, 6.0),
    Kind.STOP: (0.3, 6.0),
    Kind.SPLIT: (0.5, 7.0),
    Kind.ONE_WAY: (0.5, 7.0),
    Kind.FULL: (0.5, 4.0),
}
"""The shortest and the longest time of those kinds that last."""
WEIGHTS = {
    Kind.KILL: 4,
    Kind.STOP: 3,
    Kind.SPLIT: 4,
    Kind.ONE_WAY: 2,
    Kind.FULL: 1,
    Kind.RELOAD: 2,
    Kind.PROMOTE: 3,
    Kind.REPARENT: 3,
    Kind.DELETE: 3,
}
TAKES_AWAY = (Kind.KILL, Kind.STOP, Kind.SPLIT, Kind.ONE_WAY)


class Event(NamedTuple):
    """Times in seconds from the beginning of the phase; `lasts_s` is 0 where the kind does not last."""

    at_s: float
    kind: Kind
    nodes: tuple[str, ...]
    lasts_s: float = 0.0

    @property
    def end_s(self) -> float:
        return self.at_s + self.lasts_s

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        return f"{self.at_s:6.2f} s: {self.kind.value} {' '.join(self.nodes)}{lasts}"


class Plan(NamedTuple):
    """`parents`: the upstream of each node at first, from the top on. `replicas`: how many each replicated publish asks
    for.
    """

    seed: int
    parents: dict[str, str | None]
    replicas: int
    workers: int
    phases: tuple[tuple[Event, ...], ...]

    def to_json(self) -> str:
        phases = [[[each.at_s, each.kind.value, each.nodes, each.lasts_s] for each in phase] for phase in self.phases]
        return json.dumps({**self._asdict(), "phases": phases})

    def __str__(self) -> str:
        tree = ", ".join(f"{name} < {parent}" for name, parent in self.parents.items() if parent)
        lines = [f"seed {self.seed}: {tree}; replicated {self.replicas}, {self.workers} workers"]
        for number, phase in enumerate(self.phases, 1):
            lines += [f"phase {number}:", *map(str, phase)]
        return "\n".join(lines)


def read_plan(text: str) -> Plan:
    """The plan of a `Plan.to_json`."""
    found = json.loads(text)
    phases = tuple(
        tuple(Event(at_s, Kind(kind), tuple(nodes), lasts_s) for at_s, kind, nodes, lasts_s in phase)
        for phase in found["phases"]
    )
    return Plan(found["seed"], found["parents"], found["replicas"], found["workers"], phases)


def make_plan(seed: int, phases: int, phase_s: float, nodes: tuple[int, int] = NODES) -> Plan:
    """A tree of `nodes` nodes (fewest, most), and the faults that come over it. A majority of the nodes holds
    replicated messages.
    """
    dice = random.Random(seed)
    names = [f"n{number}" for number in range(1, dice.randint(*nodes) + 1)]
    parents: dict[str, str | None] = {names[0]: None}
    for name in names[1:]:
        parents[name] = dice.choice(list(parents))
    workers = dice.randint(1, WORKERS_MAX)
    made = tuple(tuple(_events(dice, names, phase_s)) for _ in range(phases))
    return Plan(seed, parents, len(names) // 2, workers, made)


def _events(dice: random.Random, names: list[str], phase_s: float) -> list[Event]:
    found: list[Event] = []
    at_s = dice.uniform(0.0, EVERY_S)
    while at_s < phase_s:
        kind = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        found += _made(dice, names, kind, round(at_s, 2), phase_s, found)
        at_s += dice.uniform(0.2, 2 * EVERY_S - 0.2)
    if dice.randrange(100) < DELETED_PERCENT:
        deleted_s = round(max(0.0, phase_s - dice.uniform(*DELETED_BEFORE_END_S)), 2)
        found.append(Event(deleted_s, Kind.DELETE, (dice.choice(names),)))
    return sorted(found, key=lambda event: event.at_s)


def _made(
    dice: random.Random, names: list[str], kind: Kind, at_s: float, phase_s: float, before: list[Event]
) -> Iterator[Event]:
    """An event of this kind, if it can be, and perhaps the promotion that answers it."""
    under_way = [event for event in before if event.lasts_s and event.end_s > at_s]
    shortest_s, longest_s = LASTS_S.get(kind, (0.0, 0.0))
    lasts_s = round(min(dice.uniform(shortest_s, longest_s), phase_s - at_s), 2)
    if kind in LASTS_S and (len(under_way) >= AT_ONCE_MAX or lasts_s < shortest_s):
        return
    if kind in (Kind.SPLIT, Kind.ONE_WAY):
        chosen = dice.sample(names, dice.randint(1, len(names) - 1))
    elif kind is Kind.REPARENT:
        chosen = dice.sample(names, 2)
    else:
        busy = {event.nodes[0] for event in under_way if event.kind in (Kind.KILL, Kind.STOP, kind)}
        chosen = [dice.choice([name for name in names if kind is Kind.PROMOTE or name not in busy] or names)]
    yield Event(at_s, kind, tuple(chosen), lasts_s)
    others = [name for name in names if name not in chosen]
    promoted_s = at_s + dice.uniform(*PROMOTED_AFTER_S)
    if kind in TAKES_AWAY and others and promoted_s < phase_s and dice.randrange(100) < PROMOTED_PERCENT:
        yield Event(round(promoted_s, 2), Kind.PROMOTE, (dice.choice(others),))
