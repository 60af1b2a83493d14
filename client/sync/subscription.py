"""The synchronous shell: a subscription as an iterator."""

from __future__ import annotations

import math
from collections.abc import Iterator
from time import monotonic
from types import TracebackType

from tailrace.core.info import SubscriptionInfo
from tailrace.core.message import Message
from tailrace.core.subscription_state import Arrived, SubscriptionPhase, SubscriptionState
from tailrace.errors import OperationTimeout
from tailrace.sync.driver import Driver


class Subscription(SubscriptionInfo):
    """The messages of a stream, one by one, in order. Made by `Client.subscribe`.

    It may be left and entered again: messages that were not taken yet come next. It ends at `end`, or when it is
    cancelled; otherwise it waits for new messages. One thread at a time.
    """

    def __init__(self, driver: Driver, state: SubscriptionState) -> None:
        super().__init__(state)
        self._driver = driver

    def __iter__(self) -> Iterator[Message]:
        while True:
            for message in self._rest:  # noqa: UP028 (the rest is taken later if the caller breaks)
                yield message
            if not self._fetch(math.inf):
                return

    def __next__(self) -> Message:
        message = self._next(math.inf)
        if message is None:
            raise StopIteration
        return message

    def receive(self, timeout_s: float = math.inf) -> Message | None:
        """The next message; None at the end. Raises OperationTimeout when none comes in time."""
        return self._next(monotonic() + timeout_s)

    def receive_batch(self, timeout_s: float = math.inf) -> list[Message]:
        """The messages that have come, at least one; [] at the end. Raises OperationTimeout."""
        if rest := list(self._rest):
            return rest
        return list(self._rest) if self._fetch(monotonic() + timeout_s) else []

    def batches(self) -> Iterator[list[Message]]:
        """The same messages as lists, as they arrived: cheaper for many messages."""
        while batch := self.receive_batch():
            yield batch

    def cancel(self) -> None:
        """Ends the subscription: no more messages arrive, and iterations end. May be called by any thread."""
        driver, self._rest = self._driver, iter(())
        if driver.is_severed:
            return
        with driver.lock, driver.step:
            driver.session.cancel(self._state)
            driver.push()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if self._state.phase is not SubscriptionPhase.OVER:
            self._driver.abandoned.append(self._state)  # no lock: this may run anywhere

    def _next(self, deadline_s: float) -> Message | None:
        for message in self._rest:
            return message
        return next(self._rest, None) if self._fetch(deadline_s) else None

    def _fetch(self, deadline_s: float) -> bool:
        """Puts the next messages into `_rest`; returns False at the end. An interrupted call can be repeated."""
        arrived = self._next_arrived(deadline_s)
        if arrived is None:
            return False
        rest = iter(arrived.messages)
        self._given, self._rest = arrived, rest
        if arrived.trimmed is not None:
            raise arrived.trimmed
        return True

    def _next_arrived(self, deadline_s: float) -> Arrived | None:
        driver, state = self._driver, self._state
        with driver.lock, driver.step:
            while True:
                arrived = driver.session.next_arrived(state, self._given)
                driver.push()
                if arrived is not None or state.has_news:
                    return arrived
                if not driver.wait_until(lambda: state.has_news, deadline_s):
                    raise OperationTimeout(f"{state.stream}: no message came in time; seq {state.next_seq} is next")
