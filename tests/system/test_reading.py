"""Reading makes no stream, at any door: lines, binary, both faces of the Python client, the command, and MQTT."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import tailrace
from tailrace.protocol.messages import Failed, Subscribe
from tailrace.protocol.places import From
from tests.protocol.mqtt import wire
from tests.protocol.mqtt.wire import V4, V5
from tests.system.binary_peer import BinaryPeer
from tests.system.mqtt_socket import MqttSocket
from tests.system.node import Node, rows, running, wait_for
from tests.system.processes import all_workers
from tests.system.streams import name_of
from tests.thorough import only_thorough

WORKERS = 2
TOPIC_NAME_INVALID = 0x90


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("reading") / "data", workers=WORKERS) as node:
        yield node


def streams(node: Node) -> set[str]:
    with node.client() as client:
        return {row["stream"] for row in rows(client.ask_table("streams"))}


def command(node: Node, *words: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "TAILRACE_SERVER": f"127.0.0.1:{node.port}"}
    return subprocess.run(
        [sys.executable, "-m", "tailrace.cli.main", *words],
        capture_output=True,
        env=environment,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("slot", [0, *only_thorough(1)])
def test_an_unknown_stream_is_unknown_at_every_door_and_is_not_made(node: Node, slot: int) -> None:
    name = name_of(slot, WORKERS, "typo")
    with node.client() as client:
        lines = [f"sub {name} 0", f"sub {name} new", f"sub {name}/$dead 0", f"consume {name} c 0"]
        client.send(*lines, f"get {name} c", f"consumers {name}")
        client.read_until(lambda: len(client.answers) == 6)
        assert {answer.split(" ")[1] for answer in client.answers} == {"unknown"}
        assert client.ask(f"sub {name}* 0") == f"ok sub {name}* 0"  # a pattern also waits for streams made later
    with BinaryPeer(node.port) as peer:
        answer = peer.ask(Subscribe(1, name.encode(), From("seq", 0)), Failed)
        assert answer.code == "unknown"
    with tailrace.connect(f"127.0.0.1:{node.port}") as reader:
        for read in (reader.subscribe, reader.consumers, lambda stream: reader.consumer(stream, "c")):
            with pytest.raises(tailrace.UnknownStream):
                read(name)

    async def read_async() -> None:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as client:
            with pytest.raises(tailrace.UnknownStream):
                await client.subscribe(name)
            with pytest.raises(tailrace.UnknownStream):
                await client.create_consumer(name, "c")

    asyncio.run(read_async())
    for words in (("tail", name), ("get", name, "c"), ("consume", name, "c"), ("stat", name), ("dead", name)):
        done = command(node, *words)
        assert done.returncode == 1 and b"unknown: " in done.stderr and done.stdout == b"", (words, done)
    for version in (V4, V5):
        with MqttSocket(node.port, version) as device:
            assert device.subscribe((name, 1)) == [1], "it waits, as the protocol wants"
    assert not [each for each in streams(node) if each.startswith(name)]


@pytest.mark.parametrize("slot", [0, *only_thorough(1)])
def test_who_waits_reads_from_the_first_message_on(node: Node, slot: int) -> None:
    """At every door; also if the workers are replaced meanwhile."""
    name = name_of(slot, WORKERS, "later")
    with node.client() as lines, tailrace.connect(f"127.0.0.1:{node.port}") as reader, BinaryPeer(node.port) as peer:
        assert lines.ask(f"sub {name} new wait") == f"ok sub {name} 0"
        subscription = reader.subscribe(name, tailrace.NEW, wait=True)
        peer.subscribe(1, name)
        assert name not in streams(node)
        before = all_workers(node)
        node.signal(signal.SIGHUP)
        wait_for(lambda: (now := all_workers(node)) and not now & before, "all workers are new")
        with node.client() as publisher:
            assert publisher.ask("ack on") == "ok ack on"
            assert publisher.ask(f"pub {name} |first") == f"ok pub {name} 0"
        received = subscription.receive(60)
        assert received is not None and received.payload == b"first"
        assert lines.read_messages(1)[0].payload == b"first"
        assert [each.payload for each in peer.read_messages(1, 1)] == [b"first"]


def test_a_client_waits_for_a_stream(node: Node) -> None:
    async def wait() -> None:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as client:
            with pytest.raises(tailrace.OperationTimeout):
                await client.wait_for_stream("awaited", 0.01)
            waiting = asyncio.ensure_future(client.wait_for_stream("awaited", 60))
            await client.publish("other", b"x")
            assert not waiting.done()
            await client.publish("awaited", b"x")
            await waiting

    asyncio.run(wait())
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        client.wait_for_stream("awaited", 60)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["orders*", "a+b", "#", "a\u202eb", "a\u200bb"])
def test_names_that_no_new_stream_may_have(node: Node, name: str) -> None:
    before = streams(node)
    with node.client() as client:
        assert client.ask(f"pub {name} |x").startswith("err name ")
        assert client.ask(f"master {name}").startswith("err name ")
    with tailrace.connect(f"127.0.0.1:{node.port}") as client, pytest.raises(tailrace.InvalidStreamName):
        client.publish(name, b"x")
    with MqttSocket(node.port, V5) as device:
        if {"+", "#"} & set(name):  # which MQTT itself forbids
            device.refused(TOPIC_NAME_INVALID, wire.publish(V5, name, b"x", 1, 1))
        else:
            assert device.publish(name, b"x") == 0
    done = command(node, "pub", name, "x")
    assert done.returncode == 1 and b"no new stream may have a name" in done.stderr
    assert streams(node) - before <= {"topics"}, "only a device's message is kept, in the stream for such names"


def test_a_name_that_ends_in_a_slash_is_a_topic_of_its_first_level(node: Node) -> None:
    with node.client() as client:
        assert client.ask("master slashed/").startswith("err unknown no such stream here; 'slashed/' is a topic")
        assert client.ask("ack on") == "ok ack on"
        assert client.ask("pub slashed/ |x").startswith("ok pub slashed ")
        assert client.ask("sub slashed/ 0").startswith("ok sub slashed")
    assert "slashed" in streams(node)
    assert "slashed/" not in streams(node)
