"""Durable MQTT sessions at a real node, by paho-mqtt: workers and the node are killed."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.cli.process import tailrace
from tests.protocol.mqtt.wire import V4, V5, VERSIONS
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.test_mqtt import CONFIG, PahoClient
from tests.system.test_rolling import replace_all
from tests.thorough import only_thorough

pytestmark = pytest.mark.system

both = pytest.mark.parametrize("version", VERSIONS)


def durable(node: Node, version: int, client_id: str = "d", **more: Any) -> PahoClient:
    """A client whose session lasts, or goes on. Raises ConnectionRefusedError if it is to connect again: a CONNECT that
    paho sent by itself for the client before may be read by another worker later than this one's, and wins.
    """
    if version != V5:
        client = PahoClient(node.port, version, client_id, clean_session=False, **more)
    else:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3_600
        client = PahoClient(node.port, version, client_id, clean_start=False, properties=properties, **more)
    if client.reason != "Success":
        client.close()
        raise ConnectionRefusedError(f"{client.reason}: {client.properties}")
    return client


def kill_a_worker(node: Node, rng: random.Random) -> None:
    os.kill(rng.choice(node.worker_pids()), signal.SIGKILL)
    wait_for(lambda: node.get("/readyz")[0] == 200, "the workers")


def restart(node: Node, _rng: random.Random) -> None:
    node.kill()
    node.start()


def stop_and_start(node: Node, _rng: random.Random) -> None:
    assert node.stop() == 0
    node.start()


def replace_workers(node: Node, _rng: random.Random) -> None:
    replace_all(node)


def retry(step: Callable[[], Any]) -> Any:
    """A worker that was killed may take a request with it."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return step()
        except (OSError, AssertionError, RuntimeError, ValueError):
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)


@pytest.mark.few(1)
@both
def test_a_session_goes_on_after_sigkill_of_workers_and_of_the_node(tmp_path: Path, version: int) -> None:
    rng = random.Random(version)
    with running(tmp_path, workers=2, config=CONFIG) as node:
        with durable(node, version) as first:
            assert first.subscribe(("a/#", 1), ("plain", 2)) == [1, 2]
        for number, fault in enumerate((kill_a_worker, restart, stop_and_start, kill_a_worker)):
            with PahoClient(node.port, version) as writer:
                for topic in ("a/1", "plain"):
                    writer.publish(topic, b"%d" % number)
            fault(node, rng)
            with retry(lambda: durable(node, version)) as again:
                assert again.present
                assert sorted(each.topic for each in again.messages(2)) == ["a/1", "plain"]


def test_the_command_lists_and_removes_them(tmp_path: Path) -> None:
    with running(tmp_path, workers=2, config=CONFIG) as node:
        for client_id in ("12", "a b"):
            durable(node, V5, client_id).close()
        server = ("--server", f"127.0.0.1:{node.port}")
        listed = tailrace("sessions", "ls", "--json", *server)
        assert [json.loads(line)["client"] for line in listed.stdout.splitlines()] == ["12", "a%20b"]
        assert tailrace("sessions", "rm", "a%20b", *server).returncode == 0
        assert tailrace("sessions", "rm", "a%20b", *server).returncode == 1
        assert b"a%20b" not in tailrace("sessions", "ls", *server).stdout


@pytest.mark.parametrize("version", [*only_thorough(V4), V5])
@pytest.mark.parametrize("seed", range(1))
def test_nothing_is_lost_over_random_kills(tmp_path: Path, version: int, seed: int) -> None:
    """A client comes and goes while others publish; workers and the node are killed, also while it is connected."""
    print(f"seed {seed}")
    rng = random.Random(10 * seed + version)
    faults = (kill_a_worker, kill_a_worker, restart, stop_and_start, replace_workers)
    with running(tmp_path, workers=2, config=CONFIG) as node:
        topics = ["m/1", "m/2", "other/x"]
        with durable(node, version) as first:
            assert first.subscribe(("m/#", 1), ("other/+", 1)) == [1, 1]
        sent: dict[str, list[bytes]] = {topic: [] for topic in topics}
        got: dict[str, list[bytes]] = {topic: [] for topic in topics}
        number = 0
        for _ in range(6):
            client = retry(lambda: durable(node, version)) if rng.random() < 0.7 else None
            assert client is None or client.present
            with PahoClient(node.port, version) as writer:
                for _ in range(20):
                    topic = rng.choice(topics)
                    sent[topic].append(b"%d" % number)
                    writer.publish(topic, b"%d" % number)
                    number += 1
            if rng.random() < 0.6:
                rng.choice(faults)(node, rng)
            if client is not None:
                client.close()
                take(client, got)
        with retry(lambda: durable(node, version)) as last:
            assert last.present
            wait_for(lambda: take(last, got) and all(set(got[each]) == set(sent[each]) for each in topics), "messages")
        for topic in topics:
            assert list(dict.fromkeys(got[topic])) == sent[topic], "the first copies are in order"


def take(client: PahoClient, got: dict[str, list[bytes]]) -> bool:
    while not client.got.empty():
        message = client.got.get()
        got[message.topic].append(message.payload)
    return True


@both
def test_another_client_takes_it_over(tmp_path: Path, version: int) -> None:
    with running(tmp_path, workers=2, config=CONFIG) as node:
        first = durable(node, version, reconnect_on_failure=False)
        first.subscribe(("a/#", 1))
        for _ in range(6):  # some of them at the other worker
            with durable(node, version) as second, PahoClient(node.port, version) as writer:
                assert second.present
                writer.publish("a/1", b"x")
                assert second.messages(1)[0].payload == b"x"
        assert first.ended.get(timeout=PATIENCE_S)
        first.client.loop_stop()


def test_a_delayed_will_comes_after_the_node_was_killed(tmp_path: Path) -> None:
    with running(tmp_path, workers=2, config=CONFIG) as node:
        will = Properties(PacketTypes.WILLMESSAGE)  # type: ignore[no-untyped-call]
        will.WillDelayInterval = 1
        gone = durable(node, V5, "gone", will=("wills/gone", b"gone", 1, False, will))
        with durable(node, V5, "reader") as reader:
            reader.subscribe(("wills/#", 1))
        gone.client.loop_stop()  # it does not connect again
        restart(node, random.Random(0))
        with durable(node, V5, "reader") as reader:
            assert reader.present and reader.messages(1)[0].payload == b"gone"
