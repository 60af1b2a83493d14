"""Streams by pattern, by the last messages and in lists, at every door of a real node."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import Last
from tests.cli.process import tailrace as run_tailrace
from tests.system.networks import in_namespace
from tests.system.node import PATIENCE_S, Node, running, wait_for

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("listing") / "data", workers=2) as node:
        with tailrace.connect(f"127.0.0.1:{node.port}") as client:
            for number in range(8):
                client.publish_many(f"orders.{number}", [b"%d" % each for each in range(5)])
        yield node


def test_a_pattern_reads_streams_of_all_workers_and_those_made_later(node: Node) -> None:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client, client.subscribe("orders.*", Last(1)) as found:
        first = [found.receive(PATIENCE_S) for _ in range(8)]
        assert {(each.stream, each.seq) for each in first if each} == {(f"orders.{number}", 4) for number in range(8)}
        client.publish("orders.new", b"one")
        client.publish("returns.new", b"of another name")
        later = found.receive(PATIENCE_S)
        assert later is not None and (later.stream, later.seq, later.payload) == ("orders.new", 0, b"one")


def test_the_last_messages_by_lines(node: Node) -> None:
    with node.client() as client:
        assert client.ask("sub orders.1 -2") == "ok sub orders.1 3"
        assert [each.payload for each in client.read_messages(2)] == [b"3", b"4"]
        assert client.ask("sub orders.2 -99") == "ok sub orders.2 0"
        assert client.ask("sub orders.3 -") == "err from '-' is not a position: a number must follow -"
        assert client.ask("help sub").startswith("ok command meaning")


def test_a_pattern_by_lines_moves_with_its_connection(node: Node) -> None:
    names = [f"moving.{number}" for number in range(8)]
    with node.client() as client, node.client() as publisher:
        publisher.send("ack on", *(f"pub {name} |{number}" for name in names for number in range(2)))
        publisher.read_answers(17)
        assert client.ask("sub moving.* -1") == "ok sub moving.* 8"
        assert sorted((each.stream, each.seq) for each in client.read_messages(8)) == [(name, 1) for name in names]
        assert client.ask("unsub moving.3") == "ok unsub moving.3"
        before = node.worker_pids()
        node.signal(signal.SIGHUP)
        wait_for(lambda: not set(before) & set(node.worker_pids()), "workers are replaced")
        publisher.send("pub moving.3 |not read", "pub moving.4 |read", "pub moving.later |read")
        client.read_messages(10)
        assert {(each.stream, each.seq) for each in client.messages[8:]} == {("moving.4", 2), ("moving.later", 0)}


def test_the_commands(node: Node) -> None:
    address = f"127.0.0.1:{node.port}"
    done = run_tailrace("streams", "orders.[0-9]", "--server", address)
    assert done.stderr == b"tailrace: no streams of orders.[0-9]\n", "only * is a wildcard"
    rows = [
        json.loads(line) for line in run_tailrace("streams", "orders.*", "--json", "-s", address).stdout.splitlines()
    ]
    assert {row["name"] for row in rows} >= {f"orders.{number}" for number in range(8)}
    assert all(row["role"] == "master" and row["minute_messages"] <= 5 for row in rows)
    shown = run_tailrace("top", "orders.*", "--once", "--interval", "0.1", "-s", address).stdout.decode()
    assert "orders.1" in shown and shown.count(" ready ") == 2
    with tailrace.connect(address) as client, client.consumer("orders.1", "g"):
        shown = run_tailrace("stat", "orders.1", "-s", address).stdout.decode()
    assert "5, seq 0 to 4" in shown and "1, lag 5 messages" in shown


# Loopback gets a second address, which is not of this machine in the sense of 127.0.0.0/8.
FROM_ANOTHER_MACHINE = """
import pathlib, subprocess, sys
sys.path.insert(0, {root!r})
from tests.system.node import running
from tests.system.test_listing import look_from_another_machine
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
with running(pathlib.Path({data!r}), "--host", "0.0.0.0", config="[access]\\nallow_anonymous = true\\n") as node:
    look_from_another_machine(node, "192.0.2.1")
"""


@pytest.mark.thorough
def test_the_commands_look_at_another_machines_node(tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    done = in_namespace(FROM_ANOTHER_MACHINE.format(root=root, data=str(tmp_path / "data")))
    assert done.returncode == 0, done.stdout + done.stderr


def look_from_another_machine(node: Node, other: str) -> None:
    address = f"{other}:{node.port}"
    with tailrace.connect(address) as client:
        client.publish("orders", b"x")
    shown = run_tailrace("top", "--once", "--interval", "0.1", "-s", address).stdout.decode()
    assert shown.startswith(f"{address}  ") and "orders" in shown
    assert "The workers are shown to administrators." in shown and " ready " not in shown
    assert b"orders" in run_tailrace("streams", "-s", address).stdout
    done = run_tailrace("admin", "-s", address, "workers")
    assert (done.returncode, done.stderr[:17]) == (1, b"tailrace: denied:")
