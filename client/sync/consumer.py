"""The synchronous shell: a member of a durable consumer as an iterator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import monotonic
from types import TracebackType

from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import ConsumerState
from tailrace.core.info import MemberInfo
from tailrace.errors import OperationTimeout, TailraceError
from tailrace.sync.driver import Driver


class Consumer(MemberInfo):
    """The messages that a durable consumer gives this member, one by one. Made by `Client.consumer`.

    Each message must be settled: `with message:`, `message.ack()` or `message.nack()`. Threads may share the consumer.
    Leaving it as a context, or `close`, sends the acknowledgements and closes it; the client stays open.
    """

    def __init__(self, driver: Driver, state: ConsumerState, timeout_s: float) -> None:
        super().__init__(state, timeout_s)
        self._driver = driver
        state.settle = self._settle

    def __iter__(self) -> Iterator[ConsumedMessage]:
        while (message := self._next(math.inf)) is not None:
            yield message

    def __next__(self) -> ConsumedMessage:
        message = self._next(math.inf)
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout_s: float = math.inf) -> ConsumedMessage | None:
        """The next message; None once it is closed. Raises OperationTimeout when none comes in time."""
        return self._next(monotonic() + timeout_s)

    def receive_batch(self, timeout_s: float = math.inf) -> list[ConsumedMessage]:
        """The messages that have come, at least one; [] once it is closed. Raises OperationTimeout."""
        message = self._next(monotonic() + timeout_s)
        if message is None:
            return []
        with self._driver.lock:
            return [message, *self._state.take_rest(monotonic())]

    def batches(self) -> Iterator[list[ConsumedMessage]]:
        """The same messages as lists, as they came."""
        while batch := self.receive_batch():
            yield batch

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the broker has stored all acknowledgements. Raises StaleAck, OperationTimeout."""
        with self._driver.lock, self._driver.step:
            self._store_acks(self._deadline_s(timeout_s))
            self._state.check()

    def close(self, timeout_s: float | None = None) -> None:
        """Sends the acknowledgements and closes. Messages in flight become available to other members at once.

        Raises StaleAck, or OperationTimeout if it is unknown which acknowledgements were stored.
        """
        driver, state = self._driver, self._state
        deadline_s = self._deadline_s(timeout_s)
        with driver.lock, driver.step:
            state.end()
            driver.wake()
        with driver.lock, driver.step:
            self._store_acks(deadline_s)
            self._leave(deadline_s)
            state.check()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TailraceError:
            if kind is None:
                raise

    # --- with the driver's lock held ----------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        return self._state.due_s

    def send_due(self, now_s: float) -> None:
        """Sends acknowledgements that have lingered."""
        if self._driver.session.is_asking:
            self._state.tick(now_s)
            self._driver.push()

    def _store_acks(self, deadline_s: float) -> None:
        """Waits until the broker has stored all acknowledgements. Raises OperationTimeout."""
        driver, state = self._driver, self._state
        if driver.session.is_asking:
            state.flush(monotonic())
            driver.push()
        if not driver.wait_until(lambda: state.is_settled, deadline_s):
            raise OperationTimeout(f"{self.stream}: no answer to the acknowledgements of {self.name}")

    def _leave(self, deadline_s: float) -> None:
        """Returns messages in flight, if there is time."""
        driver, now_s = self._driver, monotonic()
        call = self._state.leave(deadline_s - now_s, now_s) if driver.session.is_asking else None
        if call is not None:
            driver.push()
            driver.wait_until(lambda: call.done, deadline_s)

    def _deadline_s(self, timeout_s: float | None) -> float:
        return monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _settle(self, message: ConsumedMessage, reason: str | None, delay_s: float | None = None) -> None:
        driver, state = self._driver, self._state
        with driver.lock:
            due_s = state.due_s
            state.record(message, reason, monotonic(), delay_s)
            if state.due_s < due_s:
                driver.linger(self)

    def _next(self, deadline_s: float) -> ConsumedMessage | None:
        driver, state = self._driver, self._state
        with driver.lock, driver.step:
            while True:
                message = state.take(monotonic())
                if message is not None or state.is_over:
                    return message
                driver.push()
                if not driver.wait_until(lambda: state.has_news or not state.is_asking, deadline_s):
                    raise OperationTimeout(f"{self.stream}: no message for {self.name} in time")
