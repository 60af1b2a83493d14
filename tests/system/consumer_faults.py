"""Which faults come over the members of a consumer, and when, by a seed. consumer_members carries them out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from enum import Enum
from itertools import chain
from typing import NamedTuple

EVERY_S = 0.8
PAUSE_S = 0.5  # at least, between two changes of one member


class Change(Enum):
    KILL = "killed"
    PAUSE = "paused"
    LEAVE = "left"


LASTS_S: dict[Change, tuple[float, float]] = {
    Change.KILL: (0.0, 1.5),
    Change.PAUSE: (0.2, 2.5),
    Change.LEAVE: (0.2, 1.5),
}
"""The shortest and the longest time until the member is back."""


class Shift(NamedTuple):
    """Times in seconds from the start."""

    at_s: float
    lasts_s: float
    change: Change
    member: str

    def __str__(self) -> str:
        return f"{self.at_s:6.2f} s: {self.member} {self.change.value} for {self.lasts_s:.2f} s"


def shifts(seed: int, members: Sequence[str], length_s: float) -> list[Shift]:
    """In the order they begin. All are over when the time is; several members may be away at once, or all."""
    dice = random.Random(f"members {seed}")
    free_s = dict.fromkeys(members, 0.0)
    found: list[Shift] = []
    at_s = dice.uniform(0, EVERY_S)
    while at_s < length_s:
        member, change = dice.choice(list(members)), dice.choice(list(Change))
        lasts_s = min(dice.uniform(*LASTS_S[change]), length_s - at_s)
        if free_s[member] <= at_s:
            found.append(Shift(round(at_s, 3), round(lasts_s, 3), change, member))
            free_s[member] = at_s + lasts_s + PAUSE_S
        at_s += dice.uniform(0.1, 2 * EVERY_S - 0.1)
    return found


class Step(NamedTuple):
    """A change comes, or the member is back."""

    at_s: float
    begins: bool
    shift: Shift


def steps(plan: Sequence[Shift]) -> list[Step]:
    """In the order they come; also of a member that is back at once."""
    pairs = [(Step(each.at_s, True, each), Step(each.at_s + each.lasts_s, False, each)) for each in plan]
    return sorted(chain.from_iterable(pairs), key=lambda step: step.at_s)
