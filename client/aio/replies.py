"""The asyncio shell: requests that wait for their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from tailrace.aio.subscription import AsyncSubscription
from tailrace.core.message import Message, Receipt
from tailrace.core.replies import PendingReplies
from tailrace.errors import ClientClosed, OperationTimeout


class AsyncReplies:
    """Those that one client waits for. Tasks may share it: one of them reads, for all."""

    def __init__(self, subscribe: Callable[..., AsyncSubscription], now_s: Callable[[], float]) -> None:
        self._pending = PendingReplies()
        self._subscription = subscribe(self._pending.stream, wait=True, on_trimmed="skip")
        self._now_s = now_s
        self._turned = asyncio.Event()
        self._reading = False

    @property
    def is_over(self) -> bool:
        """Whether no replies come any more."""
        return self._subscription.is_over

    async def request(
        self,
        publish: Callable[[Mapping[str, str | bytes]], Awaitable[Receipt]],
        headers: Mapping[str, str | bytes] | None,
        deadline_s: float,
    ) -> Message:
        """Publishes a request with its headers, and returns the first reply. Raises OperationTimeout, as `publish`."""
        correlation, full_headers = self._pending.begin(headers)
        try:
            receipt = await publish(full_headers)
            while (message := self._pending.reply(correlation)) is None:
                if self._now_s() >= deadline_s:
                    raise OperationTimeout(f"{receipt.shown()}: no reply in time")
                await self._turn(deadline_s)
            return message
        finally:
            self._pending.end(correlation)

    async def _turn(self, deadline_s: float) -> None:
        """Waits for a message, or until another task has read one."""
        if self._reading:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._turned.wait(), deadline_s - self._now_s())
            return
        self._reading = True
        try:
            arrived = await self._subscription.receive(deadline_s - self._now_s())
            if arrived is None:
                raise ClientClosed(f"{self._subscription.stream}: the client was closed before the reply came")
            self._pending.arrived(arrived)
        except OperationTimeout:
            return
        finally:
            self._reading = False
            turned, self._turned = self._turned, asyncio.Event()
            turned.set()
