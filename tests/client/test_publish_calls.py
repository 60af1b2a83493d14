"""How many Python functions of ours one publish calls: most of its processor time. The numbers only fall."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

import tailrace
from tailrace import Ack, AsyncClient, Client
from tailrace.protocol import messages as m
from tailrace.shard.frame import HEADER_BYTES
from tests.client.model_server import ModelServer
from tests.tidy import tree

SYNC_MAX = 26  # one publish, its answer included
UNACKNOWLEDGED_MAX = 3  # one of many with `Ack.NONE`, their request included
AIO_MAX = 39  # the same
TOGETHER_MAX = 8  # each of many that are published in one turn of the loop
TOGETHER = 50
OURS = tuple(str(tree.ROOT / folder) + "/" for folder in ("client", "protocol", "shard", "build"))


class Counter:
    """Counts the calls of Python functions of ours in this thread, in its context."""

    def __init__(self) -> None:
        self.calls = 0

    def __enter__(self) -> Counter:
        sys.setprofile(self._count)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        self.calls += event == "call" and is_ours(frame.f_code.co_filename)


@cache
def is_ours(filename: str) -> bool:
    """The leaves are left out: compiled, they are not seen."""
    path = str(Path(filename).resolve())
    return filename == "<string>" or (path.startswith(OURS) and not path.endswith(("_cy.py", "_cython_shim.py")))


@pytest.fixture(autouse=True)
def without_another_profile() -> None:
    if sys.getprofile() is not None:
        pytest.skip("another profile counts here")


def least(count: Callable[[], int]) -> int:
    """The least of several counts: an answer may come in two pieces, and work that is due at intervals may fall in
    between.
    """
    return min(count() for _ in range(5))


def test_one_publish(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client:
        assert least(lambda: publish_once(client)) <= SYNC_MAX


def test_one_of_many_publishes_without_acknowledgement(server: ModelServer) -> None:
    with tailrace.connect(server.address) as client:
        assert least(lambda: publish_many(client)) / TOGETHER <= UNACKNOWLEDGED_MAX


def publish_many(client: Client) -> int:
    """With one request, or a few on a slow machine."""
    with Counter() as counter:
        for _ in range(TOGETHER):
            client.publish("s", b"x", ack=Ack.NONE)
    return counter.calls


def publish_once(client: Client) -> int:
    client.publish("s", b"the stream has its handle")
    with Counter() as counter:
        client.publish("s", b"x")
    return counter.calls


def test_publishes_of_asyncio(server: ModelServer) -> None:
    async def main() -> None:
        async with tailrace.connect_async(server.address) as client:
            one = [await publish_together(client, 1) for _ in range(5)]
            many = [await publish_together(client, TOGETHER) for _ in range(5)]
            assert min(one) <= AIO_MAX
            assert min(many) / TOGETHER <= TOGETHER_MAX

    asyncio.run(main())


async def publish_together(client: AsyncClient, count: int) -> int:
    await client.publish("s", b"the stream has its handle")
    with Counter() as counter:
        await asyncio.gather(*(client.publish("s", b"x") for _ in range(count)))
    return counter.calls


def test_publishes_of_one_turn_go_out_together(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one at once, all others with the end of the loop's turn."""
    written: list[int] = []

    async def main() -> None:
        async with tailrace.connect_async(server.address) as client:
            await client.publish("s", b"the stream has its handle")
            write = client._driver._write

            def counted() -> None:
                written.append(waiting(client))
                write()

            monkeypatch.setattr(client._driver, "_write", counted)
            await asyncio.gather(*(client.publish("s", b"x") for _ in range(TOGETHER)))
            monkeypatch.undo()

    asyncio.run(main())
    first, second = (nbytes for nbytes in written if nbytes)
    others = m.PUBLISH_TO_ONE.size + (TOGETHER - 1) * (HEADER_BYTES + len(b"x"))
    assert second == others + (first - m.PUBLISH_TO_ONE.size - HEADER_BYTES - len(b"x")), "one request, numbered once"


def waiting(client: AsyncClient) -> int:
    link = client._driver.session.link
    return 0 if link is None else link.outgoing.nbytes
