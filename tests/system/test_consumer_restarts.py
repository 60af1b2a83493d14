"""Members that end without a word, and come back under their name; and one that leaves in order, at a terminal."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tests.system.node import PATIENCE_S, Node, running
from tests.system.telnet import open_telnet
from tests.system.test_client_failover import address

pytestmark = pytest.mark.system

DELIVERIES_MAX = 5
AWAY_S = 5.0
"""For which the broker waits for a member that has gone (docs/consumers.md)."""
POISON = 120  # number of messages before it, so that it comes in the middle of a batch
PROGRAM = """
import os, signal, sys
import tailrace
sys.stdin.readline()
with tailrace.connect(sys.argv[1]) as client, client.consumer("orders", "billing", member="worker") as consumer:
    for message in consumer:
        if message.payload == b"poison":
            os.kill(os.getpid(), signal.SIGKILL)
        with message:
            print(message.payload.decode(), message.deliveries, flush=True)
        if message.payload == b"last":
            break
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "data") as node:
        yield node


class Worker:
    """A process that waits to be the member: the next is there when one ends, so that it is back within the 5 s that
    the broker waits for a member, however long a process takes to start.
    """

    def __init__(self, node: Node) -> None:
        command = [sys.executable, "-c", PROGRAM, address(node)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def run(self) -> tuple[int, list[str]]:
        """Its end, and its work."""
        out, errors = self.process.communicate("\n", timeout=3 * PATIENCE_S)
        assert not errors, errors
        return self.process.returncode, out.splitlines()


@pytest.fixture
def workers(node: Node) -> Iterator[list[Worker]]:
    """As many as are going to run, the last of which ends in order."""
    made = [Worker(node) for _ in range(DELIVERIES_MAX + 1)]
    yield made
    for each in made:
        each.process.kill()
        each.process.communicate()


@pytest.mark.thorough
def test_a_message_that_kills_its_member_becomes_a_dead_letter_with_its_last_delivery(
    node: Node, workers: list[Worker]
) -> None:
    """However quickly the member comes back under its name: it is started again at once, and nothing waits for time."""
    with tailrace.connect(address(node)) as client:
        with node.client() as admin:
            assert admin.ask("master orders").startswith("ok ")
        client.create_consumer("orders", "billing", ack_wait_s=3_600.0, deliveries_max=DELIVERIES_MAX)
        others = [f"order-{number}" for number in range(140)] + ["last"]
        client.publish_many("orders", [*map(str.encode, others[:POISON]), b"poison", *map(str.encode, others[POISON:])])
        ends: list[int] = []
        done: list[str] = []
        ended_s = [time.monotonic()]
        for worker in workers:
            end, lines = worker.run()
            ended_s.append(time.monotonic())
            ends.append(end)
            done += lines
        assert ends == [-9] * DELIVERIES_MAX + [0]
        assert {line.split()[0] for line in done} == {*others}
        assert max(int(line.split()[1]) for line in done) <= 2, "those that were given with it are not counted with it"
        [letter] = client.subscribe("orders/$dead", end=tailrace.NOW, wait=True)
        assert (letter.payload, letter.headers["dead-deliveries"]) == (b"poison", str(DELIVERIES_MAX))
        if ended_s[-1] - ended_s[-3] < AWAY_S:
            assert letter.headers["dead-reason"] == "its member has begun anew"
        else:  # so busy is the machine
            assert letter.headers["dead-reason"] in ("its member has begun anew", "its member has left")
        [state] = client.consumers("orders")
        assert (state.lag_messages, state.in_flight, state.dead) == (0, 0, 1)


def test_leaving_at_a_terminal(node: Node) -> None:
    """What one telnet has got and not acked is the other one's at once: it need not be closed, nor 5 s be waited."""
    with open_telnet(node) as first, open_telnet(node) as second:
        first.enter(b"pub orders |hello")
        first.enter(b"consume orders billing 0")
        first.wait_for(b"ok consume orders billing 0")
        first.enter(b"pub orders |world")
        first.enter(b"get orders billing 5000 2")
        first.wait_for(b"ok get orders billing 2")
        first.enter(b"ack orders billing 0")
        first.wait_for(b"ok ack orders billing 0")
        second.enter(b"get orders billing")
        second.wait_for(b"ok get orders billing 0")
        first.enter(b"leave orders billing")
        first.wait_for(b"ok leave orders billing")
        second.enter(b"get orders billing")
        second.wait_for(b"|world")
        second.wait_for(b"ok get orders billing 1")
        first.enter(b"ack orders billing 1")
        first.wait_for(b"err stale orders: message 1 is not this connection's")
        second.enter(b"ack orders billing 1")
        second.wait_for(b"ok ack orders billing 1")
        first.enter(b"leave orders billing")
        first.wait_for(b"ok leave orders billing")
        first.enter(b"leave orders nobody")
        first.wait_for(b"err consumer")
        first.enter(b"help")
        first.wait_for(b"leave STREAM NAME")
    with tailrace.connect(address(node)) as client:
        [state] = client.consumers("orders")
        assert (state.lag_messages, state.redelivered) == (0, 0)
