"""Durable consumers after a promotion that lost messages, whose seqs others have: late acknowledgements are stale.

Messages 0 to 2 are on both nodes, 3 and 4 only on the one that was the master. The other one is promoted, and gives 3
and 4 to new messages.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace import Ack
from tailrace.protocol.consuming import Get, Got
from tests.system.node import Node, running, wait_for
from tests.system.scripted import Gate
from tests.system.test_client_failover import address, tell
from tests.system.test_consumer_failover import CONFIG, LOG, PATIENCE_S, is_same, listed
from tests.system.test_consumer_moving import Member

pytestmark = pytest.mark.system

STREAM, NAME = b"orders", b"n"


class Pair:
    """A master, and its slave behind a gate."""

    def __init__(self, top: Node, middle: Node, gate: Gate) -> None:
        self.top, self.middle, self.gate = top, middle, gate

    def lose(self) -> None:
        """The slave has neither 3 and 4, nor their acknowledgements."""
        wait_for(lambda: is_same(self.top, self.middle, LOG), "the slave knows of the consumer")
        self.gate.shut()
        publish(self.top, b"lost 3", b"lost 4")

    def promote(self) -> None:
        tell(self.middle, "promote orders")
        publish(self.middle, b"new 3", b"new 4")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with running(tmp_path / "top", config=CONFIG) as top, running(tmp_path / "middle", config=CONFIG) as middle:
        tell(top, "master orders")
        with contextlib.closing(Gate(top.port)) as gate:
            tell(middle, f"slave 127.0.0.1 {gate.port} orders 0")
            with tailrace.connect(address(top), timeout_s=PATIENCE_S) as client:
                for number in range(3):
                    client.publish("orders", b"%d" % number, ack=Ack.REPLICATED, replicas=1)
                client.create_consumer("orders", "n")
            yield Pair(top, middle, gate)


def publish(node: Node, *payloads: bytes) -> None:
    with tailrace.connect(address(node), timeout_s=PATIENCE_S) as client:
        for payload in payloads:
            client.publish("orders", payload)


def lag(node: Node) -> tuple[int, int]:
    """The first message that is not finished, and how many are not."""
    with tailrace.connect(address(node), timeout_s=PATIENCE_S) as client:
        (state,) = client.consumers("orders")
    return state.next_seq, state.lag_messages


class Asking:
    """The member m, wherever it is connected."""

    def __init__(self, peer: Member) -> None:
        self.peer = peer
        self.number = 0

    def get(self, *finished: tuple[int, int, int], failed: tuple[tuple[int, int, str], ...] = (), most: int = 0) -> Got:
        self.number += 1
        self.peer.say(Get(self.number, STREAM, NAME, b"m", finished, failed, most))
        return self.peer.got(self.number)


def test_over_the_wire(pair: Pair) -> None:
    pair.lose()
    with contextlib.closing(Member(pair.top)) as peer:
        assert Asking(peer).get(most=10).runs == ((0, 5, 0, 1),)
    pair.promote()
    with contextlib.closing(Member(pair.middle)) as peer:
        say_it_late(pair, Asking(peer))


def say_it_late(pair: Pair, below: Asking) -> None:
    assert below.get((0, 4, 1)).stale == ((3, 4),), "the new ones wait"
    assert lag(pair.middle) == (3, 2)
    given = below.get(most=10)
    assert given.runs == ((3, 2, 0, 2),) and bytes(given.frames).endswith(b"new 4")
    assert below.get((3, 4, 1), failed=((3, 1, "no"),)).stale == ((3, 4),), "they are at this very member"
    assert lag(pair.middle) == (3, 2)
    assert below.get((3, 4, 1), (3, 3, 2)).stale == ((3, 4),), "and what is right of a request is taken"
    assert lag(pair.middle) == (4, 1)
    assert below.get((4, 4, 2)).stale == ()
    assert lag(pair.middle) == (5, 0)


def test_in_lines(pair: Pair) -> None:
    """The connection stays at the former master, which follows the new one: the messages it shows have other payloads
    now.
    """
    pair.lose()
    with pair.top.client() as client:
        assert client.ask("get orders n 0 10") == "ok get orders n 5"
        assert client.ask("ack orders n 0 2") == "ok ack orders n 0 2"
        pair.promote()
        pair.gate.open()
        wait_for(
            lambda: listed(pair.top)["orders"] == "slave" and is_same(pair.middle, pair.top, "orders"), "it follows"
        )
        before = lag(pair.middle)
        assert client.ask("ack orders n 4").startswith("err stale orders: message 4 is not this connection's")
        assert client.ask("nack orders n 4").startswith("err stale orders: message 4 is not this connection's")
        assert lag(pair.middle) == before and before[1] >= 2
        client.messages.clear()
        while not {b"new 3", b"new 4"} <= {message.payload for message in client.messages}:
            assert client.ask("get orders n 20000 10").startswith("ok get orders n ")
            assert client.ask("ack orders n 0 2").startswith(("ok", "err stale"))
        assert client.ask("ack orders n 3 4") == "ok ack orders n 3 4"
        assert lag(pair.middle) == (5, 0)


def take_and_give_back(node: Node, count: int) -> None:
    """Another member is given `count` messages, which wait again when it has left."""
    with (
        tailrace.connect(address(node), timeout_s=PATIENCE_S) as client,
        client.consumer("orders", "n", member="other") as consumer,
    ):
        for _ in range(count):
            assert consumer.receive(PATIENCE_S) is not None


def test_through_the_client_and_into_a_database(pair: Pair, tmp_path: Path) -> None:
    """The program held the lost ones: it learns that they are not its own, and handles the new ones, each once."""
    pair.lose()
    effects: list[bytes] = []
    addresses = f"127.0.0.1:{pair.top.port}", address(pair.middle)
    with (
        contextlib.closing(sqlite3.connect(tmp_path / "effects.db")) as database,
        tailrace.connect(*addresses, timeout_s=PATIENCE_S) as client,
        client.consumer("orders", "n", member="m", linger_s=60.0) as consumer,
    ):
        once = tailrace.Once(database)

        def work(message: tailrace.ConsumedMessage) -> None:
            with once(message) as is_new:
                if is_new:
                    effects.append(message.payload)

        in_hand: list[tailrace.ConsumedMessage] = []
        while len(in_hand) < 5:
            message = consumer.receive(PATIENCE_S)
            assert message is not None
            in_hand.append(message)
        pair.top.kill()
        pair.promote()
        take_and_give_back(pair.middle, 5)
        for message in in_hand:
            work(message)
        with pytest.raises(tailrace.StaleAck) as late:
            consumer.flush(PATIENCE_S)
        assert late.value.ranges == ((3, 4),)
        while b"new 4" not in effects:
            message = consumer.receive(PATIENCE_S)
            assert message is not None and message.epoch == 2
            work(message)
        consumer.flush(PATIENCE_S)
    pair.top.start()
    assert effects == [b"0", b"1", b"2", b"lost 3", b"lost 4", b"new 3", b"new 4"]
    assert lag(pair.middle) == (5, 0)
