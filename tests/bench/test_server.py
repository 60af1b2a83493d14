from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from bench import server as module
from bench.load.limits import LoadError
from bench.load.meter import ProcessTree
from bench.peers.base import RequestStep, Site
from bench.peers.plain import BareSendfile, Plain
from bench.server import PeerServer, fresh_site


class _Broken(Plain):
    def command(self, site: Site) -> list[str]:
        return [sys.executable, "-c", "raise SystemExit('no such luck')"]


def test_a_server_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with (
        fresh_site(tmp_path, "broken") as site,
        pytest.raises(LoadError, match=r"(?s)ended with code 1.*no such luck"),
        PeerServer(_Broken(100), site),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


class _Unwilling(Plain):
    def ready(self) -> list[RequestStep]:
        return []

    def prepare(self) -> list[RequestStep]:
        return [RequestStep(b"x", b"never said")]

    def command(self, site: Site) -> list[str]:
        return [sys.executable, "-c", _HANGS_UP, str(site.port)]


_HANGS_UP = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        connection, _ = listener.accept()
        with connection:
            if connection.recv(1):
                print("no, thank you", flush=True)
"""


def test_a_server_that_cannot_be_prepared_shows_its_log(tmp_path: Path) -> None:
    with (
        fresh_site(tmp_path, "unwilling") as site,
        pytest.raises(LoadError, match=r"(?s)could not be prepared: the server .* a connection.*no, thank you"),
        PeerServer(_Unwilling(100), site),
    ):
        pass


class _Deaf(Plain):
    def command(self, site: Site) -> list[str]:
        deaf = "import signal; signal.signal(signal.SIGTERM, lambda *_: print('not now', flush=True))"
        return [sys.executable, "-c", f"{deaf}\n{_HANGS_UP}", str(site.port)]

    def ready(self) -> list[RequestStep]:
        return []


def test_a_server_that_does_not_stop_is_killed_and_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fresh_site(tmp_path, "deaf") as site:
        deaf = PeerServer(_Deaf(100), site)
        deaf.start()
        process = psutil.Process(deaf.target.pid)
        monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.2)
        with pytest.raises(LoadError, match=r"(?s)did not stop within 0.2 s.*not now"):
            deaf.stop()
        assert not process.is_running()


def test_the_whole_group_is_gone_at_the_end(tmp_path: Path) -> None:
    with fresh_site(tmp_path, "bare") as site, PeerServer(BareSendfile(1_000), site) as server:
        processes = ProcessTree(server.target.pid).processes
        assert len(processes) == 3
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive


def test_a_server_can_be_started_again(tmp_path: Path) -> None:
    with fresh_site(tmp_path, "plain") as site, PeerServer(Plain(100), site) as server:
        first = server.target.pid
        assert server.stop() < 10
        assert server.start() < 10
        assert server.target.pid != first
