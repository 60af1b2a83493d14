"""The synchronous shell: publishing in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic
from types import TracebackType

from tailrace.batch import Batch, BatchResult
from tailrace.errors import TailraceError
from tailrace.framing import Payload, check_sizes, checked_payload, checked_payloads
from tailrace.headers import pack_headers
from tailrace.pump import Pump


class Batcher:
    """Gathers messages of one stream and publishes them in batches, many of them under way at once.

    Made by `Client.batcher`; leaving it as a context sends the open batch and waits for every answer. When a batch
    fails, the next `add`, `flush` or the end of the context raises its error, unless there is an `on_result` callback.
    Threads may share it.
    """

    def __init__(
        self,
        pump: Pump,
        batch: Batch,
        headers: Mapping[str, str | bytes] | None,
        on_result: Callable[[BatchResult], None] | None,
    ) -> None:
        self._pump = pump
        self._batch = batch
        self._headers = headers
        self._metadata = pack_headers(headers)
        self._on_result = on_result
        self._untold: TailraceError | None = None

    @property
    def added(self) -> int:
        """Messages added so far."""
        return self._batch.added

    @property
    def acknowledged(self) -> int:
        """Messages that are known to be in the stream."""
        return self._batch.acknowledged

    def add(
        self,
        payload: Payload,
        headers: Mapping[str, str | bytes] | None = None,
        *,
        key: str | bytes | None = None,
    ) -> None:
        """Add a message, with these headers or those of the batcher, and `key`. Waits when too much is under way."""
        payload = checked_payload(payload)
        metadata = self._metadata
        if headers is not None or key is not None:
            metadata = pack_headers(self._headers if headers is None else headers, key)
        batch, pump = self._batch, self._pump
        if len(payload) + len(metadata) > pump.session.limits["max_message_bytes"]:
            check_sizes([payload], metadata, pump.session.limits["max_message_bytes"], batch.stream)
        with pump.lock:
            batch.add_one(payload, metadata, monotonic)
            if batch.is_full:
                with pump.step:
                    self._send()
            elif batch.count == 1:
                pump.linger(self)
        self._tell()

    def extend(self, payloads: Iterable[Payload]) -> None:
        """Adds many messages, all of them or, if one is too large, none."""
        batch, pump, taken = self._batch, self._pump, 0
        messages, metadata = checked_payloads(payloads), self._metadata
        check_sizes(messages, metadata, pump.session.limits["max_message_bytes"], batch.stream)
        with pump.lock, pump.step:
            while taken < len(messages):
                was_empty = not batch.count
                taken += batch.add(messages[taken:] if taken else messages, metadata, monotonic)
                if batch.is_full:
                    self._send()
                elif was_empty:
                    pump.linger(self)
        self._tell()

    def flush(self) -> None:
        """Sends the open batch, and waits until everything is answered."""
        with self._pump.lock, self._pump.step:
            self._send()
            self._pump.wait_until(lambda: self._batch.is_settled)
        self._tell()

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

    # --- with the pump's lock held ----------------------------------------------------------------------------------

    @property
    def due_s(self) -> float:
        return self._batch.due_s

    def send_due(self, now_s: float) -> None:
        """Sends a batch that has lingered, unless it must wait for room."""
        if self._pump.session.is_open:
            self._publish()

    def _send(self) -> None:
        """Publishes the open batch, when there is room for it."""
        pump = self._pump
        pump.wait_until(lambda: pump.session.is_open or pump.session.is_over)
        self._publish()

    def _publish(self) -> None:
        session = self._pump.session
        self._batch.take()
        for publication in self._batch.unsent(session.publications.holds):
            try:
                session.publish(publication, monotonic())
            except TailraceError as error:
                publication.fail(error)
        self._pump.push()

    def _tell(self) -> None:
        """Reports the results of batches. Called without the lock: a callback may call anything."""
        if self._batch.oldest_is_done:
            with self._pump.lock:
                results = self._batch.take_results()
            for result in results:
                if self._on_result is not None:
                    self._on_result(result)
                elif result.error is not None and self._untold is None:
                    self._untold = result.error
        error, self._untold = self._untold, None
        if error is not None:
            raise error
