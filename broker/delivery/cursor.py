"""The parts of fan-out: cursors, the feeds they read, and its interfaces to a client and its protocol."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Any, Protocol

from tailrace.broker.delivery.wanted import WantedTopics
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


class AlikeSending(Protocol):
    """Sends one chunk to several clients at once."""

    def take(self, row: deque[Subscriber], leader: Cursor, seq: int, chunk: Any) -> list[Cursor]:
        """Takes those from the front of the row whose next chunk is this one, which the `leader` was sent from `seq`
        on.
        """

    def send(self, cursors: Sequence[Cursor], chunk: Any) -> list[int]:
        """Send it to those that were taken; how many bytes each socket took, as `Subscriber.send_chunk`."""


class Delivery(Protocol):
    """The chunks of one protocol, in the form in which its clients get messages. A worker has one for each protocol.
    `alike` is None if each client is sent its chunk by itself.
    """

    @property
    def alike(self) -> AlikeSending | None: ...

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

    @property
    def out(self) -> bytes | bytearray:
        """The answers that are ready."""

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

    def send_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        """Messages from the cursor's place to `first_seq` are gone; it goes on there."""

    def subscription_ended(self, cursor: Cursor, code: Code | None, text: str) -> None:
        """Fan-out has ended a subscription: at its end (no code), or since it cannot go on. Nothing sensible can follow
        half a chunk.
        """


class FilteredCursors:
    """Cursors with a filter that have reached the end of a stream, or the walk to it, by the number of their filter.

    No message before `walked_seq` matches any of their filters that they have not got; the walk goes on there. The seq
    of such a cursor stays as it was when it came, and may be far behind that.
    """

    __slots__ = ("by_number", "count", "walked_offset", "walked_seq")

    def __init__(self) -> None:
        self.by_number: dict[int, Cursor | dict[Cursor, None]] = {}  # most filters are those of one cursor
        self.count = 0
        self.walked_seq = -1
        self.walked_offset = -1  # not known yet

    def __contains__(self, cursor: Cursor) -> bool:
        same = self.by_number.get(cursor.filter_number)
        return same is cursor or (isinstance(same, dict) and cursor in same)

    def _of(self, number: int) -> Collection[Cursor]:
        """Those of a filter."""
        same = self.by_number.get(number, ())
        return (same,) if isinstance(same, Cursor) else same

    def is_joined_by(self, cursor: Cursor) -> bool:
        """Whether the walk gives a cursor that is behind all that it has not got."""
        return cursor.seq >= self.walked_seq if self.count else cursor.seq == self.walked_seq

    def park(self, cursor: Cursor) -> None:
        if not self.count:
            self.walked_seq, self.walked_offset = cursor.seq, cursor.offset
        elif cursor.seq == self.walked_seq:
            cursor.seq = self.walked_seq  # one object for all of them
            if self.walked_offset >= 0:
                cursor.offset = self.walked_offset
        same = self.by_number.setdefault(cursor.filter_number, cursor)
        if isinstance(same, dict):
            same[cursor] = None
        elif same is not cursor:
            self.by_number[cursor.filter_number] = {same: None, cursor: None}
        self.count += 1

    def park_alike(self, cursors: Sequence[Cursor]) -> None:
        """These have one filter and are at the same place, and the first one is parked already."""
        first = cursors[0]
        same = self.by_number[first.filter_number]
        if isinstance(same, Cursor):
            same = self.by_number[first.filter_number] = {same: None}
        before = len(same)
        same.update(dict.fromkeys(cursors))
        self.count += len(same) - before

    def discard(self, cursor: Cursor) -> None:
        """Takes a cursor out, if it is here, and moves it to where the walk is."""
        same = self._of(cursor.filter_number)
        if cursor not in same:
            return
        if len(same) == 1:
            del self.by_number[cursor.filter_number]
        elif isinstance(same, dict):
            del same[cursor]
        self.count -= 1
        self.settle(cursor)

    def settle(self, cursor: Cursor) -> None:
        if cursor.seq < self.walked_seq:
            cursor.seq, cursor.offset = self.walked_seq, self.walked_offset

    def take(self, number: int, until_seq: int) -> list[Cursor]:
        """Takes out those of a filter for which a message before `until_seq` may be new."""
        same = self.by_number.get(number)
        if isinstance(same, Cursor):
            if same.seq >= until_seq:
                return []
            del self.by_number[number]
            self.count -= 1
            if same.seq < self.walked_seq:
                same.seq, same.offset = self.walked_seq, self.walked_offset
            return [same]
        woken = [cursor for cursor in same or () if cursor.seq < until_seq]
        if same is None or len(woken) < len(same):
            for cursor in woken:
                self.discard(cursor)
            return woken
        del self.by_number[number]
        self.count -= len(woken)
        for cursor in woken:
            self.settle(cursor)
        return woken

    def take_all(self) -> list[Cursor]:
        woken = [cursor for number in self.by_number for cursor in self._of(number)]
        for cursor in woken:
            self.settle(cursor)
        self.by_number, self.count = {}, 0
        return woken


