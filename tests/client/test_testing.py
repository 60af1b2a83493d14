"""The broker for tests of applications."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

import tailrace
from tailrace.shard.memory_directory import memory_path
from tailrace.testing import _CHILD, Server, StartFailed
from tests.system.node import PATIENCE_S, wait_for


def payloads(client: tailrace.Client) -> list[bytes]:
    return [bytes(message.payload) for message in client.subscribe("orders", end=tailrace.NOW)]


def test_an_outage_and_a_crash() -> None:
    with Server() as server:
        with server.connect() as client:
            client.publish("orders", b"one")
            address = server.address
            server.stop()
            server.start()
            client.publish("orders", b"two")
            server.kill()
            server.start()
            assert server.address == address
            assert payloads(client) == [b"one", b"two"]
        with urllib.request.urlopen(server.metrics_url) as page:
            assert b"tailrace_" in page.read()
        data = server.data
        assert data.is_dir()
    assert not data.parent.exists()
    with pytest.raises(ValueError, match="closed"):
        _ = server.log


@pytest.mark.thorough
def test_a_folder_with_a_long_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    with Server() as server, server.connect() as client:
        client.publish("orders", b"one")
        assert server.data.is_relative_to(folder)


def test_modules_of_the_application_are_not_those_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "http.py").write_text("raise ImportError('the one of the application')")
    monkeypatch.chdir(tmp_path)
    with Server() as server, server.connect() as client:
        assert client.publish("orders", b"one").seq == 0


@pytest.mark.thorough
def test_settings_and_policies(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="log_level"):
        Server(log_level="warning")
    config = tmp_path / "tailrace.toml"
    config.write_text("[limits]\nmax_message_bytes = 100\n")
    with Server(config=config, auto_master=False) as server, server.connect() as client:
        with pytest.raises(tailrace.MessageTooLarge):
            client.publish("orders", bytes(101))
        with pytest.raises(tailrace.StreamDisabled):
            client.publish("orders", b"one")


def test_a_broker_that_cannot_start(tmp_path: Path) -> None:
    server = Server(config=tmp_path / "absent.toml")
    with pytest.raises(StartFailed, match=r"ended while it started: .*absent\.toml"):
        server.start()
    server.close()


def test_its_log_has_no_warnings() -> None:
    """The broker tells how it is until it ends."""
    with Server() as server:
        server.stop()
        assert "has left" in server.log and "WARNING" not in server.log


def test_it_does_not_start_for_a_process_that_is_gone(tmp_path: Path) -> None:
    """That was killed while its broker was being started: no signal comes of a pipe that is closed already."""
    end, other = os.pipe()
    os.close(other)
    with os.fdopen(end) as closed:
        command = [sys.executable, "-P", "-c", _CHILD, "serve", "--data", str(tmp_path / "data"), "--port", "0"]
        done = subprocess.run(command, stdin=closed, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0 and not (tmp_path / "data").exists()


IN_MEMORY = """
import pathlib, tailrace
from tailrace.testing import Server
config = pathlib.Path(CONFIG)
config.write_text('[[stream]]\\npattern = "live"\\ndurability = "memory"')
server = Server(config=config)
server.start()
with server.connect() as client:
    client.publish("live", b"1")
"""


@pytest.mark.few(1)
@pytest.mark.parametrize("last", ["", "server.stop()", "server.kill()"])
def test_nothing_is_left_of_a_process_that_is_killed(tmp_path: Path, last: str) -> None:
    """With its broker running, stopped or killed."""
    program = IN_MEMORY.replace("CONFIG", repr(str(tmp_path / "config.toml"))) + last
    program += "\nprint(server.data, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        data = Path(starter.stdout.readline().decode().strip())
        memory = memory_path(json.loads((data / "node.json").read_text())["node_id"])
        assert memory.exists() is (last != "server.stop()")
        starter.kill()
    wait_for(lambda: not data.parent.exists() and not memory.exists(), "its folders are removed")


def test_nothing_is_left_of_a_broker_that_was_killed(tmp_path: Path) -> None:
    program = IN_MEMORY.replace("CONFIG", repr(str(tmp_path / "config.toml")))
    found = program + "print((server.data / 'node.json').read_text()); server.kill(); server.close()"
    node = json.loads(subprocess.run([sys.executable, "-c", found], capture_output=True, check=True).stdout)
    assert not memory_path(node["node_id"]).exists()


def test_it_ends_with_the_process_that_started_it() -> None:
    """One that is killed, so that nothing of it can see to that."""
    program = "from tailrace.testing import Server; s = Server(); s.start(); print(s.address, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        address = starter.stdout.readline().decode().strip()
        started = psutil.Process(starter.pid).children(recursive=True)
        assert address.startswith("127.0.0.1:") and len(started) >= 4, "supervisor, worker, metrics, remover"
        starter.kill()
    wait_for(lambda: not any(each.is_running() for each in started), "the broker has ended")
