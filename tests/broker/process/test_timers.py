from __future__ import annotations

import pytest

from tailrace.broker.process.timers import Timers


def test_tasks_run_at_their_intervals_and_late_ones_once() -> None:
    now_s = 0.0
    timers = Timers(lambda: now_s)
    ran: list[str] = []
    timers.every(1.0, lambda: ran.append("often"))
    timers.every(5.0, lambda: ran.append("seldom"))
    timers.run_due(0.5)
    assert ran == []
    timers.run_due(1.0)
    assert ran == ["often"]
    timers.run_due(30.0)
    assert ran == ["often", "often", "seldom"]
    timers.run_due(30.5)
    assert len(ran) == 3


def test_an_interval_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="over 0"):
        Timers(lambda: 0.0).every(0, lambda: None)


def test_two_tasks_of_the_same_interval_may_run_at_different_times() -> None:
    now_s = 0.0
    timers = Timers(lambda: now_s)
    ran: list[str] = []
    timers.every(1.0, lambda: ran.append("one"))
    timers.every(1.0, lambda: ran.append("other"), first_s=1.5)
    seen = []
    for now_s in (1.0, 1.5, 2.0, 2.5):
        timers.run_due(now_s)
        seen.append(ran.copy())
        ran.clear()
    assert seen == [["one"], ["other"], ["one"], ["other"]]
