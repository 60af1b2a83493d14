"""A rate with a burst."""

from __future__ import annotations

import pytest

from tailrace.broker.connection.token_bucket import TokenBucket


def test_a_burst_is_free_and_then_the_rate_holds() -> None:
    bucket = TokenBucket(10, 20, 100.0)
    assert [bucket.take(1, 100.0) for _ in range(20)] == [0.0] * 20
    assert bucket.take(1, 100.0) == 0.1
    assert bucket.take(1, 100.0) == 0.2
    assert bucket.level(100.1) == pytest.approx(-1.0)
    assert bucket.level(1_000.0) == 20.0
    bucket.put_back(-25)
    assert bucket.take(0, 1_000.0) == 0.5
