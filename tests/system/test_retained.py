"""Retained messages at a real node, by clients that others have written."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V5, VERSIONS
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.test_mqtt import CONFIG, PahoClient

pytestmark = pytest.mark.system

both = pytest.mark.parametrize("version", VERSIONS)


def retain(client: PahoClient, *messages: tuple[str, bytes]) -> None:
    infos = [client.client.publish(topic, payload, 1, retain=True) for topic, payload in messages]
    for info in infos:
        info.wait_for_publish(PATIENCE_S)
        assert info.is_published()


def retained(node: Node, version: int, topic_filter: str, count: int) -> dict[str, bytes]:
    """Those that a new client is sent."""
    with PahoClient(node.port, version) as reader:
        reader.subscribe((topic_filter, 1))
        found = reader.messages(count)
        assert all(each.retain for each in found)
        return {each.topic: each.payload for each in found}


@pytest.mark.few(1)
@both
def test_paho_finds_them_after_sigkill_of_workers_and_of_the_node(tmp_path: Path, version: int) -> None:
    wanted = {f"home/{room}/temp": b"%d" % room for room in range(300)} | {"plain": b"p"}
    with running(tmp_path, config=CONFIG) as node:
        with PahoClient(node.port, version) as writer:
            retain(writer, *((topic, b"before") for topic in wanted), *wanted.items(), ("home/1/temp", b""))
            del wanted["home/1/temp"]
        assert retained(node, version, "#", len(wanted)) == wanted
        for pid in node.worker_pids():
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: node.get("/readyz")[0] == 200, "the workers")
        assert retained(node, version, "#", len(wanted)) == wanted
        node.kill()
        node.start()
        assert retained(node, version, "#", len(wanted)) == wanted
        assert retained(node, version, "home/7/+", 1) == {"home/7/temp": b"7"}


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_mosquitto_clients(tmp_path: Path, version: str) -> None:
    if shutil.which("mosquitto_sub") is None:
        pytest.skip("mosquitto-clients is not installed")

    def run(command: str, *arguments: str) -> Any:
        head = [command, "-V", version, "-p", str(node.port), "-q", "1"]
        return subprocess.run([*head, *arguments], capture_output=True, timeout=PATIENCE_S, check=True).stdout

    with running(tmp_path, config=CONFIG) as node:
        for topic in ("m/1/temp", "m/2/temp"):
            run("mosquitto_pub", "-t", topic, "-m", "old", "-r")
            run("mosquitto_pub", "-t", topic, "-m", f"of {topic}", "-r")
        run("mosquitto_pub", "-t", "m/1/temp", "-m", "passing")
        arguments = ("-t", "m/#", "-F", "%t %r %p", "--retained-only", "-W", "2")
        found = run("mosquitto_sub", *arguments, "-C", "2")
        assert sorted(found.splitlines()) == [b"m/1/temp 1 of m/1/temp", b"m/2/temp 1 of m/2/temp"]
        run("mosquitto_pub", "-t", "m/1/temp", "-n", "-r")
        assert run("mosquitto_sub", *arguments, "-C", "1") == b"m/2/temp 1 of m/2/temp\n"
        with pytest.raises(subprocess.CalledProcessError):
            run("mosquitto_sub", "-t", "m/1/#", "--retained-only", "-W", "1")


@pytest.mark.parametrize("workers", [1, 2])
def test_messages_beyond_the_bound_are_refused_in_the_read_that_meets_it(tmp_path: Path, workers: int) -> None:
    bound = 5
    config = f'[[topics]]\nfilter = "bound/#"\nstream = "bound"\n[limits]\nmax_last_values = {bound}\n'

    def reasons(sock: socket.socket, *messages: tuple[int, bytes]) -> list[int]:
        sock.sendall(
            b"".join(wire.publish(V5, f"bound/{n}", payload, 1, n + 1, retain=True) for n, payload in messages)
        )
        received, answers = b"", list[wire.Answer]()
        while len(answers) < len(messages):
            received += sock.recv(4096)
            answers = wire.split(received)
        return [wire.reason(each) for each in answers]

    with running(tmp_path / "data", workers=workers, config=config) as node:
        for _ in range(4):  # from different workers
            with socket.create_connection(("127.0.0.1", node.port), PATIENCE_S) as sock:
                sock.sendall(wire.connect(V5, ""))
                assert sock.recv(256)[3] == 0
                assert reasons(sock, *((n, b"x") for n in range(8))) == [0] * bound + [0x97] * 3
                assert reasons(sock, (0, b""), (7, b"x"), (6, b"x")) == [0, 0, 0x97]
                assert retained(node, V5, "bound/#", bound) == {f"bound/{n}": b"x" for n in (1, 2, 3, 4, 7)}
                assert reasons(sock, *((n, b"") for n in range(8))) == [0] * 8
