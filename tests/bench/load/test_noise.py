from __future__ import annotations

from pathlib import Path

import pytest

from bench.load.limits import Deadline, LoadError
from bench.load.noise import Noise
from bench.peers.plain import BareSendfile
from bench.server import Server, fresh_site

FILE_BYTES = 3_000_000


def test_it_goes_on_and_on(tmp_path: Path) -> None:
    peer = BareSendfile(FILE_BYTES)
    with fresh_site(tmp_path, peer.name) as site, Server(peer, site) as server:
        deadline = Deadline(20)
        with Noise(peer, server.target.port, "b.000000", 10, 100, deadline) as noise:
            assert noise.received_bytes > 0
            while noise.received_bytes < 5 * FILE_BYTES:
                deadline.check("waiting for noise")
            assert noise.per_s() > 0
        with pytest.raises(LoadError, match="has ended"):
            _ = noise.received_bytes


def test_a_server_that_is_gone_ends_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    peer = BareSendfile(FILE_BYTES)
    with fresh_site(tmp_path, peer.name) as site, Server(peer, site) as server:
        deadline = Deadline(20)
        with Noise(peer, server.target.port, "b.000000", 10, 100, deadline) as noise:
            server.stop()
            with pytest.raises(LoadError, match="has ended"):
                while noise.received_bytes:
                    deadline.check("waiting for its end")
    assert "bench.load.limits." in capfd.readouterr().err
