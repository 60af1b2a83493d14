from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.peers.base import RequestStep
from bench.peers.plain import Plain
from bench.rows.base import RowRun, cpu_us
from bench.scale import FULL
from bench.server import PeerServer, fresh_site


class _Telling(Plain):
    """Its stored messages are those set here."""

    def stored(self, name: str, messages: int) -> RequestStep:
        return RequestStep(b"P", b"p" if messages == 3 else b"other")


def test_a_stream_that_lost_messages_is_an_error(tmp_path: Path) -> None:
    peer = _Telling(100)
    with fresh_site(tmp_path, peer.name) as site, PeerServer(peer, site) as server:
        run = RowRun(peer, server, FULL)
        run.check_stored("b.000000", 3)
        with pytest.raises(LoadError, match="does not hold the 4 messages"):
            run.check_stored("b.000000", 4, timeout_s=0.3)


def test_processor_time_is_for_each() -> None:
    assert cpu_us(Spent(wall_s=9.0, cpu_s=2.0), 4_000) == 500
