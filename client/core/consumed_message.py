"""A message delivered to a durable consumer, and its acknowledgement."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeAlias

from tailrace.core.message import Message


class ConsumedMessage(Message):
    """A message of a durable consumer: to be finished by `ack` or `nack`, or by being entered as a context.

    `with message:` acknowledges it at the end of the block. An exception (`Exception`) that leaves the block reports a
    failure and propagates; after KeyboardInterrupt and the like the message is delivered again without a report.
    """

    consumer: str
    """The name of the consumer."""
    deliveries: int
    """How often a member was given it, this time included."""
    settled: bool
    """Whether it was acknowledged, or said to have failed."""
    _settle: SettleCallback

    def ack(self) -> None:
        """Acknowledges the message. The broker receives it with the consumer's next request, or a moment later; see
        `flush`."""
        self._settle(self, None, None)

    def nack(self, reason: str = "", delay_s: float | None = None) -> None:
        """Reports a failure: the message is delivered again, here or at another member, up to `deliveries_max`
        times, after `delay_s`; None: after the consumer's own wait, which grows with each failure."""
        self._settle(self, reason, delay_s)

    def __enter__(self) -> ConsumedMessage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ack()
        elif isinstance(error, Exception):
            self.nack(reason_of(error))


SettleCallback: TypeAlias = Callable[[ConsumedMessage, "str | None", "float | None"], None]
"""Gets a message, the reason of its failure (None: it is done), and the delay until its next delivery."""


def reason_of(error: BaseException) -> str:
    """The reason reported for an exception."""
    return f"{type(error).__name__}: {error}".rstrip(": ")
