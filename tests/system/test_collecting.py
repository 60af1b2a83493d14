"""One subscription of all streams of a pattern, by the binary protocol, on a real node of two workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.protocol.collecting import ADDED_FROM, FEATURE, Added, Collect, Collected
from tailrace.protocol.messages import TOPICS_FEATURE, VERSION, Ended, Hello, Subscribe, Unsubscribe
from tailrace.protocol.places import FROM_NEW, From
from tests.system.binary_peer import FROM_START, BinaryPeer
from tests.system.node import LineClient, Node, running, wait_for

pytestmark = pytest.mark.system

WORKERS = 2
STREAMS = 40
HELLO = Hello(VERSION, (FEATURE, TOPICS_FEATURE), "test/1")
CONFIG = """
[[topics]]
filter = "sensors/+/temp"
stream = "temperatures-{hash:4}"
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("collecting") / "data", workers=WORKERS, config=CONFIG) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[tailrace.Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


class Collector(BinaryPeer):
    """A peer that knows the streams of its subscriptions."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.port, hello=HELLO)

    def streams(self) -> dict[int, str]:
        return {each.subscription: each.stream for each in self.answers if isinstance(each, Added)}

    def got(self) -> dict[str, list[bytes]]:
        """All that has come, by stream."""
        streams = self.streams()
        return {streams[number]: [message.payload for message in row] for number, row in self.messages.items() if row}

    def ends(self) -> list[Ended]:
        return [each for each in self.answers if isinstance(each, Ended)]

    def wait_for(self, expected: dict[str, list[bytes]]) -> None:
        count = sum(map(len, expected.values()))
        self.read_until(lambda: sum(map(len, self.got().values())) >= count)
        assert self.got() == expected


def test_every_stream_from_its_first_message_on_and_those_made_later(node: Node, client: tailrace.Client) -> None:
    names = [f"orders.{number}" for number in range(STREAMS)]
    for name in names:
        client.publish(name, b"first")
    client.publish("others", b"not asked for")
    with Collector(node) as reader:
        assert reader.ask(Collect(5, b"orders.*", FROM_START), Collected) == Collected(5, STREAMS)
        reader.wait_for({name: [b"first"] for name in names})
        assert min(reader.streams()) >= ADDED_FROM
        client.publish("orders.later", b"made later")
        client.publish(names[3], b"second")
        expected = {name: [b"first"] for name in names} | {names[3]: [b"first", b"second"]}
        reader.wait_for(expected | {"orders.later": [b"made later"]})


def test_what_is_sent_behind_it_is_new_to_it(node: Node, client: tailrace.Client) -> None:
    for number in range(4):
        client.publish(f"fresh.{number}", b"before")
    with Collector(node) as reader:
        reader.send_publish("fresh.0", [b"before, too"])
        reader.say(Collect(1, b"fresh.*", FROM_NEW))
        reader.send_publish(["fresh.0", "fresh.3"], [b"after"])
        reader.wait_for({"fresh.0": [b"after"], "fresh.3": [b"after"]})


def test_a_reader_goes_on_where_it_was(node: Node, client: tailrace.Client) -> None:
    """A connection is lost; the next one has the rest of each stream, and a stream that was made meanwhile."""
    for number in range(3):
        client.publish(f"resumed.{number}", b"one")
    with Collector(node) as reader:
        reader.ask(Collect(1, b"resumed.*", FROM_START), Collected)
        reader.wait_for({f"resumed.{number}": [b"one"] for number in range(3)})
        streams = reader.streams()
        places = {streams[number].encode(): row[-1].seq + 1 for number, row in reader.messages.items()}
    client.publish("resumed.1", b"two")
    client.publish("resumed.meanwhile", b"three")
    with Collector(node) as reader:
        reader.ask(Collect(1, b"resumed.*", From("time", 0), end=("now", 0), positions=places), Collected)
        assert reader.wait_ended(1).code == ""
        assert reader.got() == {"resumed.1": [b"two"], "resumed.meanwhile": [b"three"]}
        assert sorted((each.id, each.code) for each in reader.ends()) == sorted((n, "") for n in reader.streams())


def test_one_that_is_deleted_leaves_and_comes_again(node: Node, client: tailrace.Client) -> None:
    client.publish("gone.1", b"former")
    client.publish("gone.2", b"stays")
    with Collector(node) as reader, LineClient(node.port) as admin:
        reader.ask(Collect(1, b"gone.*", FROM_START), Collected)
        reader.wait_for({"gone.1": [b"former"], "gone.2": [b"stays"]})
        (former,) = (number for number, name in reader.streams().items() if name == "gone.1")
        assert admin.ask("delete gone.1").startswith("ok")
        assert reader.wait_ended(former).code == "deleted"
        client.publish("gone.1", b"another")
        reader.read_until(lambda: list(reader.streams().values()).count("gone.1") == 2)
        reader.read_until(lambda: max(reader.streams()) in reader.messages)
        assert reader.payloads(max(reader.streams())) == [b"another"]
        reader.say(Unsubscribe(1))
        assert reader.wait_ended(1).code == ""
        client.publish("gone.2", b"nobody reads this")
        client.publish("gone.3", b"nor this")
        reader.settle()
        assert sum(map(len, reader.messages.values())) == 3


def test_a_filter_over_several_streams(node: Node, client: tailrace.Client) -> None:
    for number in range(20):
        client.publish(f"sensors/{number}/temp", b"%d" % number)
    client.publish("plain", b"no topic")
    with Collector(node) as reader:
        assert reader.ask(Collect(1, b"sensors/+/temp", FROM_START), Collected).streams > 1
        reader.read_until(lambda: sum(map(len, reader.messages.values())) >= 20)
        assert sorted(int(payload) for row in reader.got().values() for payload in row) == list(range(20))
        assert all(name.startswith("temperatures-") for name in reader.got())
        reader.say(Subscribe(2, b"sensors/+/temp", FROM_START))
        reader.read_until(lambda: bool(reader.errors()))
        assert "name them by a pattern" in reader.errors()[0].text, "the answer says what to do instead"


def test_it_lives_through_reloads_and_the_death_of_a_worker(tmp_path: Path) -> None:
    """At a reload the connection moves to the next generation, with what it reads. A killed worker's are cut."""
    with running(tmp_path / "data", workers=WORKERS) as node, tailrace.connect(f"127.0.0.1:{node.port}") as client:
        for number in range(6):
            client.publish(f"kept.{number}", b"1")
        with Collector(node) as reader:
            reader.ask(Collect(1, b"kept.*", FROM_START), Collected)
            expected = {f"kept.{number}": [b"1"] for number in range(6)}
            reader.wait_for(expected)
            before = set(node.worker_pids())
            node.signal(signal.SIGHUP)
            wait_for(lambda: before.isdisjoint(node.worker_pids()), "all workers are new ones")
            for number in range(6):
                client.publish(f"kept.{number}", b"2")
            client.publish("kept.later", b"3")
            reader.wait_for({name: [b"1", b"2"] for name in expected} | {"kept.later": [b"3"]})
            for pid in node.worker_pids():
                os.kill(pid, signal.SIGKILL)
            reader.read_to_end()
        client.publish("kept.0", b"4")
        with Collector(node) as reader:
            reader.ask(Collect(1, b"kept.*", FROM_START, end=("now", 0)), Collected)
            reader.wait_ended(1)
            assert reader.got()["kept.0"] == [b"1", b"2", b"4"] and len(reader.got()) == 7
