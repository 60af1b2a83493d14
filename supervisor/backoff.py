"""How long to wait before a process that died is started again: a pure decision."""

from __future__ import annotations

FIRST_S = 0.1
MOST_S = 1.0  # a worker that is killed again and again still comes back within the two seconds a node promises
CALM_S = 10.0  # a process that lived this long has earned an immediate restart


def delay_s(quick_deaths: int) -> float:
    """The delay after the `quick_deaths`-th death in a row within CALM_S of a start; 0 for the first.

    >>> [delay_s(n) for n in (0, 1, 2, 3, 4)]
    [0.0, 0.0, 0.1, 0.2, 0.4]
    """
    if quick_deaths <= 1:
        return 0.0
    return float(min(FIRST_S * 2.0 ** min(quick_deaths - 2, 16), MOST_S))


def count_death(quick_deaths: int, lived_s: float) -> int:
    """The new number of quick deaths in a row."""
    return quick_deaths + 1 if lived_s < CALM_S else 1
