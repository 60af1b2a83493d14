from __future__ import annotations

import random
from collections.abc import Callable

from tailrace.supervisor.backoff import CALM_S, LEAST_PART, MOST_S, count_death, delay_s

KILL_EVERY_S = 0.4
START_S = 0.3  # from when a process is there until it serves
SIMULATED_S = 900.0
TIMEOUT_S = 30.0  # of a call of the client


def test_the_first_restart_is_immediate_and_the_delay_has_an_end() -> None:
    assert delay_s(0) == delay_s(1) == 0.0
    delays = [delay_s(deaths, lambda: 1.0) for deaths in range(1, 40)]
    assert delays == sorted(delays)
    assert delays[-1] == MOST_S == delay_s(10_000, lambda: 1.0)


def test_delays_differ_so_that_nothing_keeps_step_with_them() -> None:
    delays = [delay_s(100) for _ in range(100)]
    assert all(LEAST_PART * MOST_S <= each <= MOST_S for each in delays)
    assert max(delays) - min(delays) > MOST_S / 2 and len(set(delays)) > 90


def test_a_30_s_time_out_of_a_call_is_rare_while_a_worker_is_killed_each_0_4_s() -> None:
    """A publish that comes to one worker and belongs to the other needs both. With delays that are always the same,
    the killing kept step with the restarts, no two workers were up at the same time, and each such call timed out.
    """
    assert not served(lambda: 1.0), "otherwise this does not show what it is about"
    windows = [window for seed in range(4) for window in served(random.Random(seed).random)]
    assert len(windows) > 0.9 * 4 * SIMULATED_S / TIMEOUT_S


def served(chance: Callable[[], float]) -> set[int]:
    """The time-outs, one after the other, in which two workers serve at the same time."""
    return {int(end_s / TIMEOUT_S) for _begin_s, end_s in both_up(chance) if end_s > TIMEOUT_S}


def both_up(chance: Callable[[], float]) -> list[tuple[float, float]]:
    """From when until when two workers serve at the same time, while they are killed by turns as soon as they exist."""
    up: list[list[tuple[float, float]]] = [[], []]
    exists_s, deaths = [0.0, 0.0], [0, 0]
    for kill in range(int(SIMULATED_S / KILL_EVERY_S)):
        now_s, slot = kill * KILL_EVERY_S, kill % 2
        if exists_s[slot] <= now_s:
            up[slot].append((exists_s[slot] + START_S, now_s))
            deaths[slot] = count_death(deaths[slot], now_s - exists_s[slot])
            exists_s[slot] = now_s + delay_s(deaths[slot], chance)
    shared = [(max(a, c), min(b, d)) for a, b in up[0] for c, d in up[1] if abs(a - c) < CALM_S]
    return [(begin_s, end_s) for begin_s, end_s in shared if begin_s < end_s]


def test_a_long_life_is_forgiven() -> None:
    assert count_death(5, CALM_S / 2) == 6
    assert count_death(5, CALM_S * 2) == 1
