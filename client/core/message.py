"""Messages for readers and receipts for publishers."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from msgpack import UnpackException, unpackb

from tailrace.core.headers import KEY_HEADER, UserHeaders, reply_headers, unpack_headers
from tailrace.core.places import to_datetime
from tailrace.errors import ClientClosed, InvalidArgument
from tailrace.shard.topics import topic_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import WeakMethod

SHOWN_BYTES = 40  # of a payload, in a message's repr

MessageKind = TypeVar("MessageKind", bound="Message")


class Message(NamedTuple):
    """One message of a stream. `timestamp_us` is since 1970; `metadata` as it lies in the frame, read by `headers`.

    `epoch` is the term of the master that logged it: a seq names one message only together with its epoch.
    """

    stream: str
    seq: int
    timestamp_us: int
    payload: bytes
    metadata: bytes = b""
    epoch: int = 0

    @property
    def headers(self) -> UserHeaders:
        """The user headers, unpacked at each call; empty for metadata that nobody can read."""
        return unpack_headers(self.metadata)

    @property
    def key(self) -> str | bytes | None:
        """The header "key": a durable consumer gives messages of one key in their order, one member at a time."""
        return self.headers.get(KEY_HEADER) if self.metadata else None

    @property
    def topic(self) -> str:
        """The topic it was published with; the stream's name without one."""
        return topic_in(self.metadata).decode(errors="replace") or self.stream if self.metadata else self.stream

    def json(self) -> Any:
        """The payload, which is JSON, as Python's values. Raises ValueError."""
        return json.loads(self.payload)

    def msgpack(self) -> Any:
        """The payload, which is msgpack, as Python's values. Raises ValueError."""
        try:
            return unpackb(self.payload)
        except UnpackException as error:
            raise ValueError(f"{self.stream}: message {self.seq} is not msgpack") from error

    def reply(self, payload: bytes | bytearray | memoryview, **options: Any) -> Any:
        """Publish a reply to this request. Returns what the client's `publish` returns, in asyncio to be awaited.

        Raises InvalidArgument if it is not a request, and as `publish`.
        """
        publish, shown = self._publisher(), f"{self.stream}: message {self.seq}"
        stream, headers = reply_headers(self.headers, options.pop("headers", None), shown)
        return publish(stream, payload, headers=headers, **options)

    def _publisher(self) -> Callable[..., Any]:
        """The `publish` of the client that received it; `bound_kind` overrides it."""
        raise InvalidArgument(f"{self.stream}: message {self.seq} was not received by a client")

    @property
    def time(self) -> datetime:
        """When the broker appended it, in UTC. ValueError for a time that no calendar has, as a broker may send it."""
        return to_datetime(self.timestamp_us)

    def __repr__(self) -> str:
        shown = repr(self.payload[:SHOWN_BYTES]) + ("..." if len(self.payload) > SHOWN_BYTES else "")
        headers = f", headers={self.headers!r}" if self.metadata else ""
        return f"Message({self.stream!r}, seq={self.seq}, timestamp_us={self.timestamp_us}, payload={shown}{headers})"


def bound_kind(kind: type[MessageKind], publish: WeakMethod[Callable[..., Any]] | None) -> type[MessageKind]:
    """A class of messages that are replied to by `publish`. Costs nothing for a message, but once for a client."""
    if publish is None:
        return kind

    def publisher(self: Message) -> Callable[..., Any]:
        found = publish()
        if found is None:
            raise ClientClosed(f"{self.stream}: message {self.seq}: the client that received it is gone")
        return found

    def reduce(self: Message) -> tuple[Any, ...]:
        return Message, tuple(self)

    own = {"__slots__": (), "_publisher": publisher, "__reduce__": reduce, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), own)


class Receipt(NamedTuple):
    """An acknowledged publish: `count` messages, the first of which has `seq`.

    `subscribers`: how many subscriptions the node had on the stream, and members of its durable consumers. Without an
    acknowledgement (`Ack.NONE`) seq is -1 and subscribers 0.
    """

    stream: str
    seq: int
    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    subscribers: int

    @property
    def last_seq(self) -> int:
        return self.seq + self.count - 1 if self.seq >= 0 else -1

    def shown(self) -> str:
        """The seqs, for a text."""
        seqs = f"message {self.seq}" if self.count == 1 else f"messages {self.seq} to {self.last_seq}"
        return f"{self.stream}: {seqs}"
