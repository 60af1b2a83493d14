"""The asyncio shell: a member of a durable consumer as an asynchronous iterator."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Generator
from types import TracebackType
from typing import Any

from tailrace.calls import Call
from tailrace.consumed import ConsumedMessage
from tailrace.consuming import Consuming
from tailrace.drive import Drive
from tailrace.errors import OperationTimeout, TailraceError


class AsyncConsumer:
    """The messages that a durable consumer gives this member. As `Consumer`; made by `AsyncClient.consumer`.

    Await it, or enter it as a context, to wait until the consumer is made; iterating does so by itself. The messages
    are settled as in the synchronous client: `with message:`, `message.ack()`, `message.nack()`.
    """

    def __init__(self, drive: Drive, consuming: Consuming, creating: Call | None, timeout_s: float) -> None:
        self._drive = drive
        self._consuming = consuming
        self._creating = creating
        self._timeout_s = timeout_s
        consuming.settle = self._settle

    @property
    def stream(self) -> str:
        return self._consuming.wish.stream

    @property
    def name(self) -> str:
        return self._consuming.wish.name

    @property
    def member(self) -> str:
        """The name of this member among those of the consumer."""
        return self._consuming.wish.member

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
        return await self._next(self._drive.now_s() + timeout_s)

    async def receive_batch(self, timeout_s: float = math.inf) -> list[ConsumedMessage]:
        """The messages that have come, at least one; [] once it is closed. Raises OperationTimeout."""
        message = await self._next(self._drive.now_s() + timeout_s)
        return [] if message is None else [message, *self._consuming.take_rest(self._drive.now_s())]

    async def batches(self) -> AsyncIterator[list[ConsumedMessage]]:
        """The same messages as lists, as they came."""
        while batch := await self.receive_batch():
            yield batch

    async def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the broker has stored all acknowledgements. Raises StaleAck, OperationTimeout."""
        await self._tell(self._deadline_s(timeout_s))
        self._consuming.check()

    async def close(self, timeout_s: float | None = None) -> None:
        """Sends the acknowledgements and closes. Messages in flight become available to other members at once.

        Raises StaleAck, or OperationTimeout if it is unknown which acknowledgements were stored.
        """
        deadline_s = self._deadline_s(timeout_s)
        self._consuming.end()
        self._drive.advance()
        await self._tell(deadline_s)
        await self._leave(deadline_s)
        self._consuming.check()

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self.name!r} of {self.stream!r} member={self.member!r}>"

    async def _tell(self, deadline_s: float) -> None:
        """Waits until the broker has stored all acknowledgements. Raises OperationTimeout."""
        drive, consuming = self._drive, self._consuming
        if drive.session.is_asking:
            consuming.flush(drive.now_s())
            drive.advance()
        if not await self._wait(lambda: consuming.is_settled, deadline_s):
            raise OperationTimeout(f"{self.stream}: no answer to the acknowledgements of {self.name}")

    async def _leave(self, deadline_s: float) -> None:
        """Returns messages in flight, if there is time."""
        drive, now_s = self._drive, self._drive.now_s()
        call = self._consuming.leave(deadline_s - now_s, now_s) if drive.session.is_asking else None
        if call is not None:
            drive.advance()
            await self._wait(lambda: call.done, deadline_s)

    def _deadline_s(self, timeout_s: float | None) -> float:
        return self._drive.now_s() + (self._timeout_s if timeout_s is None else timeout_s)

    async def _ready(self) -> AsyncConsumer:
        call = self._creating
        if call is not None:
            await self._wait(lambda: call.done, math.inf)
            call.outcome()  # raises why not
        return self

    async def _next(self, deadline_s: float) -> ConsumedMessage | None:
        drive, consuming = self._drive, self._consuming
        await self._ready()
        while True:
            message = consuming.take(drive.now_s())
            if message is not None or consuming.is_over:
                return message
            drive.advance()
            if not await self._wait(lambda: consuming.has_news or not consuming.is_asking, deadline_s):
                raise OperationTimeout(f"{self.stream}: no message for {self.name} in time")

    async def _wait(self, done: Callable[[], bool], deadline_s: float) -> bool:
        return await self._drive.wait_until(done, deadline_s)

    def _settle(self, message: ConsumedMessage, reason: str | None) -> None:
        drive, consuming = self._drive, self._consuming
        due_s = consuming.due_s
        consuming.note(message, reason, drive.now_s())
        if consuming.due_s < due_s:
            drive.advance()
