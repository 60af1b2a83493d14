"""Durable consumers on slaves, and on one that becomes the master: nothing that is finished comes again, and nothing
that was published is left out.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import Ack
from tailrace.shard.errors import StreamCut, StreamMissing
from tailrace.shard.names import cursor_name, file_stem
from tailrace.sync.client import Client
from tailrace.sync.consumer import Consumer
from tests.system.node import Node, rows, running, wait_for
from tests.system.scripted import Gate
from tests.system.tree_check import read_diverged, read_log
from tests.thorough import only_thorough

pytestmark = pytest.mark.system

CONFIG = """
[timing]
replication_timeout_s = "5 s"
upstream_timeout_s = 3
"""
PATIENCE_S = 60.0
LOG = cursor_name(b"orders").decode()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A master and its slave: of one stream, which has no consumers yet."""
    with running(tmp_path / "top", config=CONFIG) as top, running(tmp_path / "middle", config=CONFIG) as middle:
        tell(top, "master orders")
        follow(middle, top)
        yield top, middle


@pytest.fixture
def tree(pair: tuple[Node, Node], tmp_path: Path) -> Iterator[tuple[Node, Node, Node]]:
    """And a slave of the slave."""
    with running(tmp_path / "bottom", config=CONFIG) as bottom:
        follow(bottom, pair[1])
        yield *pair, bottom


def follow(slave: Node, upstream: Node) -> None:
    tell(slave, f"slave 127.0.0.1 {upstream.port} orders 0")


def tell(node: Node, line: str) -> None:
    with node.client() as client:
        answer = client.ask(line)
    assert answer.startswith("ok "), answer


def address(node: Node) -> str:
    return f"127.0.0.1:{node.port}"


def connect(*nodes: Node) -> Client:
    return tailrace.connect(*map(address, nodes), timeout_s=PATIENCE_S)


def listed(node: Node, prefix: str = "") -> dict[str, str]:
    """The role of each stream, as the command shows."""
    with node.client() as client:
        return {row["stream"]: row["role"] for row in rows(client.ask_table(f"streams {prefix}".strip()))}


def is_same(one: Node, other: Node, stream: str) -> bool:
    """Message by message. A stream that is not there yet is not, nor one whose end is set aside meanwhile."""
    try:
        return list(read_log(one.data, stream)) == list(read_log(other.data, stream))
    except (StreamMissing, StreamCut):
        return False


@pytest.mark.thorough
def test_a_consumer_on_a_slave_of_a_slave(tree: tuple[Node, Node, Node]) -> None:
    """Its calls go up to the master, its messages come from the copy, and every node gets a copy of its state."""
    top, middle, bottom = tree
    with connect(bottom) as below, connect(top) as above:
        done: list[tuple[int, bytes, int]] = []
        with below.consumer("orders", "billing", start=tailrace.START, member="m") as consumer:
            for number in range(20):
                publisher = below if number % 2 else above
                assert publisher.publish("orders", b"%d" % number).seq == number
                message = consumer.receive(PATIENCE_S)
                assert message is not None
                with message:
                    done.append((message.seq, message.payload, message.deliveries))
            consumer.flush()
            assert done == [(number, b"%d" % number, 1) for number in range(20)]
            for client in (above, below):
                (state,) = client.consumers("orders")
                assert (state.name, state.next_seq, state.lag_messages) == ("billing", 20, 0)
        with pytest.raises(tailrace.NoSuchConsumer):
            below.reset_consumer("orders", "other", tailrace.START)
    for slave in (middle, bottom):
        wait_for(lambda slave=slave: is_same(top, slave, LOG), "the state is copied")  # type: ignore[misc]
        assert listed(slave) == {"orders": "slave"}
        assert listed(slave, "$cursor/") == {LOG: "slave"}


