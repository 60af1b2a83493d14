"""Several streams as one asynchronous iterator, against a broker in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import tailrace
from tailrace import NEW, NOW, AsyncClient, OperationTimeout
from tailrace.core import stream_watch
from tests.client.model_server import ModelServer

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def streams(server: ModelServer) -> None:
    for name in (b"a.1", b"a.2", b"a.3", b"b"):
        server.publish(name, *[name + b"/%d" % number for number in range(4)])


def run(what: Callable[[AsyncClient], Awaitable[None]], server: ModelServer) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S), tailrace.connect_async(server.address) as client:
            await what(client)

    asyncio.run(main())


def test_lists_and_patterns_to_their_ends(server: ModelServer) -> None:
    async def read(client: AsyncClient) -> None:
        found = [(each.stream, each.seq) async for each in client.subscribe(["b", "a.1"], end=NOW)]
        assert sorted(found) == [(name, seq) for name in ("a.1", "b") for seq in range(4)]
        async with client.subscribe("a.*", end=NOW) as subscription:
            assert sum([len(batch) async for batch in subscription.batches()]) == 12
            assert await subscription.receive() is None

    run(read, server)


def test_streams_that_are_made_later_are_read_whole(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_watch, "POLL_S", 0.01)

    async def read(client: AsyncClient) -> None:
        async with client.subscribe("a.*", NEW) as found:
            with pytest.raises(OperationTimeout):
                await found.receive(0.05)
            server.publish(b"a.4", b"one", b"two")
            later = [await found.receive(), await found.receive()]
            assert [(each.stream, each.payload) for each in later if each] == [("a.4", b"one"), ("a.4", b"two")]
            found.cancel()
            assert await found.receive() is None

    run(read, server)


def test_a_stream_that_is_deleted_leaves_a_pattern_and_its_name_is_read_again(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_watch, "POLL_S", 0.01)

    async def read(client: AsyncClient) -> None:
        async with client.subscribe("a.*", NEW) as found, client.subscribe(["a.1", "b"], NEW) as listed:
            server.call(lambda: server.model.delete(b"a.1"))
            server.publish(b"a.2", b"after it")
            after = await found.receive()
            assert after is not None and after.payload == b"after it"
            with pytest.raises(OperationTimeout):
                await found.receive(0.1)
            server.publish(b"a.1", b"one")
            again = await found.receive()
            assert again is not None and (again.stream, again.seq, again.payload) == ("a.1", 0, b"one")
            with pytest.raises(tailrace.StreamDeleted):
                await listed.receive()
            server.publish(b"b", b"more")
            more = await listed.receive()
            assert more is not None and more.payload == b"more"

    run(read, server)


def test_the_streams_and_workers_of_the_node(server: ModelServer) -> None:
    async def ask(client: AsyncClient) -> None:
        assert [each.name for each in await client.streams()] == ["a.1", "a.2", "a.3", "b"]
        assert [each.name for each in await client.streams("*.2")] == ["a.2"]
        assert [each.state for each in await client.workers()] == ["ready"]

    run(ask, server)
