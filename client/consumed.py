"""A message that a durable consumer was given, and what its receiver says of it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from tailrace.headers import KEY_HEADER
from tailrace.message import Message


class ConsumedMessage(Message):
    """A message of a durable consumer: to be finished by `ack` or `nack`, or by being entered as a context.

    `with message:` acknowledges it at the end of the block. An exception (`Exception`) that leaves the block says that
    it has failed, and goes on; KeyboardInterrupt and what is like it say nothing of the message, which comes again.
    """

    consumer: str
    """The name of the consumer."""
    deliveries: int
    """How often a member was given it, this time included."""
    settled: bool
    """Whether it was acknowledged, or said to have failed."""
    _settle: Callable[[ConsumedMessage, str | None], None]

    @property
    def key(self) -> str | bytes | None:
        """The header "key": messages of one key are given in their order, one member at a time."""
        return self.headers.get(KEY_HEADER) if self.metadata else None

    def ack(self) -> None:
        """It is finished. The broker is told with the consumer's next request, or a moment later; see `flush`."""
        self._settle(self, None)

    def nack(self, reason: str = "") -> None:
        """It has failed: it comes again, here or at another member, unless it has done so too often."""
        self._settle(self, reason)

    def __enter__(self) -> ConsumedMessage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ack()
        elif isinstance(error, Exception):
            self.nack(reason_of(error))


def reason_of(error: BaseException) -> str:
    """What is told of an exception."""
    return f"{type(error).__name__}: {error}".rstrip(": ")
