"""The asyncio shell: a member of the durable consumers of several streams as one asynchronous iterator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from tailrace.aio.consumer import AsyncConsumer
from tailrace.aio.driver import AsyncDriver
from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import ConsumerState
from tailrace.core.merged_consumer_state import MergedConsumerState
from tailrace.errors import OperationTimeout, TailraceError


class AsyncMergedConsumer(AsyncConsumer):
    """The messages that the durable consumers of several streams give this member. As `MergedConsumer`."""

    def __init__(
        self,
        driver: AsyncDriver,
        merged: MergedConsumerState,
        begin: Callable[[], Awaitable[None]],
        timeout_s: float,
    ) -> None:
        super().__init__(driver, cast(ConsumerState, merged), None, timeout_s)
        self._merged = merged
        self._begin: Callable[[], Awaitable[None]] | None = begin
        self._members: list[AsyncConsumer] = []
        merged.on_member = lambda state: self._members.append(AsyncConsumer(driver, state, None, timeout_s))
        merged.on_left = self._forget

    @property
    def streams(self) -> frozenset[str]:
        """The streams that are read so far."""
        return frozenset(self._merged.names)

    def _forget(self, state: ConsumerState) -> None:
        """Nothing can be acknowledged in a stream that was deleted."""
        self._members = [each for each in self._members if each._state is not state]

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the broker has stored all acknowledgements. Raises StaleAck, OperationTimeout."""
        deadline_s = self._deadline_s(timeout_s)
        for member in list(self._members):
            await member.flush(deadline_s - self._driver.now_s())

    async def close(self, timeout_s: float | None = None) -> None:
        """As `AsyncConsumer.close`, of all streams; raises the first error when all are closed."""
        deadline_s = self._deadline_s(timeout_s)
        self._merged.end()
        self._driver.advance()
        errors: list[TailraceError] = []
        for member in self._members:
            try:
                await member.close(deadline_s - self._driver.now_s())
            except TailraceError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def _ready(self) -> AsyncConsumer:
        begin, self._begin = self._begin, None
        if begin is not None:
            await begin()
        return self

    async def _next(self, deadline_s: float) -> ConsumedMessage | None:
        driver, merged = self._driver, self._merged
        await self._ready()
        while True:
            message = merged.take(driver.now_s())
            if message is not None or merged.is_over:
                return message
            merged.watch.poll(driver.now_s())
            driver.advance()
            poll_s = merged.watch.poll_s
            await self._wait(partial(merged.has_changed, poll_s), min(deadline_s, poll_s))
            if not merged.has_news and driver.now_s() >= deadline_s:
                raise OperationTimeout(f"{self.stream}: no message for {self.name} in time")
