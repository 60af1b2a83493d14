"""Fan-out: every subscription is a cursor into a file, and sending is moving the cursors that are behind.

There is no queue of messages for anybody. A cursor is always in exactly one of the places named by `Park`, and only the
runnable ones cost anything. The runnable clients take turns, a chunk each, so neither a stream nor a subscriber starves
another; live push and catching up are the same act.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Protocol

from broker.metrics import WorkerMetrics
from broker.owner import Growth
from broker.protocol import answers
from broker.protocol.errors import Code
from broker.readers import Readers
from broker.rendering import Rendering, Renderings, Trimmed, message_ends
from shard.errors import StorageError, StreamDamaged

log = logging.getLogger(__name__)


LOOKS_A_TICK = 256


class Park(StrEnum):
    """Where a cursor is, and so what it waits for."""

    CAUGHT_UP = "caught_up"  # for the stream to grow
    TURN = "turn"  # for its turn among the runnable
    SOCKET = "socket"  # for room in its client's socket


class Subscriber(Protocol):
    """What fan-out needs of a client."""

    ready: deque[Cursor]
    current: Cursor | None
    queued: bool
    blocked: bool
    closed: bool

    def send_chunk(self, text: bytes, skip: int) -> int:
        """Send text[skip:]; how many bytes the socket took. Marks itself blocked when it took less. 0 when it
        closed.
        """

    def flush_answers(self) -> bool:
        """Send the answers that are ready; False when the socket is full or gone."""

    def answer(self, text: bytes) -> None: ...

    def keep(self, text: bytes) -> None:
        """Hold text that goes out before any answer."""

    def chunk_ended(self) -> None: ...

    def subscription_ended(self, cursor: Cursor) -> None: ...


class Feed:
    """A stream that somebody here is subscribed to: its end as known here, and the cursors that have reached it."""

    __slots__ = ("caught_up", "cursors", "end_offset", "end_offset_seq", "end_seq", "name", "remote")

    def __init__(self, name: bytes, end_seq: int, *, remote: bool) -> None:
        self.name = name
        self.end_seq = end_seq
        self.end_offset = 0  # of the frame at end_offset_seq, learnt when needed
        self.end_offset_seq = -1
        self.caught_up: dict[Cursor, None] = {}
        self.cursors = 0
        self.remote = remote


class Cursor:
    """A subscription's place: the seq of the next message, its frame's offset, and how much of its chunk was sent."""

    __slots__ = ("client", "done", "feed", "offset", "seq", "skip")

    def __init__(self, client: Subscriber, feed: Feed, seq: int) -> None:
        self.client = client
        self.feed = feed
        self.seq = seq
        self.offset = -1  # not known yet
        self.skip = 0
        self.done = False

    def park(self) -> Park:
        if self in self.feed.caught_up:
            return Park.CAUGHT_UP
        return Park.SOCKET if self.client.blocked else Park.TURN


class FanOut:
    """The feeds of a worker and the clients that have something to be sent."""

    def __init__(
        self,
        readers: Readers,
        renderings: Renderings,
        metrics: WorkerMetrics,
        *,
        on_first: Callable[[Feed], None],
        on_last: Callable[[Feed], None],
    ) -> None:
        self.feeds: dict[bytes, Feed] = {}
        self.runnable: deque[Subscriber] = deque()
        self._readers = readers
        self._to_look_at: list[bytes] = []
        self._renderings = renderings
        self._metrics = metrics
        self._on_first = on_first
        self._on_last = on_last

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(self, client: Subscriber, name: bytes, seq: int, *, remote: bool) -> Cursor:
        """A cursor at `seq`, parked until `start`. The stream's files must exist (StreamMissing, StreamDamaged)."""
        end_seq = self._readers.get(name).next_seq()
        feed = self.feeds.get(name)
        if feed is None:
            feed = self.feeds[name] = Feed(name, end_seq, remote=remote)
            self._on_first(feed)
        feed.cursors += 1
        return Cursor(client, feed, seq)

    def start(self, cursor: Cursor) -> None:
        """Let a cursor move: its `ok sub` is on its way."""
        if not cursor.done:
            self.look(cursor.feed)
            self._place(cursor)

    def end(self, cursor: Cursor) -> None:
        """Take a cursor away; one in the middle of a chunk still finishes it."""
        if cursor.done:
            return
        cursor.done = True
        feed = cursor.feed
        feed.caught_up.pop(cursor, None)
        feed.cursors -= 1
        if not feed.cursors:
            del self.feeds[feed.name]
            self._on_last(feed)

    # --- growth -----------------------------------------------------------------------------------------------------

    def grew(self, name: bytes, end_seq: int, end_offset: int) -> None:
        """A stream has committed up to `end_seq` (0: look), its frames up to `end_offset` of its content."""
        feed = self.feeds.get(name)
        if feed is None:
            return
        if not end_seq:
            self.look(feed)
        elif end_seq > feed.end_seq:
            feed.end_offset, feed.end_offset_seq = end_offset, end_seq
            self._wake(feed, end_seq)

    def appended(self, name: bytes, growth: Growth) -> None:
        """This worker has just appended to a stream: what is still in memory need not be read for who waits for it."""
        feed = self.feeds.get(name)
        if feed is not None and feed.caught_up and feed.end_seq == growth.first_seq:
            self._renderings.make_from(name, growth)
        self.grew(name, growth.next_seq, growth.end_offset)

    def look(self, feed: Feed) -> None:
        """Read the committed end from the file: the truth, whatever notes were lost or late."""
        try:
            end_seq = self._readers.get(feed.name).next_seq()
        except (StorageError, OSError) as error:
            log.warning("cannot look at stream %r: %s", feed.name, error)
            return
        if end_seq > feed.end_seq:
            self._wake(feed, end_seq)

    def look_at_some(self) -> None:
        """From the timer: a few of the streams that live elsewhere, in turn, in case a note was lost."""
        if not self._to_look_at:
            self._to_look_at = [name for name, feed in self.feeds.items() if feed.remote]
        some, self._to_look_at = self._to_look_at[-LOOKS_A_TICK:], self._to_look_at[:-LOOKS_A_TICK]
        for name in some:
            self.grew(name, 0, 0)

    def _wake(self, feed: Feed, end_seq: int) -> None:
        feed.end_seq = end_seq
        woken, feed.caught_up = feed.caught_up, {}
        runnable = self.runnable
        for cursor in woken:
            client = cursor.client
            client.ready.append(cursor)
            if not client.queued and not client.blocked:
                client.queued = True
                runnable.append(client)

    def _place(self, cursor: Cursor) -> None:
        if cursor.seq >= cursor.feed.end_seq:
            cursor.feed.caught_up[cursor] = None
        else:
            cursor.client.ready.append(cursor)
            self.make_runnable(cursor.client)

    def make_runnable(self, client: Subscriber) -> None:
        if not client.queued and not client.blocked and not client.closed:
            client.queued = True
            self.runnable.append(client)

    # --- sending ----------------------------------------------------------------------------------------------------

    def run(self, budget_bytes: int) -> None:
        """Serve the runnable clients in turn, a chunk each, until all are parked or about `budget_bytes` went out."""
        runnable = self.runnable
        while runnable and budget_bytes > 0:
            client = runnable.popleft()
            client.queued = False
            if client.closed or client.blocked:
                continue
            budget_bytes -= self._serve(client)
            if client.ready or client.current is not None:
                self.make_runnable(client)

    def _serve(self, client: Subscriber) -> int:
        """One chunk for one client, its answers first unless a chunk has begun. Returns bytes sent."""
        cursor = client.current
        if cursor is None:
            if not client.flush_answers() or not client.ready:
                return 0
            cursor = client.ready.popleft()
            if cursor.done:
                return 0
        rendering = self._rendering(cursor)
        if rendering is None:
            return 0
        text = rendering.text
        if cursor.skip > len(text):
            self._skip_whole(cursor, rendering)
            return 0
        sent = client.send_chunk(text, cursor.skip)
        if client.closed:
            return sent
        if cursor.skip + sent < len(text):
            cursor.skip += sent
            client.current = cursor if cursor.skip else None
            if not cursor.skip:
                client.ready.appendleft(cursor)
            return sent
        self._advance(cursor, rendering)
        return sent

    def _skip_whole(self, cursor: Cursor, rendering: Rendering) -> None:
        """All of this was sent, and more: another worker, which sent it, had made a larger rendering."""
        cursor.seq = rendering.next_seq
        cursor.offset = rendering.next_offset
        cursor.skip -= len(rendering.text)

    def _advance(self, cursor: Cursor, rendering: Rendering) -> None:
        client = cursor.client
        client.current = None
        line = self._metrics.line
        line.messages_out += rendering.next_seq - cursor.seq
        line.bytes_out += len(rendering.text)
        cursor.seq = rendering.next_seq
        cursor.offset = rendering.next_offset
        cursor.skip = 0
        if cursor.done:
            client.chunk_ended()
        elif cursor.seq >= cursor.feed.end_seq:
            cursor.feed.caught_up[cursor] = None
            client.flush_answers()
        else:
            client.ready.append(cursor)

    def _rendering(self, cursor: Cursor) -> Rendering | None:
        """What comes next for a cursor; None when it cannot go on there (its client has then been told)."""
        feed = cursor.feed
        try:
            if feed.end_offset_seq != feed.end_seq:
                feed.end_offset = self._readers.get(feed.name).offset_of(feed.end_seq)
                feed.end_offset_seq = feed.end_seq
            if cursor.offset < 0:
                cursor.offset = self._offset_of(feed.name, cursor.seq)
            return self._renderings.get(feed.name, cursor.seq, cursor.offset, feed.end_seq, feed.end_offset)
        except Trimmed as trimmed:
            self._skip_trimmed(cursor, trimmed.first_seq)
        except StreamDamaged as damage:
            log.error("a subscriber met damage: %s", damage)
            self._give_up(cursor, Code.DAMAGED, str(damage))
        except (StorageError, OSError) as error:
            log.error("cannot read stream %r: %s", feed.name, error)
            self._give_up(cursor, Code.UNAVAILABLE, f"cannot read the stream: {error}")
        return None

    # --- what was trimmed while it was sent -------------------------------------------------------------------------

    def keep_cut_messages(self, clients: Iterable[Subscriber]) -> None:
        """See to those who are in the middle of a chunk that was trimmed. Call it well within the grace period.

        Once the space is given back the chunk cannot be rendered again. So the rest of the message that is half out is
        kept, the one thing that a reader ever costs in memory, and behind it the reader is told what it misses.
        """
        ends: dict[tuple[bytes, int], list[int]] = {}
        for client in clients:
            cursor = client.current
            if cursor is not None and cursor.skip and self._is_trimmed(cursor):
                self._keep_cut_message(client, cursor, ends)

    def _is_trimmed(self, cursor: Cursor) -> bool:
        try:
            return cursor.seq < self._readers.get(cursor.feed.name).first_seq()
        except (StorageError, OSError):
            return False  # it is met, and told, where the cursor is served

    def _keep_cut_message(
        self, client: Subscriber, cursor: Cursor, ends: dict[tuple[bytes, int], list[int]]
    ) -> None:
        rendering = self._rendering(cursor)
        if rendering is None:
            return
        key = (cursor.feed.name, cursor.seq)
        if key not in ends:
            ends[key] = message_ends(rendering.text)
        last = bisect_left(ends[key], cursor.skip)
        client.keep(rendering.text[cursor.skip : ends[key][last]])
        client.current = None
        self._metrics.line.messages_out += last + 1
        self._metrics.line.bytes_out += ends[key][last]
        cursor.seq += last + 1
        cursor.offset, cursor.skip = -1, 0
        if not cursor.done:
            self._place(cursor)

    def _offset_of(self, name: bytes, seq: int) -> int:
        reader = self._readers.get(name)
        first_seq = reader.first_seq()
        if seq < first_seq:
            raise Trimmed(first_seq)
        return reader.offset_of(seq)

    def _skip_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        if cursor.skip:  # half a message is out: no answer can be put there any more
            self._give_up(cursor, Code.TRIMMED, f"seq {cursor.seq} was trimmed while it was being sent")
            return
        cursor.client.current = None
        name = cursor.feed.name.decode()
        text = f"{name}: messages {cursor.seq} to {first_seq - 1} were trimmed before they were sent"
        cursor.client.answer(answers.err(Code.TRIMMED, text))
        cursor.seq, cursor.offset = first_seq, -1
        self._place(cursor)

    def _give_up(self, cursor: Cursor, code: Code, text: str) -> None:
        """End a subscription that cannot go on. Where half a message is out, the connection ends with it."""
        client = cursor.client
        client.current = None
        self.end(cursor)
        client.answer(answers.err(code, f"{cursor.feed.name.decode()}: {text}; the subscription has ended"))
        client.subscription_ended(cursor)
