"""Pauses between tries."""

from __future__ import annotations

import random

import pytest

from tailrace.core.backoff import BRIEF_MOST_S, MOST_S, Backoff, backoff_after


def test_pauses_double_up_to_a_bound() -> None:
    backoff = Backoff(lambda: 1.0, first_s=1.0, most_s=5.0)
    assert [backoff.next_s() for _ in range(5)] == pytest.approx([1.0, 2.0, 4.0, 5.0, 5.0])
    assert backoff.tries == 5
    backoff.reset()
    assert backoff.next_s() == pytest.approx(1.0)


def test_pauses_differ_and_stay_in_their_half() -> None:
    backoff = Backoff(random.Random(1).random)
    for _ in range(10_000):
        backoff.next_s()
    late = [backoff.next_s() for _ in range(100)]
    assert all(MOST_S / 2 <= each <= MOST_S for each in late)
    assert len(set(late)) > 90


@pytest.mark.parametrize(("code", "most_s"), [("unavailable", BRIEF_MOST_S), ("overloaded", MOST_S)])
def test_a_worker_that_is_down_is_soon_back(code: str, most_s: float) -> None:
    backoff = backoff_after(code, lambda: 1.0)
    assert [backoff.next_s() for _ in range(20)][-1] == most_s
