"""Decides how long to wait before restarting a process that died. Pure.

The delays are partly random. With fixed ones, a cause that kills workers at a fixed pace can keep step with them: each
is killed as soon as it is back, no two are up at the same time, and some streams are never served.
"""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_S = 0.1
MOST_S = 1.0  # a worker that is killed again and again still comes back within the two seconds a node promises
LEAST_PART = 0.25  # of a delay
CALM_S = 10.0  # a process that lived this long has earned an immediate restart


def delay_s(quick_deaths: int, chance: Callable[[], float] = random.random) -> float:
    """The delay after the `quick_deaths`-th death in a row within CALM_S of a start; 0 for the first. `chance` returns
    0 up to 1: the delay is between a quarter of the value computed here and all of it.

    >>> [delay_s(n, lambda: 1.0) for n in (0, 1, 2, 3, 4)]
    [0.0, 0.0, 0.1, 0.2, 0.4]
    """
    if quick_deaths <= 1:
        return 0.0
    most_s = float(min(FIRST_S * 2.0 ** min(quick_deaths - 2, 16), MOST_S))
    return most_s * (LEAST_PART + (1.0 - LEAST_PART) * chance())


def count_death(quick_deaths: int, lived_s: float) -> int:
    """The new number of quick deaths in a row."""
    return quick_deaths + 1 if lived_s < CALM_S else 1
