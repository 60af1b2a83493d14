"""Failed messages wait before their next delivery, at every door: Python, asyncio, line protocol, command."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

import pytest

import tailrace
from tests.system.node import LineClient, Node, running
from tests.system.test_dead_letters import command

pytestmark = pytest.mark.system

OUTAGE_S = 2.0
LONG_S = 3_600.0
MESSAGES = 20
PATIENCE_S = 60.0
FAILS_ONCE = "import os; raise SystemExit(os.environ['TAILRACE_MESSAGE_DELIVERIES'] == '1')"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("redelivery") / "data", workers=2) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[tailrace.Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


def test_an_outage_makes_no_dead_letters_with_the_defaults(client: tailrace.Client) -> None:
    client.publish_many("outage", [b"x"] * MESSAGES)
    over_s = time.monotonic() + OUTAGE_S
    failures = 0
    done: set[int] = set()
    with client.consumer("outage", "billing") as consumer:
        while len(done) < MESSAGES:
            message = consumer.receive(PATIENCE_S)
            assert message is not None
            if time.monotonic() < over_s:
                failures += 1
                message.nack("no database")
            else:
                message.ack()
                done.add(message.seq)
        consumer.flush()
        [info] = client.consumers("outage")
    assert (info.dead, info.lag_messages, info.deliveries_max) == (0, 0, 10)
    assert failures <= 3 * MESSAGES, "each waited for a second, then for two"


def test_the_key_of_a_failed_message_waits_and_others_go_on(client: tailrace.Client) -> None:
    for key in "abaa":
        client.publish("keys", key.encode(), key=key)
    with client.consumer("keys", "billing") as consumer:
        first = next(consumer)
        first.nack("later", delay_s=LONG_S)
        other = next(consumer)
        assert (first.seq, other.seq) == (0, 1)
        other.ack()
        client.publish("keys", b"c", key="c")
        another = next(consumer)
        assert another.seq == 4, "the later messages of its key wait with it"
        another.ack()
        with pytest.raises(tailrace.OperationTimeout):
            consumer.receive(0.3)
        consumer.flush()
    [info] = client.consumers("keys")
    assert (info.lag_messages, info.in_flight) == (3, 0)


def test_a_delay_of_0_and_the_settings_in_asyncio(node: Node) -> None:
    async def work() -> list[int]:
        given = []
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as client:
            await client.publish("async", b"x")
            async with client.consumer("async", "billing", retry_s=LONG_S, retry_max_s=LONG_S) as consumer:
                for delay_s in (0, None):
                    message = await consumer.receive(PATIENCE_S)
                    assert message is not None
                    given.append(message.deliveries)
                    with pytest.raises(tailrace.InvalidArgument, match="delay_s"):
                        message.nack("no", delay_s=-1)
                    message.nack("no", delay_s=delay_s)
                with pytest.raises(tailrace.OperationTimeout):
                    await consumer.receive(0.3)
        return given

    assert asyncio.run(asyncio.wait_for(work(), 3 * PATIENCE_S)) == [1, 2]


def test_the_line_protocol_says_after_how_many_milliseconds(node: Node, client: tailrace.Client) -> None:
    client.publish_many("lines", [b"x"] * 2)
    client.create_consumer("lines", "n", retry_s=LONG_S, retry_max_s=LONG_S)
    with LineClient(node.port) as peer:
        assert taken(peer, "get lines n") == [0]
        assert peer.ask("nack lines n 0 because after 3600000") == "ok nack lines n 0"
        assert taken(peer, "get lines n") == [1]
        assert peer.ask("nack lines n 1 after 0") == "ok nack lines n 1"
        assert taken(peer, "get lines n") == [1]
        assert peer.ask("nack lines n 1") == "ok nack lines n 1"
        assert taken(peer, "get lines n 0 9") == [], "it waits as the consumer was made"
        assert peer.ask("nack lines n 1 after soon").startswith("err usage MS is a number up to 604800000")


def taken(peer: LineClient, line: str) -> list[int]:
    peer.messages.clear()
    peer.ask(line)
    return [message.seq for message in peer.messages]


@pytest.mark.thorough
def test_the_command_waits_as_it_is_asked_to(node: Node, client: tailrace.Client) -> None:
    client.publish("command", b"x")
    create = ("consumers", "create", "command", "g", "--retry", "3600", "--retry-max", "3600", "--deliveries", "7")
    assert command(node, *create)[0] == 0
    words = ("consume", "command", "g", "--count", "2", "--retry-after", "0", "--", sys.executable, "-c", FAILS_ONCE)
    code, _, err = command(node, *words)
    assert (code, err.count(b"exit code 1")) == (1, 1)
    code, out, _ = command(node, "consumers", "command", "--json")
    row = json.loads(out)
    row = row[0] if isinstance(row, list) else row
    assert (row["lag_messages"], row["retry_s"], row["retry_max_s"], row["deliveries_max"]) == (0, 3600, 3600, 7)
