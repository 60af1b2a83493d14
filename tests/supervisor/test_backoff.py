from __future__ import annotations

from tailrace.supervisor.backoff import CALM_S, LEAST_PART, MOST_S, count_death, delay_s


def test_the_first_restart_is_immediate_and_the_delay_has_an_end() -> None:
    assert delay_s(0) == delay_s(1) == 0.0
    delays = [delay_s(deaths, lambda: 1.0) for deaths in range(1, 40)]
    assert delays == sorted(delays)
    assert delays[-1] == MOST_S == delay_s(10_000, lambda: 1.0)


def test_delays_differ_so_that_nothing_keeps_step_with_them() -> None:
    delays = [delay_s(100) for _ in range(100)]
    assert all(LEAST_PART * MOST_S <= each <= MOST_S for each in delays)
    assert max(delays) - min(delays) > MOST_S / 2 and len(set(delays)) > 90


def test_a_long_life_is_forgiven() -> None:
    assert count_death(5, CALM_S / 2) == 6
    assert count_death(5, CALM_S * 2) == 1
