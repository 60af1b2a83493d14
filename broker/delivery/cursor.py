"""The parts of fan-out: cursors, the feeds they read, and its interfaces to a client and its protocol."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Any, Protocol

from tailrace.broker.process.metrics import Traffic
from tailrace.protocol.errors import Code

NEVER_SEQ = sys.maxsize  # the end of a subscription that goes on for ever


class Park(StrEnum):
    """The place of a cursor, and so the event that it waits for."""

    CAUGHT_UP = "caught_up"  # for the stream to grow
    TURN = "turn"  # for its turn among the runnable
    SOCKET = "socket"  # for room in its client's socket
    CREDIT = "credit"  # for its client to grant more bytes


class DeliveryChunk(Protocol):
    """Messages from a cursor's place up to `next_seq`, whose frame is at `next_offset`; `nbytes` are to be sent.

    That of a cursor with a topic filter has some of these messages, or none: `picked` counts them and the bytes of
    their frames.
    """

    @property
    def picked(self) -> tuple[int, int]: ...

    @property
    def next_seq(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Delivery(Protocol):
    """The chunks of one protocol: in which form messages go out. One a worker and protocol."""

    def chunk(self, cursor: Cursor) -> DeliveryChunk:
        """The next chunk for a cursor that is behind, or the one it is in the middle of.

        Raises Trimmed when the place is gone, StreamDamaged when it cannot be right, StorageError, OSError.
        """

    def rest(self, cursor: Cursor, chunk: Any) -> tuple[bytes, int, int]:
        """The bytes that must go out before any others, how many messages the peer then has of the chunk, and the seq
        to continue at.

        Raises StorageError, OSError if they cannot be read any more.
        """


class Subscriber(Protocol):
    """What fan-out needs of a client."""

    delivery: Delivery
    traffic: Traffic
    ready: list[Cursor]
    current: Cursor | None
    queued: bool
    blocked: bool
    closed: bool

    def send_chunk(self, cursor: Cursor, chunk: Any) -> int:
        """Send the chunk from `cursor.skip` on; how many bytes the socket took. Marks itself blocked when it took
        less. 0 when it closed.
        """

    def flush_answers(self) -> bool:
        """Send the answers that are ready; False when the socket is full or gone."""

    def keep(self, text: bytes) -> None:
        """Hold text that goes out before any answer."""

    def chunk_ended(self) -> None:
        """The last chunk of a subscription that was ended in the middle of it is out."""

    def tell_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        """Messages from the cursor's place to `first_seq` are gone; it goes on there."""

    def subscription_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        """Fan-out has ended a subscription: at its end (no code), or since it cannot go on. Nothing sensible can follow
        half a chunk.
        """


class Feed:
    """A stream that somebody here is subscribed to: its end as known here, and the cursors that have reached it."""

    __slots__ = (
        "caught_up",
        "cursors",
        "end_offset",
        "end_offset_seq",
        "end_seq",
        "name",
        "remote",
    )

    def __init__(self, name: bytes, end_seq: int, *, remote: bool) -> None:
        self.name = name
        self.end_seq = end_seq
        self.end_offset = 0  # of the frame at end_offset_seq, learnt when needed
        self.end_offset_seq = -1
        self.caught_up: dict[Cursor, None] = {}
        self.cursors = 0
        self.remote = remote


class Cursor:
    """A subscription's place: the seq of the next message, its frame's offset, and how much of its chunk was sent.

    key: the client's name for the subscription; until_seq: its end; credit_bytes: how much may still be sent of it, or
    None; cut: the end of the chunk that is half out, for a delivery that could not find it again; topics: the filter
    for the topics of its messages, empty without one.
    """

    __slots__ = ("client", "credit_bytes", "cut", "done", "feed", "key", "offset", "seq", "skip", "topics", "until_seq")

    def __init__(self, client: Subscriber, feed: Feed, seq: int, key: Any) -> None:
        self.client = client
        self.feed = feed
        self.key = key
        self.seq = seq
        self.offset = -1  # not known yet
        self.skip = 0
        self.cut: tuple[int, int] | None = None
        self.until_seq = NEVER_SEQ
        self.credit_bytes: int | None = None
        self.topics = b""
        self.done = False

    def park(self) -> Park:
        if self in self.feed.caught_up:
            return Park.CAUGHT_UP
        if self.credit_bytes is not None and self.credit_bytes <= 0 and not self.skip:
            return Park.CREDIT
        return Park.SOCKET if self.client.blocked else Park.TURN
