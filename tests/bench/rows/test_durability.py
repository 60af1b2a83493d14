from __future__ import annotations

import shutil

import pytest

from bench.peers.tailrace import Tailrace
from bench.rows.durability import always_row, interval_row
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_each_row_has_its_own_configuration() -> None:
    peer = Tailrace()
    always, interval = always_row().suited(peer), interval_row().suited(peer)
    assert isinstance(always, Tailrace) and isinstance(interval, Tailrace)
    assert 'durability = "always"' in always.config
    assert "interval_ms = 10" in interval.config
    assert peer.config == "" and peer.flush_ms == always.flush_ms == 0
    slow = always_row(4).suited(peer)
    assert isinstance(slow, Tailrace) and slow.flush_ms == 4 and slow.config == always.config
    assert [always_row(flush_ms).name for flush_ms in (0, 4)] == ["always-200", "always-200-flush-4ms"]


@pytest.mark.thorough
@pytest.mark.system
def test_publishes_to_many_streams_are_timed_until_they_are_on_the_disk(
    measure_row: MeasureRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.rows.durability.ROUNDS", 4)
    peer = Tailrace(interpreted=interpreted_wanted())
    always = measure_row(always_row(), peer)
    assert always.extras["200_streams_ms"] == always.value
    assert always.extras["bare_ms"] > 0
    assert always.extras["times_one_stream"] == always.value / always.extras["1_streams_ms"]
    if shutil.which("cc"):
        slow = measure_row(always_row(4), peer)
        assert slow.extras["1_streams_ms"] >= 4 and slow.extras["disk_sync_ms"] >= 4
    interval = measure_row(interval_row(), peer)
    assert 0 < interval.extras["median_ms"] <= interval.value
