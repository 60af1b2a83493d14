"""The UDP door of a real node: the seed's exchanges by bare sockets, all other doors, reloads, killed workers, junk."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import tailrace
from tailrace.udp import UdpClient
from tests.protocol.mqtt.wire import V5
from tests.system.node import Node, running
from tests.system.test_mqtt import PahoClient
from tests.system.test_rolling import replace_all

pytestmark = pytest.mark.system

CONFIG = """
[listen]
udp = true

[[topics]]
filter = "sensors/#"
stream = "sensors"

[[topics]]
filter = "topic1"
stream = "udp"
"""
PATIENCE_S = 60.0


class SeedClient:
    """By the seed's grammar and nothing else: verb, white space, topic, white space, body."""

    def __init__(self, node: Node) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.settimeout(PATIENCE_S)
        self.address = ("127.0.0.1", node.port)

    def send(self, verb: str, topic: str, body: str = "") -> None:
        self.sock.sendto(f"{verb} {topic}\n{body}".encode(), self.address)

    def subscribe(self, topic: str) -> None:
        """Until a message of its own comes back: the seed knows no answer."""
        self.probe(topic, asks=True)

    def probe(self, topic: str, *, asks: bool = False) -> None:
        """Publishes until a message comes back."""
        self.sock.settimeout(0.5)
        for number in range(100):
            if asks:
                self.send("SUB", topic, "\n")
            self.send("PUB", topic, f"probe {number}")
            try:
                while self.receive() != (topic, f"probe {number}"):
                    pass
                break
            except TimeoutError:
                continue
        else:
            raise AssertionError(f"no message of {topic} comes back")
        self.sock.settimeout(PATIENCE_S)

    def receive(self) -> tuple[str, str]:
        """The next message; what else comes is passed over."""
        while True:
            found = re.fullmatch(r"(\w+)\s+(\S+)\s(.*)", self.sock.recv(65_536).decode(), re.DOTALL)
            if found and found[1] == "MSG":
                return found[2], found[3]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "data", config=CONFIG) as node:
        yield node


@pytest.fixture
def seed(node: Node) -> Iterator[SeedClient]:
    client = SeedClient(node)
    yield client
    client.sock.close()


def test_the_seeds_exchanges_to_and_from_all_doors(node: Node, seed: SeedClient) -> None:
    address = f"127.0.0.1:{node.port}"
    seed.subscribe("topic1")
    seed.subscribe("sensors/7/temp")
    with node.client() as telnet, tailrace.connect(address) as client, PahoClient(node.port, V5) as device:
        assert telnet.ask("sub topic1 new").startswith("ok")
        device.subscribe(("topic1", 1), ("sensors/+/temp", 1))
        subscription = client.subscribe("sensors/#", tailrace.NEW)
        seed.send("PUB", "topic1", "41.8874314503 12.4886930452")
        assert seed.receive() == ("topic1", "41.8874314503 12.4886930452")
        assert telnet.read_messages(1, PATIENCE_S)[0].payload == b"41.8874314503 12.4886930452"
        seed.send("PUB", "sensors/7/temp", "21.5")
        assert seed.receive() == ("sensors/7/temp", "21.5")
        assert next(iter(subscription)).payload == b"21.5"
        assert [each.payload for each in device.messages(2)] == [b"41.8874314503 12.4886930452", b"21.5"]
        telnet.ask("ack on")
        assert telnet.ask("pub sensors/7/temp |by telnet").startswith("ok")
        assert seed.receive() == ("sensors/7/temp", "by telnet")
        client.publish("sensors/7/temp", b"by the library")
        assert seed.receive() == ("sensors/7/temp", "by the library")
        device.publish("topic1", b"by MQTT")
        assert seed.receive() == ("topic1", "by MQTT")


@pytest.mark.skipif(shutil.which("nc") is None, reason="needs nc")
def test_the_seeds_exchanges_byte_for_byte_by_nc(node: Node) -> None:
    command = ["nc", "-u", "-w", "60", "127.0.0.1", str(node.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as subscriber:
        assert subscriber.stdin is not None and subscriber.stdout is not None
        try:
            said(subscriber.stdin, b"SUB topic1\n\n")
            assert subscriber.stdout.readline() == b"OK SUB topic1 120\n"
            text = b"PUB topic1\n41.8874314503 12.4886930452\n"
            subprocess.run([*command[:3], "1", *command[4:]], input=text, timeout=PATIENCE_S, check=True)
            expected = b"MSG topic1\n41.8874314503 12.4886930452\n"
            assert subscriber.stdout.read(len(expected)) == expected
            said(subscriber.stdin, b"PUB topic1\n")  # to itself, without a body
            assert subscriber.stdout.readline() == b"MSG topic1\n"
        finally:
            subscriber.kill()


def said(pipe: IO[bytes], text: bytes) -> None:
    pipe.write(text)
    pipe.flush()


def test_a_reload_ends_no_subscription(node: Node, seed: SeedClient) -> None:
    topics = ("sensors/1", "topic1", "elsewhere/2")
    for topic in topics:
        seed.subscribe(topic)
    for _ in range(2):
        replace_all(node)
        for topic in topics:
            seed.probe(topic)


def test_a_client_subscribes_again_after_reloads_and_killed_workers(node: Node, seed: SeedClient) -> None:
    seed.subscribe("sensors/1")
    replace_all(node)
    seed.subscribe("sensors/1")
    for pid in node.worker_pids():
        os.kill(pid, signal.SIGKILL)
    seed.subscribe("sensors/1")
    with UdpClient(f"127.0.0.1:{node.port}", timeout_s=PATIENCE_S) as client:
        client.subscribe("sensors/1")
        assert client.publish_asked("sensors/1", b"at last") > 0
        assert client.receive(PATIENCE_S) is not None


def test_junk_ends_no_worker_and_other_doors_are_served(node: Node, seed: SeedClient) -> None:
    chance, pids = random.Random(21), sorted(node.worker_pids())
    verbs = [b"PUB ", b"PUB? ", b"SUB ", b"UNSUB ", b"PING", b"MSG ", b"COOKIE ", b"", b"\xff"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, node.client() as telnet:
        sock.setblocking(False)
        for round_ in range(200):
            for _ in range(100):
                data = (
                    chance.choice(verbs) + chance.randbytes(chance.randrange(60)) + chance.choice((b"", b"\n", b"\n\n"))
                )
                try:
                    sock.sendto(data, ("127.0.0.1", node.port))
                except BlockingIOError:
                    pass
            if round_ % 50 == 0:
                assert telnet.ask("ping") == "ok pong"
    assert sorted(node.worker_pids()) == pids
    seed.subscribe("topic1")
