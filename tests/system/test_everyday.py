"""What a person meets in the first week, at a real node with two workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from threading import Thread

import pytest

import tailrace
from tailrace import Client, OperationTimeout, Seq, StreamBehind
from tests.cli.process import tailrace as run_tailrace
from tests.system.node import PATIENCE_S, Node, running, wait_for

pytestmark = pytest.mark.system

SETTINGS = ("ack_wait_s", "deliveries_max", "retry_s", "retry_max_s")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("everyday") / "data", workers=2) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[Client]:
    with tailrace.connect(f"127.0.0.1:{node.port}") as client:
        yield client


def test_a_seq_beyond_the_end_says_what_the_end_is(node: Node, client: Client) -> None:
    client.publish_many("short", [b"0", b"1", b"2"])
    text = "short: seq 7 is beyond the end of the stream: its last message has seq 2, and the next one will have 3"
    with pytest.raises(StreamBehind, match=text):
        client.subscribe("short", Seq(7)).receive(PATIENCE_S)
    done = run_tailrace("tail", "short", "--from", "#7", "--no-follow", "-s", f"127.0.0.1:{node.port}")
    assert (done.returncode, text in done.stderr.decode()) == (1, True)
    with node.client() as lines:
        assert lines.ask("sub short #7") == "ok sub short 3"


def test_a_receipt_counts_members_of_durable_consumers(client: Client) -> None:
    assert client.publish("read", b"nobody").subscribers == 0
    with client.subscribe("read"):
        wait_for(lambda: client.publish("read", b"a reader").subscribers == 1, "one subscriber")
    with client.consumer("read", "g") as member, client.consumer("read", "h") as other:
        assert member.receive(PATIENCE_S) and other.receive(PATIENCE_S)
        wait_for(lambda: client.publish("read", b"two members").subscribers == 2, "two members")
    wait_for(lambda: client.publish("read", b"nobody").subscribers == 0, "no members")


def test_requests_are_replied_to_by_readers_and_members(node: Node, client: Client) -> None:
    """Threads share a client; each has its own reply. Another reply, and a late one, reach nobody."""
    client.publish("questions", b"to make the stream")

    def answer() -> None:
        with tailrace.connect(f"127.0.0.1:{node.port}") as other, other.consumer("questions", "g") as member:
            for message in member:
                with message:
                    if "reply-to" in message.headers and message.payload != b"in vain":
                        for _ in range(2):
                            message.reply(b"re: " + message.payload, headers={"kind": "reply"})
                    if message.payload == b"last":
                        return

    answering = Thread(target=answer)
    answering.start()
    found: dict[int, bytes] = {}

    def ask(number: int) -> None:
        found[number] = client.request("questions", b"%d" % number, headers={"x": "1"}, timeout_s=PATIENCE_S).payload

    threads = [Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: b"re: %d" % number for number in range(8)}
    with pytest.raises(OperationTimeout):
        client.request("questions", b"in vain", timeout_s=0.2)
    last = client.request("questions", b"last", timeout_s=PATIENCE_S)
    assert last.stream.startswith("reply-to/") and last.headers["kind"] == "reply"
    answering.join()


def test_requests_of_tasks(node: Node) -> None:
    async def play() -> list[bytes]:
        address = f"127.0.0.1:{node.port}"
        async with tailrace.connect_async(address) as asking, tailrace.connect_async(address) as answering:

            async def answer() -> None:
                async for message in answering.subscribe("of.tasks", wait=True):
                    if message.payload != b"in vain":
                        await message.reply(b"re: " + message.payload)

            task = asyncio.create_task(answer())
            asked = [asking.request("of.tasks", b"%d" % each, timeout_s=PATIENCE_S) for each in range(4)]
            replies = await asyncio.gather(*asked)
            with pytest.raises(OperationTimeout):
                await asking.request("of.tasks", b"in vain", timeout_s=0.2)
            task.cancel()
            return [each.payload for each in replies]

    assert asyncio.run(play()) == [b"re: 0", b"re: 1", b"re: 2", b"re: 3"]


def test_one_member_of_the_consumers_of_a_pattern(node: Node, client: Client) -> None:
    names = [f"shop.{number}" for number in range(6)]
    for name in names:
        client.publish_many(name, [b"0", b"1"], key=name)
    with client.consumer("shop.*", "billing") as consumer:
        first = [consumer.receive(PATIENCE_S) for _ in range(12)]
        assert sorted((each.stream, each.seq, each.key, each.epoch) for each in first if each) == sorted(
            (name, seq, name, 1) for name in names for seq in (0, 1)
        )
        client.publish("shop.later", b"0")
        client.publish("other.later", b"0")
        later = consumer.receive(PATIENCE_S)
        assert later is not None and (later.stream, later.consumer) == ("shop.later", "billing")
        for each in [*first[:-1], later]:
            assert each is not None
            each.ack()
        consumer.flush()
        assert [info.lag_messages for name in ("shop.later", "shop.5") for info in client.consumers(name)].count(0) >= 1
        with pytest.raises(OperationTimeout, match="no message for billing in time"):
            consumer.receive(0.1)
    left = first[-1]
    assert left is not None
    with client.consumer(names, "billing") as consumer:
        again = consumer.receive(PATIENCE_S)
        assert again is not None and (again.stream, again.seq) == (left.stream, left.seq)
    with pytest.raises(tailrace.UnknownStream):
        client.consumer(["shop.1", "is.missing"], "billing")


def test_one_member_of_several_consumers_for_tasks(node: Node, client: Client) -> None:
    for name in ("tasks.a", "tasks.b"):
        client.publish(name, b"0")

    async def play() -> list[str]:
        async with tailrace.connect_async(f"127.0.0.1:{node.port}") as other:
            found = []
            async with other.consumer("tasks.*", "g") as consumer:
                async for message in consumer:
                    with message:
                        found.append(message.stream)
                    if len(found) == 2:
                        await other.publish("tasks.c", b"made later")
                    if len(found) == 3:
                        return found
        raise AssertionError

    assert sorted(asyncio.run(play())) == ["tasks.a", "tasks.b", "tasks.c"]
    lags = [info.lag_messages for name in ("tasks.a", "tasks.b", "tasks.c") for info in client.consumers(name)]
    assert lags == [0, 0, 0]


def test_a_consumer_has_the_same_settings_whatever_door_made_it(node: Node, client: Client) -> None:
    client.publish("doors", b"x")
    with node.client() as lines:
        assert lines.ask("consume doors line 0") == "ok consume doors line 0"
    client.create_consumer("doors", "python")
    client.consumer("doors", "member").close()
    made = run_tailrace("consumers", "create", "doors", "command", "-s", f"127.0.0.1:{node.port}")
    assert made.returncode == 0, made
    found = {info.name: asdict(info) for info in client.consumers("doors")}
    settings = [tuple([each[name] for name in SETTINGS]) for each in found.values()]
    assert len(found) == 4 and set(settings) == {(30.0, 10, 1.0, 60.0)}
    client.create_consumer("doors", "own", ack_wait_s=7.0, deliveries_max=3)
    client.consumer("doors", "own").close()
    [own] = [info for info in client.consumers("doors") if info.name == "own"]
    assert (own.ack_wait_s, own.deliveries_max) == (7.0, 3), "without a value it is taken as it is"
