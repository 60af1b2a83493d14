"""The asyncio shell: a member of a durable consumer as an asynchronous iterator."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Generator
from types import TracebackType
from typing import Any

from tailrace.aio.driver import AsyncDriver
from tailrace.core.calls import PendingCall
from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import ConsumerState
from tailrace.core.info import MemberInfo
from tailrace.errors import OperationTimeout, TailraceError


class AsyncConsumer(MemberInfo):
    """The messages that a durable consumer gives this member. As `Consumer`; made by `AsyncClient.consumer`.

    Await it, or enter it as a context, to wait until the consumer is made; iterating does so by itself. The messages
    are settled as in the synchronous client: `with message:`, `message.ack()`, `message.nack()`.
    """

    def __init__(
        self, driver: AsyncDriver, state: ConsumerState, creating: PendingCall | None, timeout_s: float
    ) -> None:
        super().__init__(state, timeout_s)
        self._driver = driver
        self._creating = creating
        state.settle = self._settle

    def __await__(self) -> Generator[Any, None, AsyncConsumer]:
        return self._ready().__await__()

    async def __aenter__(self) -> AsyncConsumer:
        return await self._ready()

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except TailraceError:
            if kind is None:
                raise

    async def __aiter__(self) -> AsyncIterator[ConsumedMessage]:
        while (message := await self._next(math.inf)) is not None:
            yield message

    async def __anext__(self) -> ConsumedMessage:
        message = await self._next(math.inf)
        if message is None:
            raise StopAsyncIteration
        return message

    async def receive(self, timeout_s: float = math.inf) -> ConsumedMessage | None:
        """The next message; None once it is closed. Raises OperationTimeout when none comes in time."""
        return await self._next(self._driver.now_s() + timeout_s)

    async def receive_batch(self, timeout_s: float = math.inf) -> list[ConsumedMessage]:
        """The messages that have come, at least one; [] once it is closed. Raises OperationTimeout."""
        message = await self._next(self._driver.now_s() + timeout_s)
        return [] if message is None else [message, *self._state.take_rest(self._driver.now_s())]

    async def batches(self) -> AsyncIterator[list[ConsumedMessage]]:
        """The same messages as lists, as they came."""
        while batch := await self.receive_batch():
            yield batch

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the broker has stored all acknowledgements. Raises StaleAck, OperationTimeout."""
        await self._store_acks(self._deadline_s(timeout_s))
        self._state.check()

    async def close(self, timeout_s: float | None = None) -> None:
        """Sends the acknowledgements and closes. Messages in flight become available to other members at once.

        Raises StaleAck, or OperationTimeout if it is unknown which acknowledgements were stored.
        """
        deadline_s = self._deadline_s(timeout_s)
        self._state.end()
        self._driver.advance()
        await self._store_acks(deadline_s)
        await self._leave(deadline_s)
        self._state.check()

    async def _store_acks(self, deadline_s: float) -> None:
        """Waits until the broker has stored all acknowledgements. Raises OperationTimeout."""
        driver, state = self._driver, self._state
        if driver.session.is_asking:
            state.flush(driver.now_s())
            driver.advance()
        if not await self._wait(lambda: state.is_settled, deadline_s):
            raise OperationTimeout(f"{self.stream}: no answer to the acknowledgements of {self.name}")

    async def _leave(self, deadline_s: float) -> None:
        """Returns messages in flight, if there is time."""
        driver, now_s = self._driver, self._driver.now_s()
        call = self._state.leave(deadline_s - now_s, now_s) if driver.session.is_asking else None
        if call is not None:
            driver.advance()
            await self._wait(lambda: call.done, deadline_s)

    def _deadline_s(self, timeout_s: float | None) -> float:
        return self._driver.now_s() + (self._timeout_s if timeout_s is None else timeout_s)

    async def _ready(self) -> AsyncConsumer:
        call = self._creating
        if call is not None:
            await self._wait(lambda: call.done, math.inf)
            call.outcome()  # raises why not
        return self

    async def _next(self, deadline_s: float) -> ConsumedMessage | None:
        driver, state = self._driver, self._state
        await self._ready()
        while True:
            message = state.take(driver.now_s())
            if message is not None or state.is_over:
                return message
            driver.advance()
            if not await self._wait(lambda: state.has_news or not state.is_asking, deadline_s):
                raise OperationTimeout(f"{self.stream}: no message for {self.name} in time")

    async def _wait(self, done: Callable[[], bool], deadline_s: float) -> bool:
        return await self._driver.wait_until(done, deadline_s)

    def _settle(self, message: ConsumedMessage, reason: str | None, delay_s: float | None = None) -> None:
        driver, state = self._driver, self._state
        due_s = state.due_s
        state.record(message, reason, driver.now_s(), delay_s)
        if state.due_s < due_s:
            driver.advance()
