"""The asyncio shell: publishing in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType

from tailrace.aio.driver import AsyncDriver
from tailrace.core.arguments import Payload
from tailrace.core.batch import BatcherInput, Batches, BatchResult
from tailrace.errors import TailraceError

RETRY_S = 0.01
"""When a batch that is due must wait for room."""


class AsyncBatcher(BatcherInput):
    """Gathers messages of one stream and publishes them in batches. As `Batcher`; made by `AsyncClient.batcher`."""

    def __init__(
        self,
        driver: AsyncDriver,
        batch: Batches,
        headers: Mapping[str, str | bytes] | None,
        topic: str | None,
        on_result: Callable[[BatchResult], None] | None,
    ) -> None:
        super().__init__(driver.session, batch, headers, topic, on_result)
        self._driver = driver
        self._timer: asyncio.TimerHandle | None = None

    async def add(
        self,
        payload: Payload,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        key: str | bytes | None = None,
        topic: str | None = None,
    ) -> None:
        """Add a message, with these headers and this topic or those of the batcher, and `key`. Waits when too much is
        under way.
        """
        data, metadata = self._checked(payload, headers, key, topic)
        batch, driver = self._batches, self._driver
        batch.add_one(data, metadata, driver.now_s)
        await self._after_adding(was_empty=batch.count == 1)
        self._report()

    async def extend(self, payloads: Iterable[Payload]) -> None:
        """Adds many messages, all of them or, if one is too large, none."""
        batch, driver, taken = self._batches, self._driver, 0
        messages, metadata = self._checked_many(payloads), self._metadata
        while taken < len(messages):
            was_empty = not batch.count
            taken += batch.add(messages[taken:] if taken else messages, metadata, driver.now_s)
            await self._after_adding(was_empty)
        self._report()

    async def flush(self) -> None:
        """Sends the open batch, and waits until everything is answered."""
        await self._send()
        await self._driver.wait_until(lambda: self._batches.is_settled)
        self._report()

    async def __aenter__(self) -> AsyncBatcher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            await self.flush()
        except TailraceError:
            if kind is None:
                raise

    async def _after_adding(self, was_empty: bool) -> None:
        if self._batches.is_full:
            await self._send()
        elif was_empty:
            self._linger(self._batches.due_s)

    def _linger(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._driver.loop.call_at(due_s, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        if self._driver.has_room or self._driver.session.is_over:
            self._publish()
        else:
            self._linger(self._driver.now_s() + RETRY_S)

    async def _send(self) -> None:
        driver = self._driver
        await driver.wait_until(lambda: driver.has_room or driver.session.is_over)
        self._publish()

    def _publish(self) -> None:
        driver = self._driver
        self._batches.take()
        for publication in self._batches.unsent(driver.session.publications.holds):
            try:
                driver.session.publish(publication, driver.now_s())
            except TailraceError as error:
                publication.fail(error)
        driver.advance()

    def _report(self) -> None:
        """Reports the results of batches; without a callback raises the first error."""
        unreported: TailraceError | None = None
        for result in self._batches.take_results():
            if self._on_result is not None:
                self._on_result(result)
            else:
                unreported = unreported or result.error
        if unreported is not None:
            raise unreported
