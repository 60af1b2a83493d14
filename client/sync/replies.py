"""The synchronous shell: requests that wait for their replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Condition
from time import monotonic

from tailrace.core.message import Message, Receipt
from tailrace.core.replies import PendingReplies
from tailrace.errors import ClientClosed, OperationTimeout
from tailrace.sync.subscription import Subscription


class Replies:
    """Those that one client waits for. Threads may share it: one of them reads, for all."""

    def __init__(self, subscribe: Callable[..., Subscription]) -> None:
        self._pending = PendingReplies()
        self._subscription = subscribe(self._pending.stream, wait=True, on_trimmed="skip")
        self._turned = Condition()
        self._reading = False

    @property
    def is_over(self) -> bool:
        """Whether no replies come any more."""
        return self._subscription.is_over

    def request(
        self,
        publish: Callable[[Mapping[str, str | bytes]], Receipt],
        headers: Mapping[str, str | bytes] | None,
        deadline_s: float,
    ) -> Message:
        """Publishes a request with its headers, and returns the first reply. Raises OperationTimeout, as `publish`."""
        with self._turned:
            correlation, full_headers = self._pending.begin(headers)
        try:
            receipt = publish(full_headers)
            while (message := self._reply(correlation, deadline_s)) is None:
                if monotonic() >= deadline_s:
                    raise OperationTimeout(f"{receipt.shown()}: no reply in time")
            return message
        finally:
            with self._turned:
                self._pending.end(correlation)

    def _reply(self, correlation: str, deadline_s: float) -> Message | None:
        """The reply if it is here; else waits for a message, or until another thread has read one."""
        with self._turned:
            if (message := self._pending.reply(correlation)) is not None:
                return message
            if self._reading:
                self._turned.wait(deadline_s - monotonic())
                return self._pending.reply(correlation)
            self._reading = True
        arrived = None
        try:
            arrived = self._subscription.receive(deadline_s - monotonic())
            if arrived is None:
                raise ClientClosed(f"{self._subscription.stream}: the client was closed before the reply came")
        except OperationTimeout:
            return None
        finally:
            with self._turned:
                self._reading = False
                if arrived is not None:
                    self._pending.arrived(arrived)
                self._turned.notify_all()
        return self._pending.reply(correlation)
