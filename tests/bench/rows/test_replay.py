from __future__ import annotations

import pytest

from bench.peers.plain import BareSendfile
from bench.peers.tailrace import Tailrace
from bench.rows.replay import FILL_MESSAGES, ReplayRow, replay_messages
from bench.scale import FULL, Scale
from shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow


def test_a_full_replay_is_about_a_gigabyte() -> None:
    messages = replay_messages(FULL)
    assert messages % FILL_MESSAGES == 0
    assert 0.99e9 < Tailrace().delivered_bytes("b.000000", messages, FULL.payload_bytes) < 1.02e9
    assert replay_messages(FULL, 5) == pytest.approx(messages / 5, rel=0.01)
    assert replay_messages(Scale(replay_bytes=1)) == FILL_MESSAGES


def test_bare_sendfile_needs_no_filling(measure_row: MeasureRow) -> None:
    measure_row(ReplayRow(2), BareSendfile(3_000_000))


@pytest.mark.slow
@pytest.mark.system
def test_what_was_filled_comes_back(measure_row: MeasureRow) -> None:
    measured = measure_row(ReplayRow(2), Tailrace(interpreted=interpreted_wanted()))
    assert measured.extras["messages_per_s"] > 0
