"""The asyncio shell: several streams as one asynchronous iterator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import cast

from tailrace.aio.driver import AsyncDriver
from tailrace.aio.subscription import AsyncSubscription
from tailrace.core.merged_state import MergedState
from tailrace.core.subscription_state import SubscriptionState
from tailrace.errors import OperationTimeout


class AsyncMergedSubscription(AsyncSubscription):
    """The messages of several streams. Those of one stream are in order; streams take turns.

    Made by `AsyncClient.subscribe` for a list of names or a pattern. `stream` has all of them, a message its
    own.
    """

    def __init__(
        self, driver: AsyncDriver, merged: MergedState, begin: Callable[[MergedState], Awaitable[None]]
    ) -> None:
        """`begin` lists the streams and subscribes to them."""
        super().__init__(driver, cast(SubscriptionState, merged))  # for its facts; what differs is below
        self._merged = merged
        self._begin: Callable[[MergedState], Awaitable[None]] | None = begin

    @property
    def streams(self) -> frozenset[str]:
        """The streams that are read so far."""
        return frozenset(self._merged.names)

    def cancel(self) -> None:
        """Ends the subscription: no more messages arrive, and iterations end."""
        self._rest, self._begin = iter(()), None
        if not self._driver.is_severed:
            self._merged.cancel()
            self._driver.advance()

    def __del__(self) -> None:
        pass  # its streams end with the client, or by `cancel`

    async def _ready(self) -> AsyncSubscription:
        merged = self._merged
        begin, self._begin = self._begin, None
        if begin is not None:
            await begin(merged)
        await self._driver.wait_until(lambda: merged.ready or merged.has_news)
        merged.check()
        return self

    async def _fetch(self, deadline_s: float) -> bool:
        merged, driver = self._merged, self._driver
        await self._ready()
        while True:
            arrived = merged.next_arrived(self._given)
            driver.advance()
            if arrived is not None:
                break
            if merged.is_over:
                return False
            self._given = None
            merged.poll(driver.now_s())
            driver.advance()
            poll_s = merged.poll_s
            await driver.wait_until(partial(merged.has_changed, poll_s), min(deadline_s, poll_s))
            if not merged.has_news and driver.now_s() >= deadline_s:
                raise OperationTimeout(f"{merged.stream}: no message came in time")
        self._given, self._rest = arrived, iter(arrived.messages)
        if arrived.trimmed is not None:
            raise arrived.trimmed
        return True
