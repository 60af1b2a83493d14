"""Durable consumers through the client library: each message is acknowledged, across cuts, kills and promotions.

Without failures each message is delivered once; a database that records the work has each effect once, in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.shard.names import shard_of
from tests.system.node import PATIENCE_S, Node, running, wait_for
from tests.system.processes import worker_pid
from tests.system.proxy import Cut, Proxy, Way
from tests.system.test_client_failover import CONFIG, address, streams, tell
from tests.system.test_client_survival import seed

pytestmark = pytest.mark.system

WORKERS = 2
SHARDS = 16
MESSAGES = 40


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    data = tmp_path_factory.mktemp("consumers") / "data"
    with running(data, "--shards", str(SHARDS), workers=WORKERS) as node:
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[tailrace.Client]:
    with tailrace.connect(address(node)) as client:
        yield client


def publish(client: tailrace.Client, stream: str, count: int = MESSAGES) -> None:
    client.publish_many(stream, [b"%d" % number for number in range(count)])


def kill_owner(node: Node, stream: str) -> None:
    os.kill(worker_pid(node, shard_of(stream.encode(), SHARDS) % WORKERS), signal.SIGKILL)


def lag(client: tailrace.Client, stream: str) -> int:
    [info] = client.consumers(stream)
    return info.lag_messages


def test_who_comes_back_goes_on_where_it_was(client: tailrace.Client, node: Node) -> None:
    publish(client, "left")
    seqs: list[int] = []
    for count in (3, 1, 20, 16):
        with tailrace.connect(address(node)) as other, other.consumer("left", "billing", member="me") as consumer:
            for _ in range(count):
                with next(consumer) as message:
                    seqs.append(message.seq)
                    assert (message.payload, message.deliveries) == (b"%d" % message.seq, 1)
    assert seqs == list(range(MESSAGES))
    [info] = client.consumers("left")
    assert (info.name, info.next_seq, info.lag_messages, info.in_flight) == ("billing", MESSAGES, 0, 0)
    assert (info.lag_s, info.redelivered, info.dead, info.deliveries_max) == (None, 0, 0, 10)


def test_making_moving_and_ending_them(client: tailrace.Client) -> None:
    publish(client, "calls")
    assert client.create_consumer("calls", "billing", tailrace.Seq(7), ack_wait_s=60.0) == 7
    assert client.create_consumer("calls", "billing", ack_wait_s=60.0) == 7
    with pytest.raises(tailrace.BadRequest):
        client.create_consumer("calls", "billing", ack_wait_s=61.0)
    assert client.reset_consumer("calls", "billing", tailrace.NEW) == MESSAGES
    consumer = client.consumer("calls", "billing", create=False)
    client.publish("calls", b"new")
    assert next(consumer).payload == b"new"
    assert client.delete_consumer("calls", "billing")
    with pytest.raises(tailrace.NoSuchConsumer):
        next(consumer)
    assert not client.delete_consumer("calls", "billing")
    with pytest.raises(tailrace.UnknownStream):
        client.reset_consumer("no-such-stream", "billing", tailrace.START)


def test_wherever_the_connection_is_cut_each_is_given_once(node: Node) -> None:
    """Lost answers are repeated, to the same member, and are not deliveries of their own."""
    cuts = 0
    with Proxy(node.port) as proxy, tailrace.connect(address(node)) as direct:
        publish(direct, "cut", 12)
        for place in range(1, 1_000, 67):
            for way in Way:
                route = proxy.route(way, place, Cut.RESET if place % 2 else Cut.END)
                with tailrace.connect(f"127.0.0.1:{route.port}", timeout_s=PATIENCE_S) as client:
                    seqs: list[int] = []
                    with client.consumer("cut", f"{way.name}-{place}") as consumer:
                        while len(seqs) < 12:
                            with next(consumer) as message:
                                seqs.append(message.seq)
                                assert message.deliveries == 1
                    assert seqs == list(range(12)), (way, place)
                    cuts += client.connections > 1
                assert all(info.lag_messages == 0 for info in direct.consumers("cut"))
                direct.delete_consumer("cut", f"{way.name}-{place}")
    assert cuts > 10


def test_members_share_the_work_and_keep_the_order_of_keys(client: tailrace.Client, node: Node) -> None:
    done: list[tuple[int, str | bytes | None, int]] = []
    for number in range(90):
        client.publish("shared", b"%d" % number, key=f"key-{number % 9}")

    def work(member: int) -> None:
        with (
            contextlib.suppress(tailrace.OperationTimeout),
            tailrace.connect(address(node)) as mine,
            mine.consumer("shared", "billing", batch=4) as consumer,
        ):
            while (message := consumer.receive(1.0)) is not None:
                with message:
                    threading.Event().wait(0.002)  # so that no member is through before the others begin
                    done.append((member, message.key, message.seq))

    threads = [threading.Thread(target=work, args=(member,)) for member in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(seq for _, _, seq in done) == list(range(90))
    assert len({member for member, _, _ in done}) == 3
    for key in {key for _, key, _ in done}:
        assert [seq for _, each, seq in done if each == key] == [seq for seq in range(90) if f"key-{seq % 9}" == key]


LONG_S = 600.0


def test_who_closes_in_the_middle_gives_back_what_it_has(client: tailrace.Client) -> None:
    """Its client stays open; the other member has the key, and all there is of it, long before `ack_wait_s`."""
    client.publish_many("given-back", [b"%d" % number for number in range(MESSAGES)], key="k")
    stays = client.consumer("given-back", "billing", ack_wait_s=LONG_S)
    with client.consumer("given-back", "billing", ack_wait_s=LONG_S) as leaves:
        for seq in range(4):
            with next(leaves) as message:
                assert message.seq == seq
        assert next(leaves).seq == 4
        with pytest.raises(tailrace.OperationTimeout):
            stays.receive(0.05)  # and goes on waiting at the broker
    given: list[tuple[int, int]] = []
    while len(given) < MESSAGES - 4:
        with stays.receive(PATIENCE_S) or pytest.fail("it is closed") as message:
            given.append((message.seq, message.deliveries))
    assert given == [(seq, 1) for seq in range(4, MESSAGES)]
    stays.flush()
    [info] = client.consumers("given-back")
    assert (info.lag_messages, info.members, info.redelivered) == (0, 1, 0)
    stays.close()
    assert client.consumers("given-back")[0].members == 0


def test_so_does_a_task(node: Node) -> None:
    async def work() -> None:
        async with tailrace.connect_async(address(node)) as client:
            await client.publish_many("given-back-by-task", [b"x"] * MESSAGES, key="k")
            async with client.consumer("given-back-by-task", "billing", ack_wait_s=LONG_S) as leaves:
                async for message in leaves:
                    if message.seq == 4:
                        break
                    message.ack()
            stays = client.consumer("given-back-by-task", "billing", ack_wait_s=LONG_S)
            again = await stays.receive(PATIENCE_S)
            assert again is not None and (again.seq, again.deliveries) == (4, 1)

    asyncio.run(asyncio.wait_for(work(), 3 * PATIENCE_S))


def test_dead_letters(client: tailrace.Client) -> None:
    client.publish("doomed", b"fine", key="a")
    client.publish("doomed", b"poison", key="a", headers={"shop": "7"})
    client.publish("doomed", b"fine too", key="a")
    given: list[tuple[bytes, int]] = []
    with client.consumer("doomed", "billing", deliveries_max=3, retry_s=0.05) as consumer:
        while len(given) < 5:
            message = next(consumer)
            given.append((message.payload, message.deliveries))
            with contextlib.suppress(ValueError), message:
                if message.payload == b"poison":
                    raise ValueError("no such customer")
    assert given == [(b"fine", 1), (b"poison", 1), (b"poison", 2), (b"poison", 3), (b"fine too", 1)]
    [letter] = client.subscribe("doomed/$dead", end=tailrace.NOW, wait=True)
    assert letter.payload == b"poison"
    assert letter.headers == {
        "key": "a",
        "shop": "7",
        "dead-stream": "doomed",
        "dead-seq": "1",
        "dead-consumer": "billing",
        "dead-deliveries": "3",
        "dead-reason": "ValueError: no such customer",
    }
    [info] = client.consumers("doomed")
    assert (info.dead, info.lag_messages, info.redelivered) == (1, 0, 2)


def test_what_takes_too_long_goes_to_another(client: tailrace.Client) -> None:
    publish(client, "late", 1)
    slow = client.consumer("late", "billing", ack_wait_s=0.3, retry_s=0.05)
    message = next(slow)
    other = client.consumer("late", "billing", ack_wait_s=0.3, retry_s=0.05)
    again = next(other)
    assert (again.seq, again.deliveries) == (0, 2)
    message.ack()
    with pytest.raises(tailrace.StaleAck):
        slow.flush()
    again.ack()
    other.flush()
    assert lag(client, "late") == 0


@pytest.mark.thorough
def test_the_owner_is_killed_again_and_again(client: tailrace.Client, node: Node, tmp_path: Path) -> None:
    """Before, between and after the answers of a consumer that records its work in a database."""
    chance, kills = random.Random(seed()), 0
    publish(client, "killed", 400)
    with contextlib.closing(sqlite3.connect(tmp_path / "effects.db")) as database:
        database.execute("CREATE TABLE effects (seq INTEGER)")
        once = tailrace.Once(database)
        with tailrace.connect(address(node)) as mine, mine.consumer("killed", "billing", batch=7) as consumer:
            for message in consumer:
                with once(message) as is_new:
                    if is_new:
                        database.execute("INSERT INTO effects VALUES (?)", (message.seq,))
                if chance.random() < 0.01 or (message.seq == 200 and not kills):
                    kill_owner(node, "killed")
                    kills += 1
                if message.seq == 399:
                    break
        found = [seq for (seq,) in database.execute("SELECT seq FROM effects ORDER BY seq")]
    print(f"{kills} kills")
    assert found == list(range(400))
    assert lag(client, "killed") == 0


def test_the_node_is_killed_and_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "data", workers=WORKERS) as node, tailrace.connect(address(node)) as client:
        publish(client, "s")
        consumer = client.consumer("s", "billing", member="me")
        seqs: list[int] = []
        for kill in (5, 17, None):
            while len(seqs) < (kill or MESSAGES):
                with next(consumer) as message:
                    seqs.append(message.seq)
                    assert message.deliveries == 1
            consumer.flush()
            if kill is not None:
                node.kill()
                node.start()
        assert seqs == list(range(MESSAGES))
        assert lag(client, "s") == 0


def test_it_goes_on_wherever_the_master_is(tmp_path: Path) -> None:
    """At a slave, whose master decides; and at the slave that was promoted when the master was lost."""
    with running(tmp_path / "aa", config=CONFIG) as first, running(tmp_path / "bb", config=CONFIG) as second:
        tell(first, "master s")
        tell(second, f"slave 127.0.0.1 {first.port} * 0")
        wait_for(lambda: "s" in streams(second), "it finds the stream")
        with (
            tailrace.connect(address(second), address(first), timeout_s=PATIENCE_S) as client,
            client.consumer("s", "billing", ack=tailrace.Ack.REPLICATED) as consumer,
        ):
            publish(client, "s")
            with client.consumer("s", "billing", ack=tailrace.Ack.REPLICATED) as early:
                assert next(early).seq == 0  # and it leaves without having finished it
            seqs: list[int] = []
            while len(seqs) < 15:
                with next(consumer) as message:
                    seqs.append(message.seq)
            consumer.flush(PATIENCE_S)
            assert seqs == list(range(15))
            first.kill()
            tell(second, "promote s")
            first.start()  # below the other now: without a node that holds it nothing is finished
            while len(seqs) < MESSAGES:
                with next(consumer) as message:
                    seqs.append(message.seq)
            assert sorted(seqs) == list(range(MESSAGES))


def test_asyncio(node: Node) -> None:
    """Tasks that share one consumer, while its owner is killed."""

    async def work() -> None:
        done: list[int] = []

        async def handle(consumer: tailrace.AsyncConsumer) -> None:
            async for message in consumer:
                with message:
                    await asyncio.sleep(0.001)
                    done.append(message.seq)

        async with tailrace.connect_async(address(node)) as client:
            await client.publish_many("tasks", [b"x"] * 200)
            async with client.consumer("tasks", "billing") as consumer:
                tasks = [asyncio.create_task(handle(consumer)) for _ in range(5)]
                while len(done) < 60:
                    await asyncio.sleep(0.001)
                kill_owner(node, "tasks")
                while len({*done}) < 200:
                    await asyncio.sleep(0.001)
                await consumer.close()
                await asyncio.gather(*tasks)
            [info] = await client.consumers("tasks")
            assert (info.lag_messages, info.in_flight) == (0, 0)

    asyncio.run(asyncio.wait_for(work(), 3 * PATIENCE_S))