class Reader:
    """A member that acknowledges its messages, in the order of their delivery."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.finished: list[int] = []

    def read_to(self, count: int) -> None:
        """Until this many are acknowledged, and the broker has stored that."""
        while len(self.finished) < count:
            message = self.consumer.receive(PATIENCE_S)
            assert message is not None
            with message:
                assert message.payload == b"%d" % message.seq
                self.finished.append(message.seq)
        self.consumer.flush()
        assert self.finished == list(range(count))


def test_a_consumer_goes_on_at_a_slave_that_is_promoted(tree: tuple[Node, Node, Node]) -> None:
    """The master is killed. Acknowledged messages whose acknowledgement a slave holds stay so; the rest comes, each
    once. The former master follows when it is back, and takes the present state of the consumers.
    """
    top, middle, bottom = tree
    with connect(middle, bottom) as client, connect(top) as publisher:
        for number in range(50):
            publisher.publish("orders", b"%d" % number, ack=Ack.REPLICATED, replicas=1)
        consuming = client.consumer("orders", "billing", member="m", batch=10, ack=Ack.REPLICATED, replicas=1)
        with consuming as consumer:
            reader = Reader(consumer)
            reader.read_to(23)
            top.kill()
            tell(middle, "promote orders")
            assert client.publish("orders", b"50").seq == 50
            reader.read_to(51)
        top.start()
        wait_for(lambda: listed(top).get("orders") == "slave", "the former master has given in")
        for stream in ("orders", LOG):
            for slave in (top, bottom):
                wait_for(lambda name=stream, node=slave: is_same(middle, node, name), f"the copies of {stream}")  # type: ignore[misc]
        with connect(top) as former:
            (state,) = former.consumers("orders")
            assert (state.next_seq, state.lag_messages, state.redelivered) == (51, 0, 0)
    assert listed(top, "$cursor/") == {LOG: "slave"} and listed(middle, "$cursor/") == {LOG: "master"}


@pytest.mark.thorough
def test_what_only_the_former_master_knew_of_a_consumer_is_set_aside(tmp_path: Path) -> None:
    """It comes again at the new master, and the former one takes the new master's word for it."""
    with running(tmp_path / "top", config=CONFIG) as top, running(tmp_path / "middle", config=CONFIG) as middle:
        tell(top, "master orders")
        with contextlib.closing(Gate(top.port)) as gate:
            tell(middle, f"slave 127.0.0.1 {gate.port} orders 0")
            with connect(top) as client:
                for number in range(10):
                    client.publish("orders", b"%d" % number, ack=Ack.REPLICATED, replicas=1)
                with client.consumer("orders", "billing", member="m", batch=1) as consumer:
                    reader = Reader(consumer)
                    reader.read_to(3)
                    wait_for(lambda: is_same(top, middle, LOG), "the slave has it all")
                    gate.shut()
                    reader.read_to(6)
            tell(middle, "promote orders")
            with connect(middle) as client, client.consumer("orders", "billing", member="m") as consumer:
                reader = Reader(consumer)
                reader.finished = [0, 1, 2]
                reader.read_to(10)
            gate.open()
            wait_for(lambda: listed(top)["orders"] == "slave" and is_same(middle, top, LOG), "the other one follows")
        (aside,) = read_diverged(top.data)
        assert aside == file_stem(LOG) and len(read_diverged(top.data)[aside]) >= 3
        assert is_same(middle, top, "orders")


@pytest.mark.thorough
@pytest.mark.parametrize("fall", ["the master is killed", *only_thorough("the master reloads", "the slave reloads")])
def test_a_get_that_waits_below_outlives_who_answers_it(pair: tuple[Node, Node], fall: str) -> None:
    """The call fails, or is answered empty, and the client makes it again: nobody waits for what will not come."""
    top, middle = pair
    with connect(middle) as client, client.consumer("orders", "billing", member="m") as consumer:
        reader = Reader(consumer)
        client.publish("orders", b"0")
        reader.read_to(1)
        for number in range(1, 3):
            node = middle if fall == "the slave reloads" else top
            if fall == "the master is killed":
                node.kill()
                node.start()
            else:
                before = set(node.worker_pids())
                node.signal(signal.SIGHUP)
                wait_for(lambda node=node, before=before: not before & set(node.worker_pids()), "other workers")  # type: ignore[misc]
            client.publish("orders", b"%d" % number)
            reader.read_to(number + 1)
        (state,) = client.consumers("orders")
        assert (state.next_seq, state.lag_messages, state.redelivered) == (3, 0, 0)
