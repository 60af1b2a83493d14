"""Asynchronous iteration over a subscription."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest

import tailrace
from tailrace import AsyncClient
from tailrace.protocol import messages as m
from tests.client.aio.test_client import run, wait_for
from tests.client.model_server import ModelServer

TEN = [b"%d" % number for number in range(10)]
Work = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(autouse=True)
def stream(server: ModelServer) -> None:
    server.publish(b"s", *TEN)


def test_to_the_end_as_it_is(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = client.subscribe("s", end=tailrace.NOW)
        assert [message.payload async for message in subscription] == TEN
        assert (subscription.stream, subscription.start_seq, subscription.end_seq) == ("s", 0, 10)
        assert [message async for message in subscription] == []
        assert await subscription.receive() is None
        assert repr(subscription) == "<AsyncSubscription 's' next_seq=10 OVER>"

    run(work, server)


def test_what_is_published_meanwhile_follows(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = await client.subscribe("s", tailrace.NEW)
        assert subscription.start_seq == 10
        await client.publish_many("s", [b"new", b"er"])
        assert [(await anext(subscription)).payload for _ in range(2)] == [b"new", b"er"]

    run(work, server)


def test_it_may_be_left_and_entered_again(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = client.subscribe("s", end=tailrace.NOW)
        seqs = [(await anext(subscription)).seq]
        async for message in subscription:
            seqs.append(message.seq)
            if message.seq == 4:
                break
        first = await subscription.receive()
        assert first is not None
        seqs.append(first.seq)
        async for batch in subscription.batches():
            seqs += [message.seq for message in batch]
        assert seqs == list(range(10))
        with pytest.raises(StopAsyncIteration):
            await anext(subscription)

    run(work, server)


def test_no_message_in_time(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = await client.subscribe("s", tailrace.NEW)
        with pytest.raises(tailrace.OperationTimeout, match="seq 10 is next"):
            await subscription.receive(timeout_s=0.02)
        with pytest.raises(tailrace.OperationTimeout):
            await subscription.receive(timeout_s=0)

    run(work, server)


def test_errors(server: ModelServer) -> None:
    def on_message(connection: object, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Subscribe):
            connection.fail("unknown", op=m.Op.SUBSCRIBE, id=message.id)  # type: ignore[attr-defined]
        return isinstance(message, m.Subscribe)

    async def work(client: AsyncClient) -> None:
        with pytest.raises(tailrace.UnknownStream):
            await client.subscribe("s")
        with pytest.raises(tailrace.UnknownStream):
            async with client.subscribe("s"):
                pass
        with pytest.raises(tailrace.UnknownStream):
            async for _ in client.subscribe("s"):
                pass

    server.model.on_message = on_message
    run(work, server)


def test_trimmed_is_raised_in_its_place_and_reading_goes_on(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = client.subscribe("s", tailrace.Seq(1), tailrace.NOW)
        with pytest.raises(tailrace.Trimmed):
            await anext(subscription)
        assert [message.seq async for message in subscription] == [4, 5, 6, 7, 8, 9]

    server.call(lambda: server.model.trim(b"s", 4))
    run(work, server)


def test_cancelled_by_another_task(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = await client.subscribe("s", tailrace.NEW)
        asyncio.get_running_loop().call_later(0.02, subscription.cancel)
        assert [message async for message in subscription] == []

    run(work, server)


def test_a_task_that_waits_may_be_cancelled(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = await client.subscribe("s", tailrace.NEW)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await anext(subscription)
        await client.publish("s", b"later")
        assert (await anext(subscription)).payload == b"later"

    run(work, server)


def test_contexts_and_what_nobody_holds_end_it(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.subscribe("s") as subscription:
            await anext(subscription)
        await wait_for(lambda: len(server.model.said(m.Unsubscribe)) == 1)
        other = client.subscribe("s")
        await anext(other)
        del other
        gc.collect()
        await wait_for(lambda: len(server.model.said(m.Unsubscribe)) == 2)

    run(work, server)


def test_closing_the_client_ends_it(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        subscription = await client.subscribe("s", tailrace.NEW)
        reading = asyncio.create_task(anext(subscription, None))
        await asyncio.sleep(0)
        await client.close()
        assert await reading is None

    run(work, server)


def test_no_gap_and_no_duplicate_wherever_the_connection_is_cut(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        for cut_after in range(1, 900, 41):
            server.cut_after(cut_after)
            subscription = client.subscribe("s", end=tailrace.NOW, credit_bytes=200)
            assert [message.seq async for message in subscription] == list(range(10)), cut_after

    run(work, server)
