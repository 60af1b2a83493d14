from __future__ import annotations

import pytest

from bench.peers.base import Peer
from bench.peers.plain import BareSendfile
from bench.peers.tailrace import Tailrace
from bench.peers.tailrace_binary import TailraceBinary
from bench.rows.replay import FILL_MESSAGES, ReplayRow, replay_messages
from bench.scale import FULL, Scale
from tailrace.shard.leaves import interpreted_wanted
from tests.bench.rows.conftest import MeasureRow

OURS = [kind(interpreted=interpreted_wanted()) for kind in (Tailrace, TailraceBinary)]


def test_a_full_replay_is_about_a_gigabyte() -> None:
    messages = replay_messages(FULL)
    assert messages % FILL_MESSAGES == 0
    assert 0.99e9 < TailraceBinary().replay_bytes("b.000000", messages, FULL.payload_bytes) < 1.01e9
    assert replay_messages(FULL, 5) == pytest.approx(messages / 5, rel=0.01)
    assert replay_messages(Scale(replay_bytes=1)) == FILL_MESSAGES


def test_bare_sendfile_needs_no_filling(measure_row: MeasureRow) -> None:
    measure_row(ReplayRow(2), BareSendfile(3_000_000))


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("peer", OURS, ids=lambda peer: str(peer.name))
def test_what_was_filled_comes_back(measure_row: MeasureRow, peer: Peer) -> None:
    measured = measure_row(ReplayRow(2), peer)
    assert measured.extras["messages_per_s"] > 0
