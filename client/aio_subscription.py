"""The asyncio shell: a subscription as an asynchronous iterator."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import TracebackType
from typing import Any

from tailrace.drive import Drive
from tailrace.errors import OperationTimeout
from tailrace.forks import watch
from tailrace.message import Message
from tailrace.reading import Arrived, Reading, State


class AsyncSubscription:
    """The messages of a stream, one by one, in order. Made by `AsyncClient.subscribe`.

    Await it, or enter it as a context, to wait for the broker's answer; iterating does so by itself. It may be left and
    entered again: messages that were not taken yet come next.
    """

    def __init__(self, drive: Drive, reading: Reading) -> None:
        self._drive = drive
        self._reading = reading
        self._news = asyncio.Event()
        self._rest: Iterator[Message] = iter(())
        self._given: Arrived | None = None  # where `_rest` comes from
        reading.waiter = self._news
        watch(self)

    @property
    def stream(self) -> str:
        return self._reading.stream

    @property
    def start_seq(self) -> int:
        """The seq of the first message; -1 before the broker has answered."""
        return self._reading.start_seq

    @property
    def end_seq(self) -> int | None:
        """The seq before which it ends; None when it has no end."""
        return self._reading.end_seq

    def __await__(self) -> Generator[Any, None, AsyncSubscription]:
        return self._ready().__await__()

    async def __aenter__(self) -> AsyncSubscription:
        return await self._ready()

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.cancel()

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            for message in self._rest:
                yield message
            if not await self._fetch(math.inf):
                return

    async def __anext__(self) -> Message:
        message = await self._next(math.inf)
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float = math.inf) -> Message | None:
        """The next message; None at the end. Raises OperationTimeout when none comes in time."""
        return await self._next(self._drive.now_s() + timeout_s)

    async def receive_batch(self, timeout_s: float = math.inf) -> list[Message]:
        """The messages that have come, at least one; [] at the end. Raises OperationTimeout."""
        if rest := list(self._rest):
            return rest
        return list(self._rest) if await self._fetch(self._drive.now_s() + timeout_s) else []

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The same messages as lists, as they arrived: cheaper for many messages."""
        while batch := await self.receive_batch():
            yield batch

    def cancel(self) -> None:
        """Ends the subscription: no more messages arrive, and iterations end."""
        self._rest = iter(())
        if self._drive.is_severed:
            return
        self._drive.session.cancel(self._reading)
        self._drive.advance()

    def sever(self) -> None:
        """In a forked child: the remaining messages are the parent's, also in the middle of an iteration."""
        deque(self._rest, maxlen=0)

    def __del__(self) -> None:
        if self._reading.state is State.OVER or self._drive.is_severed:
            return
        if not self._drive.loop.is_closed():
            self._drive.loop.call_soon_threadsafe(_forget, self._drive, self._reading)

    def __repr__(self) -> str:
        reading = self._reading
        return f"<AsyncSubscription {reading.stream!r} next_seq={reading.next_seq} {reading.state.name}>"

    async def _ready(self) -> AsyncSubscription:
        reading = self._reading
        await self._wait(lambda: reading.ready or reading.has_news, math.inf)
        if not reading.ready:
            reading.first()  # raises why not
        return self

    async def _next(self, deadline_s: float) -> Message | None:
        for message in self._rest:
            return message
        return next(self._rest, None) if await self._fetch(deadline_s) else None

    async def _fetch(self, deadline_s: float) -> bool:
        """Puts the next messages into `_rest`; returns False at the end."""
        reading, drive = self._reading, self._drive
        while True:
            arrived = drive.session.next_arrived(reading, self._given)
            if drive.session.link is not None and drive.session.link.outgoing.nbytes:
                drive.advance()
            if arrived is not None or reading.has_news:
                break
            if not await self._wait(lambda: reading.has_news, deadline_s):
                raise OperationTimeout(f"{reading.stream}: no message came in time; seq {reading.next_seq} is next")
        if arrived is None:
            return False
        self._given, self._rest = arrived, iter(arrived.messages)
        if arrived.trimmed is not None:
            raise arrived.trimmed
        return True

    async def _wait(self, done: Callable[[], bool], deadline_s: float) -> bool:
        while not done():
            self._news.clear()
            left_s = deadline_s - self._drive.now_s()
            if left_s <= 0:
                return False
            if left_s == math.inf:
                await self._news.wait()
                continue
            try:
                async with asyncio.timeout(left_s):
                    await self._news.wait()
            except TimeoutError:
                return done()
        return True


def _forget(drive: Drive, reading: Reading) -> None:
    drive.session.cancel(reading)
    drive.advance()
