"""The asyncio batcher."""

from __future__ import annotations

import asyncio

import pytest

import tailrace
from tailrace import AsyncClient, BatchResult
from tailrace.protocol import messages as m
from tests.client.aio.test_client import run, wait_for
from tests.client.model import ModelConnection
from tests.client.model_server import ModelServer


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_everything_is_there_at_the_end(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.batcher("s", max_messages=7, headers={"a": "1"}) as batch:
            for payload in numbers(100):
                await batch.add(payload)
            await batch.extend(numbers(100))
            await batch.add(b"last", headers={})
        assert (batch.added, batch.acknowledged) == (201, 201)

    run(work, server)
    assert server.payloads(b"s") == [*numbers(100) * 2, b"last"]
    assert len(server.model.said(m.Publish)) == 29


def test_what_lingers_is_sent_by_itself(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.batcher("s", linger_s=0.01) as batch:
            for payload in numbers(3):
                await batch.add(payload)
                await wait_for(lambda payload=payload: payload in server.payloads(b"s"))  # type: ignore[misc]

    run(work, server)


def test_what_lingers_waits_for_room(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        flying = asyncio.create_task(client.publish("s", b"a"))
        await wait_for(lambda: server.model.said(m.Publish))
        async with client.batcher("t", linger_s=0.01) as batch:
            await batch.add(b"b")
            await asyncio.sleep(0.03)
            assert len(server.model.said(m.Publish)) == 1
            server.model.on_message = lambda _connection, _message: False
            server.cut()
        assert (await flying).seq == 0

    run(work, server, max_in_flight=1)
    assert server.payloads(b"t") == [b"b"]


def test_more_than_may_be_under_way(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.batcher("s", max_messages=1) as batch:
            await batch.extend(numbers(100))

    run(work, server, max_in_flight=2)
    assert server.payloads(b"s") == numbers(100)


def refuse_second(server: ModelServer) -> None:
    count = [0]

    def on_message(connection: ModelConnection, message: m.AnyMessage) -> bool:
        if isinstance(message, m.Publish):
            count[0] += 1
            if count[0] == 2:
                connection.fail("full", op=m.Op.PUBLISH, id=message.request)
                return True
        return False

    server.model.on_message = on_message


def test_a_batch_that_fails_is_raised_or_told(server: ModelServer) -> None:
    results: list[BatchResult] = []

    async def work(client: AsyncClient) -> None:
        refuse_second(server)
        with pytest.raises(tailrace.DiskFull):
            async with client.batcher("s", max_messages=2) as batch:
                await batch.extend(numbers(6))
        assert batch.acknowledged == 4
        refuse_second(server)
        async with client.batcher("s", max_messages=2, on_result=results.append) as batch:
            await batch.extend(numbers(5))
        refuse_second(server)
        with pytest.raises(ZeroDivisionError):
            async with client.batcher("s", max_messages=1) as batch:
                await batch.extend(numbers(3))
                raise ZeroDivisionError

    run(work, server)
    told = [(each.index, each.count, each.error is None) for each in results]
    assert told == [(0, 2, True), (2, 2, False), (4, 1, True)]


def test_after_the_client_was_closed(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        batch = client.batcher("s", max_messages=1)
        await client.close()
        with pytest.raises(tailrace.ClientClosed):
            await batch.add(b"a")

    run(work, server)


def test_through_a_lost_connection(server: ModelServer) -> None:
    async def work(client: AsyncClient) -> None:
        async with client.batcher("s", max_messages=10) as batch:
            for number in range(1_000):
                if number % 300 == 299:
                    server.cut()
                await batch.add(b"%d" % number)
        assert batch.acknowledged == 1_000

    run(work, server)
    assert list(dict.fromkeys(server.payloads(b"s"))) == numbers(1_000)
