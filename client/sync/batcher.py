"""The synchronous shell: publishing in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from types import TracebackType

from tailrace.core.arguments import Payload
from tailrace.core.batch import BatcherInput, Batches, BatchResult
from tailrace.errors import TailraceError
from tailrace.sync.driver import Driver


class Batcher(BatcherInput):
    """Gathers messages of one stream and publishes them in batches, many of them under way at once.

    Made by `Client.batcher`; leaving it as a context sends the open batch and waits for every answer. When a batch
    fails, the next `add`, `flush` or the end of the context raises its error, unless there is an `on_result` callback.
    Threads may share it.
    """

    def __init__(
        self,
        driver: Driver,
        batch: Batches,
        headers: Mapping[str, str | bytes] | None,
        topic: str | None,
        on_result: Callable[[BatchResult], None] | None,
    ) -> None:
        super().__init__(driver.session, batch, headers, topic, on_result)
        self._driver = driver
        self._unreported: TailraceError | None = None

    def add(
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
        with driver.lock:
            batch.add_one(data, metadata, monotonic)
            if batch.is_full:
                with driver.step:
                    self._send()
            elif batch.count == 1 or self not in driver.lingering:  # as after Control-C in the midst of this
                driver.linger(self)
        self._report()

    def extend(self, payloads: Iterable[Payload]) -> None:
        """Adds many messages, all of them or, if one is too large, none."""
        batch, driver, taken = self._batches, self._driver, 0
        messages, metadata = self._checked_many(payloads), self._metadata
        with driver.lock, driver.step:
            while taken < len(messages):
                was_empty = not batch.count
                taken += batch.add(messages[taken:] if taken else messages, metadata, monotonic)
                if batch.is_full:
                    self._send()
                elif was_empty or self not in driver.lingering:
                    driver.linger(self)
        self._report()

    def flush(self) -> None:
        """Sends the open batch, and waits until everything is answered."""
        with self._driver.lock, self._driver.step:
            self._send()
            self._driver.wait_until(lambda: self._batches.is_settled)
        self._report()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self.flush()
        except TailraceError:
            if kind is None:
                raise

    # --- with the driver's lock held ----------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        return self._batches.due_s

    def send_due(self, now_s: float) -> None:
        """Sends a batch that has lingered, unless it must wait for room."""
        if self._driver.session.is_open:
            self._publish()

    def _send(self) -> None:
        """Publishes the open batch, when there is room for it."""
        driver = self._driver
        driver.wait_until(lambda: driver.session.is_open or driver.session.is_over)
        self._publish()

    def _publish(self) -> None:
        session = self._driver.session
        self._batches.take()
        for publication in self._batches.unsent(session.publications.holds):
            try:
                session.publish(publication, monotonic())
            except TailraceError as error:
                publication.fail(error)
        self._driver.push()

    def _report(self) -> None:
        """Reports the results of batches. Called without the lock: a callback may call anything."""
        if self._batches.oldest_is_done:
            with self._driver.lock:
                results = self._batches.take_results()
            for result in results:
                if self._on_result is not None:
                    self._on_result(result)
                elif result.error is not None and self._unreported is None:
                    self._unreported = result.error
        error, self._unreported = self._unreported, None
        if error is not None:
            raise error
