from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.load.limits import LoadError
from bench.load.meter import Meter, ProcessTree
from bench.peers.plain import BareSendfile
from bench.server import PeerServer, fresh_site


def test_the_meter_counts_the_tree(tmp_path: Path) -> None:
    with fresh_site(tmp_path, "bare") as site, PeerServer(BareSendfile(1_000), site) as server:
        tree = ProcessTree(server.target.pid)
        assert tree.peak_rss_bytes() > 10_000_000
        assert 0 < tree.private_bytes() < tree.peak_rss_bytes()
        assert len(tree.open_files()) == 3
        assert 0 < tree.rss_bytes() <= tree.peak_rss_bytes()
        assert 0 < tree.busy_s() < 5
        meter = Meter(server.target.pid)
        begin = time.monotonic()
        while time.monotonic() - begin < 0.05:
            pass
        spent = meter.stop()
        assert spent.wall_s >= 0.05
        assert spent.cpu_s <= 0.05 and spent.busy_s <= 0.05


def test_a_meter_has_busy_time_too() -> None:
    meter, begin = Meter(os.getpid()), time.thread_time()
    while time.thread_time() - begin < 0.05:
        pass
    assert meter.stop().busy_s >= 0.04


def test_busy_time_is_the_time_on_processors() -> None:
    tree = ProcessTree(os.getpid())
    before_s, begin = tree.busy_s(), time.thread_time()
    while time.thread_time() - begin < 0.05:
        pass
    assert tree.busy_s() - before_s >= 0.04


def test_a_process_that_has_ended_is_told() -> None:
    with pytest.raises(LoadError, match="has ended"):
        ProcessTree(2**22 - 1)
