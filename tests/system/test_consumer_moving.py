"""Members of durable consumers whose worker changes under them, or whose node stops, while they wait for messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.protocol.binary import ClientCodec
from tailrace.protocol.consuming import FEATURE, Consume, Consumed, Get, Got
from tailrace.protocol.messages import VERSION, Hello, Ping, Pong, Welcome
from tailrace.protocol.places import From
from tests.system.binary_peer import BinaryPeer
from tests.system.node import LineClient, Node, rows, running, wait_for
from tests.system.streams import name_of
from tests.system.test_rolling import replace_all

pytestmark = pytest.mark.system

WORKERS = 2
LONG_MS = 60_000
SOON_S = 20.0  # much less than that


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "data", workers=WORKERS) as node:
        yield node


class Member(BinaryPeer):
    """A member of a consumer, on a connection that has agreed on the feature."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.port, hello=None)
        self._codec = ClientCodec(features=frozenset({FEATURE}))
        self.slot = self.ask(Hello(VERSION, (FEATURE,), "test/1"), Welcome).worker

    def get(self, number: int, stream: str, wait_ms: int = 0, count: int = 10) -> None:
        self.say(Get(number, stream.encode(), b"n", b"m", max_messages=count, wait_ms=wait_ms))

    def got(self, number: int) -> Got:
        """The answer to a get, waited for."""

        def found() -> list[Got]:
            return [each for each in self.answers if isinstance(each, Got) and each.id == number]

        self.read_until(lambda: bool(found()))
        return found()[0]


def standing(client: LineClient, stream: str) -> dict[str, str]:
    """The one consumer of the stream, as `consumers` shows it."""
    (row,) = rows(client.ask_table(f"consumers {stream}"))
    client.answers.clear()
    return row


@pytest.mark.few(1)
@pytest.mark.parametrize("slot", range(WORKERS))
def test_members_keep_what_they_have_when_workers_are_replaced(node: Node, slot: int) -> None:
    """On the same connections: one that has a message, and one that waits for the next."""
    stream = name_of(slot, WORKERS, "s")
    with node.client() as keeper, node.client() as waiter, node.client() as watcher:
        assert keeper.ask(f"master {stream}").startswith("ok ")
        assert keeper.ask(f"consume {stream} n 0") == f"ok consume {stream} n 0"
        keeper.send(f"pub {stream} |one", f"get {stream} n {LONG_MS}")
        keeper.read_messages(1)
        keeper.answers.clear()
        waiter.send(f"get {stream} n {LONG_MS}", "ping")
        replace_all(node)
        assert waiter.read_answers(2) == [f"ok get {stream} n 0", "ok pong"]
        assert (standing(watcher, stream)["in_flight"], standing(watcher, stream)["redelivered"]) == ("1", "0")
        keeper.send(f"get {stream} n")
        assert [each.payload for each in keeper.read_messages(2)] == [b"one"] * 2
        waiter.answers.clear()
        waiter.send(f"get {stream} n {LONG_MS}")
        keeper.send(f"pub {stream} |two")
        assert [each.payload for each in waiter.read_messages(1)] == [b"two"]
        keeper.send(f"ack {stream} n 0")
        wait_for(lambda: standing(watcher, stream)["next_seq"] == "1", "the ack counts")


def test_a_get_that_waits_is_answered_by_a_node_that_stops(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node:
        streams = [name_of(slot, WORKERS, "s") for slot in range(WORKERS)]
        with node.client() as client:
            for stream in streams:
                assert client.ask(f"master {stream}").startswith("ok ")
                assert client.ask(f"consume {stream} n 0") == f"ok consume {stream} n 0"
                client.answers.clear()
            members = [Member(node) for _ in streams]
            for member, stream in zip(members, streams, strict=True):
                member.get(1, stream, LONG_MS)
                member.ask(Ping(), Pong)
            began_s = time.monotonic()
            assert node.stop() == 0
            assert time.monotonic() - began_s < SOON_S
        for member in members:
            member.close()


def test_a_member_that_publishes_elsewhere_moves_there(node: Node) -> None:
    """It is answered early in order to move, and stays the same member at the new worker."""
    member = Member(node)
    here, there = (name_of(slot, WORKERS, "s") for slot in (member.slot, 1 - member.slot))
    with node.client() as admin:
        assert admin.ask(f"master {here}").startswith("ok ")
    assert member.ask(Consume(1, "create", here.encode(), b"n", From("seq", 0)), Consumed).created
    member.publish(here, [b"one"])
    member.get(1, here)
    assert member.got(1).runs == ((0, 1, 0, 1),)
    member.say(Get(2, here.encode(), b"n", b"m", max_messages=1, wait_ms=LONG_MS, fresh=True))
    for _ in range(40):
        member.publish(there, [b"x"] * 4)
    assert member.got(2).runs == ()
    wait_for(lambda: node.metric("tailrace_handed_over_connections_total") == 1, "it moves")
    member.get(3, here)
    assert member.got(3).runs == ((0, 1, 0, 1),), "delivered once, and told again"
    member.close()
