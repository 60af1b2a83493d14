"""Topics at every door of a real node: published and read by lines, by the Python clients and by the command."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator

import pytest

import tailrace
from tailrace import NOW, Ack, Client, InvalidArgument, Message, Seq, Subscription
from tests.broker.topics.agreement import random_filter, random_topic
from tests.broker.topics.naive import matches
from tests.cli.process import tailrace as run_tailrace
from tests.system.node import PATIENCE_S, LineClient, Node, running
from tests.system.streams import lives
from tests.system.test_rolling import replace_all

pytestmark = pytest.mark.system

WORKERS = 2
STAY = "[node]\naffinity = false\n"  # so that half of the subscribers are beside the stream's owner


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("topics") / "data", workers=WORKERS, config=STAY) as node:
        yield node
        assert lives(node)[1] == ["0"] * WORKERS, "a worker has ended by itself"


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


def publish_at_every_door(node: Node, client: Client) -> list[tuple[bytes, str]]:
    """Payload and topic of each message of the stream `doors`, in its order."""
    with node.client() as lines:
        assert lines.ask("ack on") == "ok ack on"
        assert lines.ask("pub doors topic a/line |0") == "ok pub doors 0"
        assert lines.ask("pub doors topic a/100%25%20%7C |1") == "ok pub doors 1"
        assert lines.ask("pub doors |2") == "ok pub doors 2"
    client.publish("doors", b"3", topic="a/python")
    client.publish_many("doors", [b"4", b"5"], topic="a/many", headers={"h": "1"})
    client.publish_to(["doors"], b"6", topic="$a/to", key="k")
    with client.batcher("doors", topic="a/batch") as batch:
        batch.add(b"7")
        batch.add(b"8", topic="b/one")
        batch.add(b"9", key="k")
    client.publish("doors", b"10", topic="a/no ack", ack=Ack.NONE)
    client.flush()

    async def publish() -> None:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as aio:
            await aio.publish("doors", b"11", topic="a/aio")
            async with aio.batcher("doors", topic="a/aio") as batch:
                await batch.add(b"12", topic="é/𝄞")

    asyncio.run(publish())
    server = ("-s", f"127.0.0.1:{node.port}")
    assert run_tailrace("pub", "doors", "13", "-t", "a/command", *server).returncode == 0
    assert run_tailrace("pub", "doors", "--topic", "a/stdin", *server, stdin=b"14\n15\n").returncode == 0
    topics = ["a/line", "a/100% |", "doors", "a/python", "a/many", "a/many", "$a/to", "a/batch", "b/one", "a/batch"]
    topics += ["a/no ack", "a/aio", "é/𝄞", "a/command", "a/stdin", "a/stdin"]
    return [(b"%d" % number, topic) for number, topic in enumerate(topics)]


def test_every_door_publishes_and_reads_topics(node: Node, client: Client) -> None:
    expected = publish_at_every_door(node, client)
    found = list(client.subscribe("doors", end=NOW))
    assert [(message.payload, message.topic) for message in found] == expected
    assert (found[4].headers, found[6].key, found[9].key) == ({"h": "1"}, "k", "k")
    with node.client() as lines:
        assert lines.ask("sub doors 0") == "ok sub doors 0"
        shown = [(each.payload, each.topic) for each in lines.read_messages(len(expected))]
    escaped = {"a/100% |": "a/100%25%20%7C", "a/no ack": "a/no%20ack", "doors": ""}
    assert shown == [(payload, escaped.get(topic, topic)) for payload, topic in expected]
    done = run_tailrace("tail", "doors", "-n", "100", "--no-follow", "--json", "-s", f"127.0.0.1:{node.port}")
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["payload"].encode(), each.get("topic", "doors")) for each in objects] == expected
    with node.client() as lines:
        assert lines.ask("consume doors c 0") == "ok consume doors c 0"
        lines.send("get doors c 0 2")
        assert [each.topic for each in lines.read_messages(2)] == ["a/line", "a/100%25%20%7C"]


@pytest.mark.parametrize("topics", ["a/#", "+/+", "#", "a/many", "doors", "$a/+", "none"])
def test_every_door_reads_by_a_filter(node: Node, client: Client, topics: str) -> None:
    everything = list(client.subscribe("doors", end=NOW))
    expected = [(message.seq, message.payload) for message in everything if matches(topics, message.topic)]
    found = list(client.subscribe("doors", end=NOW, topics=topics, credit_bytes=1))
    assert [(message.seq, message.payload) for message in found] == expected

    async def read() -> list[tuple[int, bytes]]:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as aio:
            subscription = aio.subscribe("doors", Seq(2), NOW, topics=topics)
            return [(message.seq, message.payload) async for message in subscription]

    assert asyncio.run(read()) == [each for each in expected if each[0] >= 2]
    with node.client() as lines:
        assert lines.ask(f"sub doors #2 topics {topics}") == "ok sub doors 2"
        wanted = [each for each in expected if each[0] >= 2]
        assert [(each.seq, each.payload) for each in lines.read_messages(len(wanted))] == wanted
    server = f"127.0.0.1:{node.port}"
    done = run_tailrace("tail", "doors", "-n", "100", "--no-follow", "--topics", topics, "-s", server)
    assert [line.split(b"\t")[1] for line in done.stdout.splitlines()] == [payload for _seq, payload in expected]


def test_what_is_not_a_topic_is_refused(node: Node, client: Client) -> None:
    with node.client() as lines:
        for topic in ("a/+", "#", "a%00b", "a" * 1_025, "/" * 128, "%ff"):
            assert lines.ask(f"pub refused topic {topic} |x").startswith("err topic ")
        for topics in ("a#", "#/a", "a+/b", "a%00b", "/" * 128):
            assert lines.ask(f"sub doors 0 topics {topics}").startswith("err topic ")
        assert lines.ask("pub a b |x").startswith("err name ")
        assert lines.ask("pub a topics b |x").startswith("err name ")
        assert lines.ask("sub doors* 0 topics a").startswith("err usage ")
        assert lines.ask("sub doors 0 topics").startswith("err usage ")
    for topic in ("a/+", "", "a\0", "\ud800"):
        with pytest.raises(InvalidArgument):
            client.publish("refused", b"x", topic=topic)
    with pytest.raises(InvalidArgument):
        client.subscribe("doors", topics="a#")
    assert not client.streams("refused")


def received(messages: Subscription) -> Message:
    message = messages.receive(PATIENCE_S)
    assert message is not None
    return message


class FilterReader:
    """A subscriber at one of the doors, from one seq on; `seqs` are those of its messages."""

    def __init__(self, node: Node, chance: random.Random, topics: str, last_seq: int) -> None:
        self.topics = topics
        self.start = chance.randrange(200)
        self.seqs: list[int] = []
        self._node = node
        self._last_seq = last_seq
        self._credit = chance.choice((1, 1_000, 1 << 20))
        by_lines = chance.random() < 0.5
        self.thread = threading.Thread(target=self._read_lines if by_lines else self._read_frames)
        self.thread.start()

    def _read_lines(self) -> None:
        with LineClient(self._node.port) as lines:
            lines.send(f"sub mixed #{self.start} topics {self.topics}")
            lines.read_until(lambda: bool(lines.messages) and lines.messages[-1].seq == self._last_seq)
            self.seqs = [each.seq for each in lines.messages]
            assert lines.answers == [f"ok sub mixed {self.start}"]

    def _read_frames(self) -> None:
        with tailrace.connect(f"127.0.0.1:{self._node.port}") as client:
            messages = client.subscribe("mixed", Seq(self.start), topics=self.topics, credit_bytes=self._credit)
            while not self.seqs or self.seqs[-1] != self._last_seq:
                self.seqs.append(received(messages).seq)


def test_replay_becomes_live_without_a_gap_while_workers_are_replaced(node: Node, client: Client) -> None:
    """Readers begin at random places of a stream that grows meanwhile; each gets what matches its filter, once."""
    chance, rounds, size = random.Random(18), 60, 40
    topics = [random_topic(chance) for _ in range(30)]
    chosen = [chance.choice(topics) for _ in range(rounds * size)] + ["end/of/it"]

    def publish(first: int) -> None:
        with client.batcher("mixed") as batch:
            for seq in range(first, min(first + size, len(chosen))):
                batch.add(b"x" * chance.choice((0, 10, 5_000)), topic=chosen[seq])

    for first in range(0, 10 * size, size):
        publish(first)
    readers = [FilterReader(node, chance, "end/of/it", len(chosen) - 1)]
    for number in range(10, rounds):
        if number % 5 == 0:
            # All match the last message as well, which ends them.
            topic_filter = chance.choice(("#", "+/#", "+/+/+", "end/#"))
            readers.append(FilterReader(node, chance, topic_filter, len(chosen) - 1))
        if number == 30:
            replace_all(node, PATIENCE_S)
        publish(number * size)
    publish(rounds * size)
    for reader in readers:
        reader.thread.join(PATIENCE_S)
        expected = [seq for seq, topic in enumerate(chosen) if seq >= reader.start and matches(reader.topics, topic)]
        assert reader.seqs == expected, reader.topics


def test_a_filter_that_matches_little_passes_over_much(client: Client) -> None:
    """The pieces in which nothing matches are many times what a turn of the loop looks at."""
    payloads = [bytes(50_000)] * 20
    for number in range(10):
        client.publish_many("rare", payloads, topic="often")
        client.publish("rare", b"%d" % number, topic="seldom")
    client.publish_many("rare", payloads, topic="often")
    found = list(client.subscribe("rare", end=NOW, topics="seldom"))
    assert [message.payload for message in found] == [b"%d" % number for number in range(10)]
    live = client.subscribe("rare", Seq(100), topics="seldom")
    client.publish("rare", b"live", topic="seldom")
    assert [received(live).payload for _ in range(7)] == [b"4", b"5", b"6", b"7", b"8", b"9", b"live"]


def test_a_reader_that_takes_nothing_is_moved_in_the_middle_of_a_chunk(node: Node, client: Client) -> None:
    """Its rest is made again by another worker, by the same filter."""
    chance = random.Random(5)
    payloads = [chance.randbytes(30_000).replace(b"\n", b"") for _ in range(300)]
    for number, payload in enumerate(payloads):
        client.publish("moved", payload, topic=f"t/{number % 3}", ack=Ack.NONE)
    client.flush()
    with node.client() as lines:
        lines.send("sub moved 0 topics +/1")
        stuck = client.subscribe("moved", topics="+/1", credit_bytes=1 << 30)
        replace_all(node, PATIENCE_S)
        wanted = payloads[1::3]
        assert [each.payload for each in lines.read_messages(len(wanted))] == wanted
        assert [received(stuck).payload for _ in wanted] == wanted


def test_a_filter_for_many_random_filters(node: Node, client: Client) -> None:
    """Filters of all kinds, each compared with the naive implementation over the same messages."""
    chance = random.Random(9)
    topics = [random_topic(chance) for _ in range(200)]
    with client.batcher("random") as batch:
        for topic in topics:
            batch.add(b"", topic=topic)
    for topic_filter in {random_filter(chance) for _ in range(40)}:
        seqs = [message.seq for message in client.subscribe("random", end=NOW, topics=topic_filter)]
        assert seqs == [seq for seq, topic in enumerate(topics) if matches(topic_filter, topic)], topic_filter
