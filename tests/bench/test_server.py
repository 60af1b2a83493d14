from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from bench.load.limits import LoadError
from bench.load.meter import ProcessTree
from bench.peers.base import Site
from bench.peers.plain import BareSendfile, Plain
from bench.server import Server, fresh_site


class _Broken(Plain):
    def command(self, site: Site) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no such luck')"]


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with (
        fresh_site(tmp_path, "broken") as site,
        pytest.raises(LoadError, match=r"(?s)ended with code 1.*no such luck"),
        Server(_Broken(100), site),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_whole_group_is_gone_at_the_end(tmp_path: Path) -> None:
    with fresh_site(tmp_path, "bare") as site, Server(BareSendfile(1_000), site) as server:
        processes = ProcessTree(server.target.pid).processes
        assert len(processes) == 3
    _, alive = psutil.wait_procs(processes, timeout=10)
    assert not alive


def test_a_server_can_be_started_again(tmp_path: Path) -> None:
    with fresh_site(tmp_path, "plain") as site, Server(Plain(100), site) as server:
        first = server.target.pid
        assert server.stop() < 10
        assert server.start() < 10
        assert server.target.pid != first
