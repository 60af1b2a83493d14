"""Pauses between tries."""

from __future__ import annotations

import random

import pytest

from tailrace.backoff import MOST_S, Backoff


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
