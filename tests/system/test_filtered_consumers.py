"""Durable consumers with topic filters, over real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tests.cli.process import tailrace as run_tailrace
from tests.system.node import Node, running, wait_for

pytestmark = pytest.mark.system

WORKERS = 2
STAY = "[node]\naffinity = false\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("filters") / "data", workers=WORKERS, config=STAY) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[tailrace.Client]:
    with connected(node) as client:
        yield client


def connected(node: Node) -> tailrace.Client:
    return tailrace.connect(f"127.0.0.1:{node.port}")


def publish(client: tailrace.Client, stream: str, messages: int) -> None:
    """Each tenth message is of the topic a/b, its payload its seq."""
    with client.batcher(stream) as batcher:
        for seq in range(messages):
            batcher.add(str(seq).encode(), topic="a/b" if seq % 10 == 3 else f"c/{seq % 7}")


def wanted(messages: int) -> list[int]:
    return list(range(3, messages, 10))


def received(consumer: tailrace.Consumer) -> tailrace.ConsumedMessage:
    message = consumer.receive(30.0)
    assert message is not None
    return message


def drain(client: tailrace.Client, stream: str, count: int, **options: str) -> list[int]:
    with client.consumer(stream, "g", **options) as consumer:  # type: ignore[arg-type]
        got: list[int] = []
        while len(got) < count:
            with received(consumer) as message:
                assert message.topic == "a/b"
                got.append(message.seq)
    return got


def test_only_what_matches_comes_and_counts(client: tailrace.Client) -> None:
    publish(client, "s", 20_000)
    assert drain(client, "s", 1_000, topics="a/+") == wanted(20_000)[:1_000]
    (info,) = client.consumers("s")
    assert (info.topics, info.next_seq) == ("a/+", wanted(20_000)[1_000])
    assert drain(client, "s", 1_000) == wanted(20_000)[1_000:]
    client.publish("s", b"other", topic="c/1")
    client.publish("s", b"mine", topic="a/b")
    assert drain(client, "s", 1) == [20_001]


def test_another_filter_is_refused_by_the_name_of_the_kept_one(client: tailrace.Client) -> None:
    publish(client, "kept", 10)
    client.create_consumer("kept", "g", topics="a/+")
    client.create_consumer("kept", "all")
    with pytest.raises(tailrace.BadRequest, match=r"with the topic filter 'a/\+'"):
        client.consumer("kept", "g", topics="a/#")
    with pytest.raises(tailrace.BadRequest, match="without a topic filter"):
        client.consumer("kept", "all", topics="a/#")
    with pytest.raises(tailrace.InvalidArgument, match="must be the last level"):
        client.consumer("kept", "new", topics="#/a")
    with pytest.raises(tailrace.BrokerError, match="at most 256 bytes"):
        client.create_consumer("kept", "new", topics="x" * 257)


def test_a_waiting_member_is_given_what_matches(node: Node) -> None:
    async def play() -> list[int]:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as client:
            await client.publish("live", b"0", topic="c/1")
            async with client.consumer("live", "g", topics="a/b") as consumer:
                waiting = asyncio.ensure_future(consumer.receive(30.0))
                for number in range(50):
                    await client.publish("live", b"%d" % number, topic="c/1")
                await client.publish("live", b"mine", topic="a/b")
                message = await waiting
                assert message is not None
                message.ack()
            (info,) = await client.consumers("live")
            assert (info.topics, info.lag_messages) == ("a/b", 0)
            return [message.seq]

    assert asyncio.run(play()) == [51]


def test_dead_letters_reset_and_redelivery(client: tailrace.Client) -> None:
    publish(client, "dying", 40)
    options = {"topics": "a/+", "deliveries_max": 2, "retry_s": 0.0}
    with client.consumer("dying", "g", **options) as consumer:  # type: ignore[arg-type]
        for _ in range(2):
            message = received(consumer)
            assert message.seq == 3
            message.nack("no")
            consumer.flush()
        assert [received(consumer).seq for _ in range(3)] == [13, 23, 33]
    wait_for(lambda: [letter.seq for letter in client.dead_letters("dying")] == [0], "there is a letter", 30.0)
    assert client.reset_consumer("dying", "g", tailrace.Seq(20)) == 20
    assert drain(client, "dying", 2) == [23, 33]


def test_the_command_has_filters(node: Node, client: tailrace.Client) -> None:
    publish(client, "by-command", 40)
    server = ("-s", f"127.0.0.1:{node.port}")
    made = run_tailrace("consumers", "create", "by-command", "g", "--topics", "a/+", *server)
    assert made.returncode == 0, made.stderr
    taken = run_tailrace("consume", "by-command", "g", "--topics", "a/+", "-n", "4", *server)
    assert taken.stdout.split() == [b"3", b"13", b"23", b"33"]
    refused = run_tailrace("consume", "by-command", "g", "--topics", "a/#", *server)
    assert refused.returncode == 1 and b"with the topic filter 'a/+'" in refused.stderr
    (row,) = map(json.loads, run_tailrace("consumers", "ls", "by-command", "--json", *server).stdout.splitlines())
    assert (row["topics"], row["lag_messages"]) == ("a/+", 0)


def test_a_killed_node_keeps_filter_and_place(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS, config=STAY) as node, connected(node) as client:
        publish(client, "s", 1_000)
        assert drain(client, "s", 40, topics="a/+") == wanted(1_000)[:40]
        for pid in node.worker_pids():
            os.kill(pid, signal.SIGKILL)
        assert drain(client, "s", 60) == wanted(1_000)[40:]
        (info,) = client.consumers("s")
        assert (info.topics, info.in_flight) == ("a/+", 0)


RULES = """
[[topics]]
filter = "t/#"
stream = "t"
"""


def test_names_are_topics_where_rules_say_so_and_the_lag_is_counted(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS, config=RULES) as node, connected(node) as client:
        with client.batcher("t") as batcher:
            for seq in range(20_000):
                batcher.add(b"%d" % seq, topic=f"t/{seq % 10}/a")
        with client.consumer("t/3/+", "g") as consumer:
            assert [received(consumer).seq for _ in range(2)] == [3, 13]
        client.create_consumer("t/#", "all")

        def counted() -> bool:
            rows = {info.name: info for info in client.consumers("t/7")}
            assert rows["g"].topics == "t/3/+" and 2_000 <= rows["g"].lag_messages <= 20_000
            return not any(info.lag_at_most for info in rows.values())

        wait_for(counted, "all is counted", 30.0)
        assert {info.name: info.lag_messages for info in client.consumers("t")} == {"all": 20_000, "g": 2_000}
        with node.client() as lines:
            assert lines.ask("consume t/3/+ g 0") == "ok consume t g 3"
            assert lines.ask("consume t g 0 topics t/4/+").startswith("err usage ")
            header, *rows, _end = lines.ask_table("consumers t/3/+")
            assert header.endswith(" lag topics") and [row.split()[-2:] for row in rows] == [
                ["exact", "t/#"],
                ["exact", "t/3/+"],
            ]
            lines.answers.clear()
            lines.send("get t/3/+ g 1000", "ack t/3/+ g 3")
            lines.read_messages(1)
            assert lines.read_answers(2) == ["ok get t g 1", "ok ack t g 3"]
        listed = run_tailrace("consumers", "t/3/+", "-s", f"127.0.0.1:{node.port}")
        assert listed.returncode == 0 and b"t/3/+" in listed.stdout and b"1,999" in listed.stdout