class Feed:
    """A stream that somebody here is subscribed to: its end as known here, and the cursors that have reached it.

    stream_id: that of its files when they were looked at last, 0 before; is_doubted: they are others now, and the owner
    has not said yet what has become of it; wanted: for the owner, if that is another worker; None if this worker was
    the owner before.
    """

    __slots__ = (
        "caught_up",
        "cursors",
        "end_offset",
        "end_offset_seq",
        "end_seq",
        "filtered",
        "is_doubted",
        "name",
        "remote",
        "stream_id",
        "wanted",
    )

    def __init__(self, name: bytes, end_seq: int, *, remote: bool) -> None:
        self.name = name
        self.end_seq = end_seq
        self.end_offset = 0  # of the frame at end_offset_seq, learnt when needed
        self.end_offset_seq = -1
        self.caught_up: dict[Cursor, None] = {}
        self.filtered = FilteredCursors()
        self.cursors = 0
        self.remote = remote
        self.stream_id = 0
        self.is_doubted = False
        self.wanted = WantedTopics() if remote else None


class Cursor:
    """A subscription's place: the seq of the next message, its frame's offset, and how much of its chunk was sent.

    key: the client's name for the subscription; until_seq: its end; credit_bytes: how much may still be sent of it, or
    None; cut: the end of the chunk that is half out, for a delivery that could not find it again; topics: the filter
    for the topics of its messages, empty without one; filter_number: its number in the worker's trie; stop_offset:
    where its next chunk ends at the latest, by the stream's topic index; not used if it is no further than `offset`;
    counts: whether it stands for a subscriber of this node, for which other nodes are asked to send; is_plain: it has
    neither a filter nor an end nor credit, so that its turns need not look for them.
    """

    __slots__ = (
        "client",
        "counts",
        "credit_bytes",
        "cut",
        "done",
        "feed",
        "filter_number",
        "is_plain",
        "key",
        "offset",
        "seq",
        "skip",
        "stop_offset",
        "topics",
        "until_seq",
    )

    def __init__(self, client: Subscriber, feed: Feed, seq: int, key: Any) -> None:
        self.client = client
        self.feed = feed
        self.key = key
        self.seq = seq
        self.offset = -1  # not known yet
        self.skip = 0
        self.stop_offset = 0
        self.cut: tuple[int, int] | None = None
        self.until_seq = NEVER_SEQ
        self.credit_bytes: int | None = None
        self.topics = b""
        self.filter_number = -1
        self.done = False
        self.counts = True
        self.is_plain = False

    def note_bounds(self) -> None:
        """Once before its first chunk, and again if its end or its credit is set anew."""
        self.is_plain = not self.topics and self.credit_bytes is None and self.until_seq == NEVER_SEQ

    @property
    def settled_seq(self) -> int:
        """The seq before which nothing more is to be sent."""
        filtered = self.feed.filtered
        return max(self.seq, filtered.walked_seq) if self in filtered else self.seq

    @property
    def awaited_topics(self) -> bytes:
        """The filter of the messages that it waits for; empty for any. One that ends waits for the stream to get
        there."""
        return self.topics if self.until_seq == NEVER_SEQ else b""

    def park(self) -> Park:
        if self in self.feed.caught_up or self in self.feed.filtered:
            return Park.CAUGHT_UP
        if self.credit_bytes is not None and self.credit_bytes <= 0 and not self.skip:
            return Park.CREDIT
        return Park.SOCKET if self.client.blocked else Park.TURN
