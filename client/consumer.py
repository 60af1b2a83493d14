"""The synchronous shell: a member of a durable consumer as an iterator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import monotonic
from types import TracebackType

from tailrace.consumed import ConsumedMessage
from tailrace.consuming import Consuming
from tailrace.errors import OperationTimeout, TailraceError
from tailrace.pump import Pump


class Consumer:
    """The messages that a durable consumer gives this member, one by one. Made by `Client.consumer`.

    Each message must be settled: `with message:`, `message.ack()` or `message.nack()`. Threads may share the consumer.
    Leaving it as a context, or `close`, sends the acknowledgements and closes it; the client stays open.
    """

    def __init__(self, pump: Pump, consuming: Consuming, timeout_s: float) -> None:
        self._pump = pump
        self._consuming = consuming
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
        with self._pump.lock:
            return [message, *self._consuming.take_rest(monotonic())]

    def batches(self) -> Iterator[list[ConsumedMessage]]:
        """The same messages as lists, as they came."""
        while batch := self.receive_batch():
            yield batch

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the broker has stored all acknowledgements. Raises StaleAck, OperationTimeout."""
        with self._pump.lock, self._pump.step:
            self._tell(self._deadline_s(timeout_s))
            self._consuming.check()

    def close(self, timeout_s: float | None = None) -> None:
        """Sends the acknowledgements and closes. Messages in flight become available to other members at once.

        Raises StaleAck, or OperationTimeout if it is unknown which acknowledgements were stored.
        """
        pump, consuming = self._pump, self._consuming
        deadline_s = self._deadline_s(timeout_s)
        with pump.lock, pump.step:
            consuming.end()
            pump.wake()
        with pump.lock, pump.step:
            self._tell(deadline_s)
            self._leave(deadline_s)
            consuming.check()

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

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self.stream!r} member={self.member!r}>"

    # --- with the pump's lock held ----------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        return self._consuming.due_s

    def send_due(self, now_s: float) -> None:
        """Sends acknowledgements that have lingered."""
        if self._pump.session.is_asking:
            self._consuming.tick(now_s)
            self._pump.push()

    def _tell(self, deadline_s: float) -> None:
        """Waits until the broker has stored all acknowledgements. Raises OperationTimeout."""
        pump, consuming = self._pump, self._consuming
        if pump.session.is_asking:
            consuming.flush(monotonic())
            pump.push()
        if not pump.wait_until(lambda: consuming.is_settled, deadline_s):
            raise OperationTimeout(f"{self.stream}: no answer to the acknowledgements of {self.name}")

    def _leave(self, deadline_s: float) -> None:
        """Returns messages in flight, if there is time."""
        pump, now_s = self._pump, monotonic()
        call = self._consuming.leave(deadline_s - now_s, now_s) if pump.session.is_asking else None
        if call is not None:
            pump.push()
            pump.wait_until(lambda: call.done, deadline_s)

    def _deadline_s(self, timeout_s: float | None) -> float:
        return monotonic() + (self._timeout_s if timeout_s is None else timeout_s)

    def _settle(self, message: ConsumedMessage, reason: str | None) -> None:
        pump, consuming = self._pump, self._consuming
        with pump.lock:
            due_s = consuming.due_s
            consuming.note(message, reason, monotonic())
            if consuming.due_s < due_s:
                pump.linger(self)

    def _next(self, deadline_s: float) -> ConsumedMessage | None:
        pump, consuming = self._pump, self._consuming
        with pump.lock, pump.step:
            while True:
                message = consuming.take(monotonic())
                if message is not None or consuming.is_over:
                    return message
                pump.push()
                if not pump.wait_until(lambda: consuming.has_news or not consuming.is_asking, deadline_s):
                    raise OperationTimeout(f"{self.stream}: no message for {self.name} in time")
