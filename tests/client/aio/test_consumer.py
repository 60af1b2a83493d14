"""The asynchronous consumer, against a broker in memory behind a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

import tailrace
from tailrace.protocol import consuming as c
from tailrace.protocol import messages as m
from tests.client.model import ModelConnection
from tests.client.model_consumers import Group, Groups
from tests.client.model_server import ModelServer

PATIENCE_S = 20.0
TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
def groups(server: ModelServer) -> Groups:
    server.publish(b"s", *TEN)
    return Groups(server.model)


def group_of(groups: Groups) -> Group:
    return groups.group(b"s", b"billing")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, PATIENCE_S))


async def wait_until_finished(groups: Groups, seqs: set[int]) -> None:
    while group_of(groups).finished != seqs:
        await asyncio.sleep(0.002)


def test_each_message_once_and_where_it_was_left(server: ModelServer, groups: Groups) -> None:
    async def work() -> None:
        seen = []
        async with tailrace.connect_async(server.address) as client:
            for stop_after in (3, 9):
                async with client.consumer("s", "billing") as consumer:
                    assert (consumer.stream, consumer.name) == ("s", "billing")
                    async for message in consumer:
                        with message:
                            seen.append(message.payload)
                        if message.seq == stop_after:
                            break
                assert not group_of(groups).flight, "what it had not finished is anybody's"
        assert seen == TEN
        assert group_of(groups).finished == set(range(10))

    run(work())


def test_awaited_it_is_made(server: ModelServer, groups: Groups) -> None:
    async def work() -> None:
        async with tailrace.connect_async(server.address) as client:
            consumer = await client.consumer("s", "billing", start=tailrace.Seq(4), member="me", ack_wait_s=7.0)
            assert (group_of(groups).first_seq, group_of(groups).ack_wait_s) == (4, 7.0)
            assert repr(consumer) == "<AsyncConsumer 'billing' of 's' member='me'>"
            assert (await anext(consumer)).seq == 4
            groups.model.on_message = deny
            with pytest.raises(tailrace.Denied):
                await client.consumer("s", "other")
            with pytest.raises(tailrace.Denied):
                await anext(client.consumer("s", "other"))
            groups.model.on_message = groups.take

    def deny(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, c.Consume):
            connection.fail("denied", op=m.Op.CONSUME, id=message.id)
        return isinstance(message, c.Consume)

    run(work())


def test_many_tasks_share_it(server: ModelServer, groups: Groups) -> None:
    """Messages in flight are not delivered to them again."""

    async def work() -> None:
        seen: list[int] = []

        async def handle(consumer: tailrace.AsyncConsumer) -> None:
            async for message in consumer:
                with message:
                    await asyncio.sleep(0.003)
                    seen.append(message.seq)

        async with tailrace.connect_async(server.address) as client, client.consumer("s", "billing") as consumer:
            tasks = [asyncio.create_task(handle(consumer)) for _ in range(4)]
            await wait_until_finished(groups, set(range(10)))
            await consumer.close()
            await asyncio.gather(*tasks)
        assert sorted(seen) == list(range(10))

    run(work())


def test_batches_and_failures(server: ModelServer, groups: Groups) -> None:
    async def work() -> None:
        async with tailrace.connect_async(server.address) as client, client.consumer("s", "billing") as consumer:
            with pytest.raises(ZeroDivisionError), await anext(consumer):
                raise ZeroDivisionError("of the test")
            seqs: list[tuple[int, int]] = []
            async for batch in consumer.batches():
                for message in batch:
                    message.ack()
                    seqs.append((message.seq, message.deliveries))
                if len(seqs) == 10:
                    break
            assert seqs == [(0, 2), *((seq, 1) for seq in range(1, 10))]
            with pytest.raises(tailrace.OperationTimeout, match="no message for billing in time"):
                await consumer.receive(timeout_s=0.02)

    run(work())


def test_what_lingers_and_what_is_flushed(server: ModelServer, groups: Groups) -> None:
    async def work() -> None:
        async with tailrace.connect_async(server.address) as client:
            lingering = client.consumer("s", "billing", linger_s=0.01, member="me")
            (await anext(lingering)).ack()
            await wait_until_finished(groups, {0})
            await lingering.close()
            consumer = client.consumer("s", "billing", linger_s=1_000.0, member="me")
            message = await anext(consumer)
            message.ack()
            await consumer.flush()
            assert group_of(groups).finished == {0, message.seq}
            message = await anext(consumer)
            groups.model.on_message = lambda _connection, got: isinstance(got, c.Get)
            message.ack()
            with pytest.raises(tailrace.OperationTimeout, match="no answer to the acknowledgements of billing"):
                await consumer.flush(timeout_s=0.02)
            groups.model.on_message = groups.take
            await client.close(timeout_s=0.05)

    run(work())


def test_what_waits_ends_when_it_is_closed(server: ModelServer, groups: Groups) -> None:
    async def work() -> None:
        async with tailrace.connect_async(server.address) as client:
            consumer = client.consumer("s", "billing", start=tailrace.NEW)
            task = asyncio.create_task(consumer.receive())
            while not groups.waiting:
                await asyncio.sleep(0.001)
            await asyncio.wait_for(consumer.close(), PATIENCE_S / 4)
            assert await task is None
            assert groups.waiting == []
            assert [message async for message in consumer] == []

    run(work())


def test_calls(server: ModelServer, groups: Groups) -> None:
    async def work() -> None:
        async with tailrace.connect_async(server.address) as client:
            assert await client.create_consumer("s", "billing", tailrace.Seq(3)) == 3
            assert await client.reset_consumer("s", "billing", tailrace.NEW) == 10
            [billing] = await client.consumers("s")
            assert (billing.name, billing.lag_messages) == ("billing", 0)
            assert await client.delete_consumer("s", "billing")
            assert not await client.delete_consumer("s", "billing")
            await client.publish("keyed", b"a", key="x")
            async with client.batcher("keyed") as batch:
                await batch.add(b"b", key="y")
            async with client.consumer("keyed", "billing") as consumer:
                assert [(await anext(consumer)).key for _ in range(2)] == ["x", "y"]

    run(work())


def test_wherever_the_connection_is_cut_each_is_finished_once(server: ModelServer, groups: Groups) -> None:
    async def work() -> None:
        async with tailrace.connect_async(server.address) as client:
            for cut_after in range(1, 700, 67):
                groups.groups.clear()
                server.cut_after(cut_after)
                seqs: list[int] = []
                async with client.consumer("s", "billing", member="me") as consumer:
                    while len(seqs) < 10:
                        with await anext(consumer) as message:
                            seqs.append(message.seq)
                assert seqs == list(range(10)), cut_after
                assert group_of(groups).finished == set(range(10))

    run(work())
