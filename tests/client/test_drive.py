"""The engine of the asyncio shell: its queue and its ends. More of it is in test_aio.py."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tailrace.address import Address
from tailrace.connector import Phase
from tailrace.drive import Drive
from tailrace.errors import ClientClosed, OperationTimeout
from tailrace.options import Options
from tailrace.protocol import messages as m
from tailrace.protocol.messages import Ack
from tailrace.publications import Publication
from tailrace.session import Session
from tests.client.model_server import ModelServer


async def connected(server: ModelServer) -> Drive:
    options = Options(max_in_flight=1)
    drive = Drive(Session([Address("127.0.0.1", server.port)], options, random.random, time.monotonic()))
    drive.advance()
    assert await drive.wait_until(lambda: drive.session.phase is Phase.READY, drive.now_s() + 20.0)
    return drive


def publication(timeout_s: float = 30.0) -> Publication:
    return Publication(("s",), bytearray(b"\x20" + bytes(31)), 1, Ack.APPENDED, timeout_s)


def test_what_waits_for_room_has_its_time_too(server: ModelServer) -> None:
    async def main() -> None:
        drive = await connected(server)
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        flying = asyncio.create_task(drive.publish(publication()))
        late = publication(timeout_s=0.02)
        await asyncio.sleep(0)
        await drive.publish(late)
        with pytest.raises(OperationTimeout, match="it was not sent"):
            late.outcome()
        flying.cancel()
        drive.abort()

    asyncio.run(main())


def test_what_waits_for_room_hears_of_the_end(server: ModelServer) -> None:
    async def main() -> None:
        drive = await connected(server)
        server.model.on_message = lambda _connection, message: isinstance(message, m.Publish)
        waiting = [publication() for _ in range(3)]
        tasks = [asyncio.create_task(drive.publish(each)) for each in waiting]
        await asyncio.sleep(0)
        drive.abort()
        await asyncio.gather(*tasks)
        for each in waiting:
            with pytest.raises(ClientClosed):
                each.outcome()

    asyncio.run(main())


def test_waiting_has_an_end(server: ModelServer) -> None:
    async def main() -> None:
        drive = await connected(server)
        assert not await drive.wait_until(lambda: False, drive.now_s() + 0.02)
        await drive.close(1.0)
        await drive.close(1.0)

    asyncio.run(main())


def test_ending_it_while_it_dials(server: ModelServer) -> None:
    async def main() -> None:
        drive = Drive(Session([Address("127.0.0.1", server.port)], Options(), random.random, time.monotonic()))
        drive.advance()
        await asyncio.sleep(0)
        drive.abort()
        await asyncio.sleep(0.01)
        assert drive.session.phase is Phase.CLOSED

    asyncio.run(main())
