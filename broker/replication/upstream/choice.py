"""Which of the nodes in its list a slave follows, and when it tries the next one. Pure.

The one that it follows is kept for as long as it leads to a master. One that has not done so for `switch_s`, because it
is gone, is left for the others in the order of the list; one that is there, and has lost its own upstream, gets three
times as long to find another, so that a tree moves where it broke and not below that. A node that is tried is not yet
followed: one that is below this one refuses (`replica_state.require_no_cycle`), and an earlier term or
another history is waited for as ever (`broker.replication.upstream.decide`). Nobody returns to the head of the list
because it is back.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

DIAL_S, DIAL_MAX_S = 0.1, 5.0
"""Between two attempts, from the first to later ones; half of it is chance."""
SPREAD: Final = 1.3
"""The nodes below a lost one leave it within this many times `switch_s`, not all at the same moment."""
ORPHAN_FACTOR: Final = 3
"""A node that was followed may be without a master for this many times `switch_s`."""
TRIAL_FACTOR_MAX: Final = 16
"""One that is tried gets `switch_s` in the first round of the list, and twice as long in each later one, up to this."""
PAUSES_MAX: Final = 16  # doublings that are counted


class UpstreamChoice:
    """`index`: the node in the list; `dial_s`: when it is to be connected to. `chance`: as `random.uniform`."""

    __slots__ = (
        "_chance",
        "_count",
        "_followed",
        "_good_s",
        "_left",
        "_patience_s",
        "_rounds",
        "_switch_s",
        "dial_s",
        "index",
        "pauses",
    )

    def __init__(self, count: int, switch_s: float, chance: Callable[[float, float], float] = random.uniform) -> None:
        self._count = count
        self._switch_s = switch_s
        self._chance = chance
        self.index = self._followed = 0
        self.dial_s = 0.0
        self.pauses = 0
        # When the node in the list that was followed last led to a master for the last time.
        self._good_s = float("inf")
        self._patience_s = switch_s * chance(1.0, SPREAD)
        self._left: list[int] = []  # of this round of the list
        self._rounds = 0  # since a node led to a master

    @property
    def attempt_s(self) -> float:
        """How long a connection may take to be made; without an alternative any time is better than none."""
        return self._switch_s if self._count > 1 else float("inf")

    def leads(self, answered_s: float) -> bool:
        """The node led to a master at its latest answer. Returns whether another one was followed before."""
        self._good_s = max(self._good_s, answered_s)
        if self._rounds:
            self._rounds, self._left = 0, []
            self._patience_s = self._switch_s * self._chance(1.0, SPREAD)
        former, self._followed = self._followed, self.index
        return former != self.index

    def is_useless(self, up_s: float, now_s: float) -> bool:
        """Whether to leave a node that is connected since `up_s` and leads to no master."""
        factor = min(2 ** (self._rounds - 1), TRIAL_FACTOR_MAX) if self._rounds else ORPHAN_FACTOR
        return self._count > 1 and now_s - max(up_s, self._good_s) > factor * self._patience_s

    def failed(self, now_s: float, *, was_steady: bool, most_s: float = DIAL_MAX_S, for_good: bool = False) -> None:
        """The connection has ended, or could not be made. `for_good`: this node cannot be followed."""
        if was_steady and not self._rounds:
            self.pauses = 0
        self.dial_s = now_s + min(DIAL_S * 2.0**self.pauses, most_s) * self._chance(0.5, 1.0)
        self.pauses = min(self.pauses + 1, PAUSES_MAX)
        if self._count > 1 and not self._rounds:
            self._good_s = min(self._good_s, now_s - self._patience_s) if for_good else self._good_s
            self.dial_s = min(self.dial_s, max(now_s, self._good_s + self._patience_s))

    def dial(self, now_s: float) -> int:
        """The index of the node to connect to now."""
        if self._count == 1 or now_s < self._good_s + self._patience_s:
            self._good_s = min(self._good_s, now_s)  # the first time
            return self.index
        if not self._rounds:
            self.pauses = 0
        if not self._left:
            self._left = [each for each in range(self._count) if each != self.index] + [self.index]
            self._rounds += 1
        self.index = self._left.pop(0)
        return self.index
