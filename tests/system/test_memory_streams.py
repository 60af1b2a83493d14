"""Streams in memory on a real node: every door, reloads, killed workers, and nothing left when the node stops."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

import tailrace
from tailrace.shard.memory_directory import memory_path
from tests.protocol.mqtt.wire import V5
from tests.system.node import Node, running, wait_for
from tests.system.test_mqtt import PahoClient
from tests.system.test_rolling import replace_all

pytestmark = pytest.mark.system

CONFIG = """
[[topics]]
filter = "live/#"
stream = "live"

[[stream]]
pattern = "live"
durability = "memory"
max_bytes = "1 MiB"
"""
PATIENCE_S = 60.0


def ask(node: Node, line: str) -> str:
    with node.client() as client:
        return client.ask(line)


def publish(node: Node, *topics: str) -> None:
    """Until all are answered."""
    with node.client() as client:
        client.send("ack on", *(f"pub {topic} |of {topic}" for topic in topics))
        client.read_answers(1 + len(topics), PATIENCE_S)
        assert all(answer.startswith("ok ") for answer in client.answers), client.answers


def numbers(node: Node) -> dict[str, str]:
    with node.client() as client:
        rows = client.ask_table("stat live")
    return dict(row.split(" ", 1) for row in rows[1:-1])


def is_replaced(node: Node, pid: int) -> bool:
    try:
        pids = node.worker_pids()
    except (AssertionError, OSError):
        return False
    return len(pids) == 2 and pid not in pids


def folder_of(node: Node) -> Path:
    return memory_path(json.loads((node.data / "node.json").read_text())["node_id"])


def files_on_the_disk(node: Node) -> set[str]:
    return {file for _folder, _folders, files in os.walk(node.data) for file in files if file.startswith("live")}


def test_it_is_gone_when_the_node_stops_and_begins_in_a_later_term(tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as node:
        publish(node, "live/a", "live/b")
        first, folder = numbers(node), folder_of(node)
        assert (first["messages"], first["durability"]) == ("2", "memory")
        assert not files_on_the_disk(node) and any(file.name == "live.content" for file in folder.rglob("*"))
        assert node.stop() == 0
        assert not folder.exists()
        node.start()
        assert ask(node, "stat live").startswith("err unknown")
        publish(node, "live/a")
        second = numbers(node)
        assert second["messages"] == "1" and int(second["epoch"]) > int(first["epoch"])
        node.kill()
        assert folder.exists(), "nobody was left to remove it"
        node.start()
        assert ask(node, "stat live").startswith("err unknown")
        publish(node, "live/a")
        assert int(numbers(node)["epoch"]) > int(second["epoch"])
    assert not folder.exists()


def test_it_survives_reloads_and_killed_workers(tmp_path: Path) -> None:
    with running(tmp_path, config=CONFIG) as node, node.client() as reader:
        publish(node, "live/0")
        assert reader.ask("sub live/# 0").startswith("ok ")
        for number in range(1, 4):
            if number == 2:
                replace_all(node)
            else:
                other = node.worker_pids()[1 - node.slot_of(reader)]
                os.kill(other, signal.SIGKILL)
                wait_for(partial(is_replaced, node, other), "another worker", PATIENCE_S)
            wait_for(lambda: ask(node, "stat live").startswith("ok"), "its owner", PATIENCE_S)
            publish(node, f"live/{number}")
            reader.read_messages(number + 1, PATIENCE_S)
        assert [message.topic for message in reader.messages] == [f"live/{number}" for number in range(4)]
        assert numbers(node)["messages"] == "4"


@pytest.mark.parametrize("qos", [0, 1])
def test_by_python_and_mqtt(tmp_path: Path, qos: int) -> None:
    with running(tmp_path, config=CONFIG) as node:
        mqtt = PahoClient(node.port, V5)
        mqtt.subscribe(("live/+", qos))
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            client.publish("live/python", b"1")
            with pytest.raises(tailrace.TailraceError, match="in memory"):
                client.publish("live/python", b"2", ack=tailrace.Ack.SYNCED)
            mqtt.client.publish("live/mqtt", b"3", qos=qos)
            found = [mqtt.got.get(timeout=PATIENCE_S) for _ in range(2)]
            assert [(each.topic, each.payload) for each in found] == [("live/python", b"1"), ("live/mqtt", b"3")]
            stream = iter(client.subscribe("live/#", end=tailrace.NOW))
            assert [(each.topic, each.payload) for each in stream] == [("live/python", b"1"), ("live/mqtt", b"3")]
        mqtt.close()
