"""The engine of the asyncio shell: its queue and its ends. More of it is in test_aio.py."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tailrace.aio.driver import AsyncDriver
from tailrace.core.address import Address
from tailrace.core.connector import ConnectionPhase
from tailrace.core.options import ClientOptions
from tailrace.core.publications import PendingPublication
from tailrace.core.session import Session
from tailrace.errors import ClientClosed, OperationTimeout
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tests.client.model_server import ModelServer


async def connected(server: ModelServer) -> AsyncDriver:
    options = ClientOptions(max_in_flight=1)
    driver = AsyncDriver(Session([Address("127.0.0.1", server.port)], options, random.random, time.monotonic()))
    driver.advance()
    assert await driver.wait_until(lambda: driver.session.phase is ConnectionPhase.READY, driver.now_s() + 20.0)
    return driver


def publication(timeout_s: float = 30.0) -> PendingPublication:
    return PendingPublication(("s",), bytearray(b"\x20" + bytes(31)), 1, Ack.APPENDED, timeout_s)


def test_what_waits_for_room_has_its_time_too(server: ModelServer) -> None:
    async def main() -> None:
        driver = await connected(server)
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        flying = asyncio.create_task(driver.publish(publication()))
        late = publication(timeout_s=0.02)
        await asyncio.sleep(0)
        await driver.publish(late)
        with pytest.raises(OperationTimeout, match="it was not sent"):
            late.outcome()
        flying.cancel()
        driver.abort()

    asyncio.run(main())


def test_what_waits_for_room_hears_of_the_end(server: ModelServer) -> None:
    async def main() -> None:
        driver = await connected(server)
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        waiting = [publication() for _ in range(3)]
        tasks = [asyncio.create_task(driver.publish(each)) for each in waiting]
        await asyncio.sleep(0)
        driver.abort()
        await asyncio.gather(*tasks)
        for each in waiting:
            with pytest.raises(ClientClosed):
                each.outcome()

    asyncio.run(main())


def test_waiting_has_an_end(server: ModelServer) -> None:
    async def main() -> None:
        driver = await connected(server)
        assert not await driver.wait_until(lambda: False, driver.now_s() + 0.02)
        await driver.close(1.0)
        await driver.close(1.0)

    asyncio.run(main())


def test_ending_it_while_it_dials(server: ModelServer) -> None:
    async def main() -> None:
        driver = AsyncDriver(
            Session([Address("127.0.0.1", server.port)], ClientOptions(), random.random, time.monotonic())
        )
        driver.advance()
        await asyncio.sleep(0)
        driver.abort()
        await asyncio.sleep(0.01)
        assert driver.session.phase is ConnectionPhase.CLOSED

    asyncio.run(main())
