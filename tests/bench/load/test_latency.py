from __future__ import annotations

import pytest

from bench.load.latency import latency
from bench.load.limits import Deadline
from bench.peers.base import make_payload
from bench.peers.plain import Plain
from bench.server import Server

NAME = "b.000000"


def test_every_message_is_timed(silent_server: Server, silent: Plain) -> None:
    timed = latency(silent, silent_server.target, NAME, make_payload(100), 2_000, 400, Deadline(20))
    assert len(timed.latencies_ns) == 400
    assert all(0 < latency_ns < 20e9 for latency_ns in timed.latencies_ns)
    assert timed.spent.wall_s >= 400 / 2_000


def test_a_payload_without_room_for_the_stamp_is_refused(silent_server: Server, silent: Plain) -> None:
    with pytest.raises(ValueError, match="no room for a stamp"):
        latency(silent, silent_server.target, NAME, make_payload(10), 1_000, 1, Deadline(20))
