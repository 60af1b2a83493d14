"""The synchronous shell: a member of the durable consumers of several streams as one iterator."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import cast

from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import ConsumerState
from tailrace.core.info import MemberInfo
from tailrace.core.merged_consumer_state import MergedConsumerState
from tailrace.errors import OperationTimeout, TailraceError
from tailrace.sync.consumer import Consumer
from tailrace.sync.driver import Driver


class MergedConsumer(Consumer):
    """The messages that the durable consumers of several streams, all of one name, give this member.

    Made by `Client.consumer` for a list of names or a pattern. Streams take turns. `stream` has all of them, a message
    its own.
    """

    def __init__(self, driver: Driver, merged: MergedConsumerState, timeout_s: float) -> None:
        MemberInfo.__init__(self, cast(ConsumerState, merged), timeout_s)  # for its facts; what differs is below
        self._driver = driver
        self._merged = merged
        self._members: list[Consumer] = []
        merged.on_member = lambda state: self._members.append(Consumer(driver, state, timeout_s))
        merged.on_left = self._forget

    @property
    def streams(self) -> frozenset[str]:
        """The streams that are read so far."""
        return frozenset(self._merged.names)

    def _forget(self, state: ConsumerState) -> None:
        """Nothing can be acknowledged in a stream that was deleted."""
        self._members = [each for each in self._members if each._state is not state]

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the broker has stored all acknowledgements. Raises StaleAck, OperationTimeout."""
        deadline_s = self._deadline_s(timeout_s)
        for member in list(self._members):
            member.flush(deadline_s - monotonic())

    def close(self, timeout_s: float | None = None) -> None:
        """As `Consumer.close`, of all streams; raises the first error when all are closed."""
        deadline_s = self._deadline_s(timeout_s)
        with self._driver.lock, self._driver.step:
            self._merged.end()
            self._driver.wake()
        errors: list[TailraceError] = []
        for member in self._members:
            try:
                member.close(deadline_s - monotonic())
            except TailraceError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _next(self, deadline_s: float) -> ConsumedMessage | None:
        driver, merged = self._driver, self._merged
        with driver.lock, driver.step:
            while True:
                message = merged.take(monotonic())
                if message is not None or merged.is_over:
                    return message
                merged.watch.poll(monotonic())
                driver.push()
                poll_s = merged.watch.poll_s
                driver.wait_until(partial(merged.has_changed, poll_s), min(deadline_s, poll_s))
                if not merged.has_news and monotonic() >= deadline_s:
                    raise OperationTimeout(f"{self.stream}: no message for {self.name} in time")
