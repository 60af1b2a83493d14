"""The asyncio shell: a subscription as an asynchronous iterator."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Generator
from types import TracebackType
from typing import Any

from tailrace.aio.driver import AsyncDriver
from tailrace.core.info import SubscriptionInfo
from tailrace.core.message import Message
from tailrace.core.subscription_state import SubscriptionPhase, SubscriptionState
from tailrace.errors import OperationTimeout


class AsyncSubscription(SubscriptionInfo):
    """The messages of a stream, one by one, in order. Made by `AsyncClient.subscribe`.

    Await it, or enter it as a context, to wait for the broker's answer; iterating does so by itself. It may be left and
    entered again: messages that were not taken yet come next.
    """

    def __init__(self, driver: AsyncDriver, state: SubscriptionState) -> None:
        super().__init__(state)
        self._driver = driver
        self._news = asyncio.Event()
        state.waiter = self._news

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
        return await self._next(self._driver.now_s() + timeout_s)

    async def receive_batch(self, timeout_s: float = math.inf) -> list[Message]:
        """The messages that have come, at least one; [] at the end. Raises OperationTimeout."""
        if rest := list(self._rest):
            return rest
        return list(self._rest) if await self._fetch(self._driver.now_s() + timeout_s) else []

    async def batches(self) -> AsyncIterator[list[Message]]:
        """The same messages as lists, as they arrived: cheaper for many messages."""
        while batch := await self.receive_batch():
            yield batch

    def cancel(self) -> None:
        """Ends the subscription: no more messages arrive, and iterations end."""
        self._rest = iter(())
        if self._driver.is_severed:
            return
        self._driver.session.cancel(self._state)
        self._driver.advance()

    def __del__(self) -> None:
        if self._state.phase is SubscriptionPhase.OVER or self._driver.is_severed:
            return
        if not self._driver.loop.is_closed():
            self._driver.loop.call_soon_threadsafe(_forget, self._driver, self._state)

    async def _ready(self) -> AsyncSubscription:
        state = self._state
        await self._wait(lambda: state.ready or state.has_news, math.inf)
        if not state.ready:
            state.first()  # raises why not
        return self

    async def _next(self, deadline_s: float) -> Message | None:
        for message in self._rest:
            return message
        return next(self._rest, None) if await self._fetch(deadline_s) else None

    async def _fetch(self, deadline_s: float) -> bool:
        """Puts the next messages into `_rest`; returns False at the end."""
        state, driver = self._state, self._driver
        while True:
            arrived = driver.session.next_arrived(state, self._given)
            if driver.session.link is not None and driver.session.link.outgoing.nbytes:
                driver.advance()
            if arrived is not None or state.has_news:
                break
            if not await self._wait(lambda: state.has_news, deadline_s):
                raise OperationTimeout(f"{state.stream}: no message came in time; seq {state.next_seq} is next")
        if arrived is None:
            return False
        self._given, self._rest = arrived, iter(arrived.messages)
        if arrived.trimmed is not None:
            raise arrived.trimmed
        return True

    async def _wait(self, done: Callable[[], bool], deadline_s: float) -> bool:
        while not done():
            self._news.clear()
            left_s = deadline_s - self._driver.now_s()
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


def _forget(driver: AsyncDriver, state: SubscriptionState) -> None:
    driver.session.cancel(state)
    driver.advance()
