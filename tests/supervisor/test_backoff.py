from __future__ import annotations

from supervisor.backoff import CALM_S, MOST_S, count_death, delay_s


def test_the_first_restart_is_immediate_and_the_delay_has_an_end() -> None:
    assert delay_s(0) == delay_s(1) == 0.0
    delays = [delay_s(deaths) for deaths in range(1, 40)]
    assert delays == sorted(delays)
    assert delays[-1] == MOST_S == delay_s(10_000)


def test_a_long_life_is_forgiven() -> None:
    assert count_death(5, CALM_S / 2) == 6
    assert count_death(5, CALM_S * 2) == 1
