"""Fan-out: every subscription is a cursor into a file, and sending is moving the cursors that are behind.

There is no queue of messages for anybody. A cursor (`broker.delivery.cursor`) is always in exactly one of the places
named by `Park`, and only the runnable ones cost anything. The runnable clients take turns, a chunk each, so neither a
stream nor a subscriber starves another; live push and catching up are the same act.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from tailrace.broker.delivery.cursor import NEVER_SEQ, AlikeSending, Cursor, DeliveryChunk, Feed, Subscriber
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.sharing.wants import LocalWants
from tailrace.broker.streams.owner import Growth
from tailrace.broker.topics.picking import SCAN_WORK
from tailrace.broker.topics.skipping import BlockSkips
from tailrace.broker.topics.walking import FilterWalks
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError, StreamCut, StreamDamaged, StreamMissing, Trimmed, peer_text

log = logging.getLogger(__name__)

LOOKS_A_TICK = 256
FILTER_BYTES, TOPIC_CACHE_BYTES = 64 << 20, 16 << 20  # of a worker, unless the settings give others
DELETED_TEXT = "the stream was deleted"


class FanOut:
    """The feeds of a worker and the clients that have something to be sent."""

    def __init__(
        self,
        readers: StreamReaders,
        wants: LocalWants,
        *,
        on_count: Callable[[Feed], None],
        on_cut: Callable[[bytes, int], None],
        filter_bytes: int = FILTER_BYTES,
        topic_cache_bytes: int = TOPIC_CACHE_BYTES,
    ) -> None:
        """on_count: called with each feed whose number of cursors has changed; with none left the feed is gone.

        on_cut: called with name and seq when messages of a stream from there on were cut; chunks made of them must not
        be sent any more. wants: counts what the subscribers want of streams that nodes share.
        """
        self.feeds: dict[bytes, Feed] = {}
        self.runnable: deque[Subscriber] = deque()
        self.blocked: dict[Subscriber, None] = {}  # kept by the clients themselves
        self.starved: dict[Cursor, None] = {}  # without credit
        self.fresh: dict[bytes, Growth] = {}  # appended by this worker in this turn
        self.walks = FilterWalks(readers, self.fresh, filter_bytes, topic_cache_bytes)
        self.skips = BlockSkips(readers)
        self.wants = wants
        self._readers = readers
        self._to_look_at: list[bytes] = []
        self._serving: Subscriber | None = None  # in no list while it has its turn
        self._on_count = on_count
        self._on_cut = on_cut

    def behind(self) -> Iterator[Subscriber]:
        """The clients that wait for their turn or for their socket."""
        yield from dict.fromkeys((*self.runnable, *self.blocked))

    # --- subscriptions ----------------------------------------------------------------------------------------------

    def subscribe(
        self,
        client: Subscriber,
        name: bytes,
        seq: int,
        *,
        remote: bool,
        key: Any,
        may_wait: bool = False,
        topics: bytes = b"",
        counts: bool = True,
    ) -> Cursor:
        """A cursor at `seq`, parked until `start`. Unless it `may_wait`, the stream's files must exist. `counts`: as
        in `Cursor`.

        Raises StreamMissing, StreamCut, StreamDamaged; TooManyFilters for one with a filter.
        """
        try:
            end_seq = self._readers.get(name).next_seq()
        except (StreamMissing, StreamCut):
            if not may_wait:
                raise
            self._readers.forget(name)  # of files that have just been deleted
            end_seq = 0
        feed = self.feeds.get(name) or Feed(name, end_seq, remote=remote)
        cursor = Cursor(client, feed, seq, key)
        cursor.counts = counts
        if topics:
            self.walks.add(cursor, topics)
        if counts:
            self.wants.add(name, topics)
        self.feeds[name] = feed
        feed.cursors += 1
        if feed.wanted is not None:
            feed.wanted.add(cursor.awaited_topics)
        self._on_count(feed)
        return cursor

    def limit(self, cursor: Cursor, until_seq: int) -> None:
        """Let a subscription that has not been started end before the message `until_seq`."""
        wanted, before = cursor.feed.wanted, cursor.awaited_topics
        cursor.until_seq = until_seq
        if wanted is not None:
            wanted.remove(before)
            wanted.add(cursor.awaited_topics)
            self._on_count(cursor.feed)
        cursor.note_bounds()

    def start(self, cursor: Cursor) -> None:
        """Let a cursor move: its client has the answer to its subscription."""
        if cursor.done:
            return
        cursor.note_bounds()
        self.refresh(cursor.feed)
        if cursor.seq > cursor.feed.end_seq:
            self._diverge(cursor, cursor.feed.end_seq)
        else:
            self._place(cursor)

    def end(self, cursor: Cursor) -> None:
        """Take a cursor away; one in the middle of a chunk still finishes it."""
        if cursor.done:
            return
        cursor.done = True
        feed = cursor.feed
        feed.caught_up.pop(cursor, None)
        self.starved.pop(cursor, None)
        if cursor.topics:
            self.walks.remove(cursor)
        if cursor.counts:
            self.wants.remove(feed.name, cursor.topics)
        if feed.wanted is not None:
            feed.wanted.remove(cursor.awaited_topics)
        feed.cursors -= 1
        if not feed.cursors:
            del self.feeds[feed.name]
        self._on_count(feed)

    def grant(self, cursor: Cursor, nbytes: int) -> None:
        """Let `nbytes` more be sent of a subscription that has credit."""
        if cursor.credit_bytes is not None:
            cursor.credit_bytes += nbytes
            if cursor.credit_bytes > 0 and cursor in self.starved:
                del self.starved[cursor]
                self._place(cursor)

    # --- growth -----------------------------------------------------------------------------------------------------

    def grew(self, name: bytes, end_seq: int, end_offset: int) -> None:
        """A stream has committed up to `end_seq` (0: look), its frames up to `end_offset` of its content."""
        feed = self.feeds.get(name)
        if feed is None:
            return
        if not end_seq:
            self.refresh(feed)
        elif end_seq > feed.end_seq:
            feed.end_offset, feed.end_offset_seq = end_offset, end_seq
            self._wake(feed, end_seq)

    def appended(self, name: bytes, growth: Growth) -> None:
        """This worker has just appended to a stream: readers that wait for these frames get them from memory."""
        feed = self.feeds.get(name)
        if feed is not None:
            self.fresh[name] = growth
            if growth.next_seq > feed.end_seq:
                feed.end_offset, feed.end_offset_seq = growth.end_offset, growth.next_seq
                self._wake(feed, growth.next_seq)

    def tick(self) -> None:
        """About once a second."""
        self.keep_cut_messages()
        self.refresh_some()
        self.skips.tick()

    def refresh(self, feed: Feed, *, is_late: bool = False) -> None:
        """Read the committed end from the file: it is right even if notes were lost or late.

        Only the owner knows whether a stream with other files was deleted. Its word is waited for, until it `is_late`.
        """
        try:
            reader = self._readers.get(feed.name)
            end_seq, stream_id = reader.next_seq(), reader.identity[0]
        except StreamCut as cut:
            if cut.seq or is_late or not self._doubts(feed):
                self.cut(feed.name, cut.seq)
            return
        except (StorageError, OSError) as error:
            if isinstance(error, StreamMissing) and not feed.end_seq:
                return  # its subscribers wait until it is made
            log.warning("cannot look at stream %r: %s", feed.name, error)
            return
        feed.stream_id = feed.stream_id or stream_id
        if feed.stream_id != stream_id:
            if is_late or not self._doubts(feed):
                self.cut(feed.name, 0)
        elif end_seq > feed.end_seq:
            self._wake(feed, end_seq)
        elif end_seq < feed.end_seq:  # cut, and its reader was opened anew, before the owner's word came
            self.cut(feed.name, end_seq)

    def _doubts(self, feed: Feed) -> bool:
        feed.is_doubted = feed.remote
        return feed.remote

    def refresh_some(self) -> None:
        """From the timer: a few of the streams that live elsewhere, in turn, in case a note was lost."""
        if not self._to_look_at:
            self._to_look_at = [name for name, feed in self.feeds.items() if feed.remote]
        some, self._to_look_at = self._to_look_at[-LOOKS_A_TICK:], self._to_look_at[:-LOOKS_A_TICK]
        for feed in filter(None, map(self.feeds.get, some)):
            self.refresh(feed, is_late=feed.is_doubted)

    def _wake(self, feed: Feed, end_seq: int) -> None:
        woken, feed.caught_up = feed.caught_up, {}
        feed.end_seq = end_seq
        if feed.filtered.count:
            self.walks.due[feed] = None
        runnable = self.runnable
        for cursor in woken:
            client = cursor.client
            client.ready.append(cursor)
            if not client.queued and not client.blocked:
                client.queued = True
                runnable.append(client)

    def _place(self, cursor: Cursor) -> None:
        """Park a cursor between two chunks in its place."""
        if cursor.seq >= cursor.until_seq:
            self.end(cursor)
            cursor.client.subscription_ended(cursor, None, "")
        elif cursor.topics and cursor.until_seq == NEVER_SEQ and self.walks.parks(cursor):
            return
        elif cursor.seq >= cursor.feed.end_seq:
            cursor.feed.caught_up[cursor] = None
        elif cursor.credit_bytes is not None and cursor.credit_bytes <= 0:
            self.starved[cursor] = None
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
        if self.walks.due:
            for cursor in self.walks.run(budget_bytes // SCAN_WORK):
                client = cursor.client
                client.ready.append(cursor)
                if not client.queued and not client.blocked and not client.closed:
                    client.queued = True
                    runnable.append(client)
        while runnable and budget_bytes > 0:
            client = runnable.popleft()
            client.queued = False
            if client.closed or client.blocked:
                continue
            self._serving = client
            budget_bytes -= self._serve(client)
            if client.ready or client.current is not None:
                self.make_runnable(client)
        self._serving = None
        self.fresh.clear()
        self.walks.found.lone.clear()

    def _serve(self, client: Subscriber) -> int:
        """One chunk for one client, its answers first unless a chunk has begun. Returns bytes sent."""
        cursor = client.current
        if cursor is None:
            if (client.out and not client.flush_answers()) or not client.ready:
                return 0
            cursor = client.ready.pop(0)
            if cursor.done:
                return 0
            if cursor.seq >= cursor.feed.end_seq:  # it was behind, until the stream was cut
                self._place(cursor)
                return 0
            if not cursor.is_plain:
                if cursor.credit_bytes is not None and cursor.credit_bytes <= 0:
                    self.starved[cursor] = None
                    return 0
                if cursor.topics and cursor not in self.walks.found.lone and (work := self.skips.skip(cursor)):
                    self._place(cursor)
                    return work
        elif cursor.skip and self._is_trimmed(cursor):
            self._keep_cut_message(client, cursor)
            return 0
        chunk = self._chunk(cursor)
        if chunk is None:
            return 0
        nbytes = chunk.nbytes
        if not nbytes:  # a piece of the log without a message that the filter matches
            return self._pass_over(cursor, chunk)
        if cursor.skip > nbytes:
            self._skip_whole(cursor, chunk)
            return 0
        sent = client.send_chunk(cursor, chunk)
        if client.closed:
            return sent
        if cursor.skip + sent < nbytes:
            self._interrupt(cursor, chunk, sent)
            return sent
        if cursor.is_plain:
            self._advance(cursor, chunk)
            return sent
        scan_work = 0 if not cursor.topics else self._scan_work(cursor, chunk)
        seq, is_whole = cursor.seq, not cursor.skip
        self._advance(cursor, chunk)
        if is_whole and self.runnable and client.delivery.alike is not None:
            return sent + scan_work + self._serve_alike(client.delivery.alike, cursor, seq, chunk, scan_work)
        return sent + scan_work

    def _serve_alike(self, alike: AlikeSending, leader: Cursor, seq: int, chunk: DeliveryChunk, scan_work: int) -> int:
        """The chunk that the leader has got, with this work, for the next ones in the row, as far as it is theirs too.
        Of these some may not know their offset.
        """
        cursors, work = alike.take(self.runnable, leader, seq, chunk), 0
        if not cursors:
            return 0
        whole: list[Cursor] = []
        for cursor, sent in zip(cursors, alike.send(cursors, chunk), strict=True):
            work += sent
            if sent == chunk.nbytes:
                whole.append(cursor)
            elif not cursor.client.closed:
                self._interrupt(cursor, chunk, sent)
        if whole:
            work += len(whole) * scan_work
            self._advance_alike(whole, chunk)
        return work

    def _pass_over(self, cursor: Cursor, chunk: DeliveryChunk) -> int:
        """Nothing of the chunk is to be sent. Returns the work that it was to find that out."""
        work = self._scan_work(cursor, chunk)
        cursor.client.current = None
        cursor.seq, cursor.offset = chunk.next_seq, chunk.next_offset
        self._place(cursor)
        return work

    def _scan_work(self, cursor: Cursor, chunk: DeliveryChunk) -> int:
        scanned_bytes = chunk.next_offset - cursor.offset
        self.skips.looked_bytes += scanned_bytes
        return SCAN_WORK * scanned_bytes

    def _interrupt(self, cursor: Cursor, chunk: DeliveryChunk, sent: int) -> None:
        """The socket took only a part."""
        client = cursor.client
        cursor.skip += sent
        if cursor.skip:
            cursor.cut = chunk.next_seq, chunk.next_offset
            client.current = cursor
        else:
            client.current = None
            client.ready.insert(0, cursor)

    def _skip_whole(self, cursor: Cursor, chunk: DeliveryChunk) -> None:
        """All of this was sent, and more: another worker, which sent it, had made a larger rendering."""
        cursor.seq = chunk.next_seq
        cursor.offset = chunk.next_offset
        cursor.skip -= chunk.nbytes

    def _advance(self, cursor: Cursor, chunk: DeliveryChunk) -> None:
        client, next_seq = cursor.client, chunk.next_seq
        traffic = client.traffic
        traffic.messages_out += chunk.picked[0] if cursor.topics else next_seq - cursor.seq
        traffic.bytes_out += chunk.nbytes
        if cursor.credit_bytes is not None:
            cursor.credit_bytes -= frame_bytes(cursor, chunk)
        cursor.seq, cursor.offset = next_seq, chunk.next_offset
        if client.current is not None:
            client.current, cursor.skip, cursor.cut = None, 0, None
        if cursor.done:
            client.chunk_ended()
            return
        if not cursor.is_plain:
            self._place(cursor)
        elif next_seq < cursor.feed.end_seq:
            client.ready.append(cursor)
        else:
            cursor.feed.caught_up[cursor] = None
        if client.out:
            client.flush_answers()

    def _advance_alike(self, cursors: list[Cursor], chunk: DeliveryChunk) -> None:
        """As `_advance` for clients of one delivery, which count their traffic together."""
        first, next_seq, next_offset = cursors[0], chunk.next_seq, chunk.next_offset
        traffic = first.client.traffic
        traffic.messages_out += len(cursors) * chunk.picked[0]
        traffic.bytes_out += len(cursors) * chunk.nbytes
        for cursor in cursors:
            cursor.seq, cursor.offset = next_seq, next_offset
        if self.walks.parks(first):
            first.feed.filtered.park_alike(cursors)
        else:
            for cursor in cursors:
                self._place(cursor)

    def _chunk(self, cursor: Cursor) -> DeliveryChunk | None:
        """The next chunk for a cursor; None when it cannot go on there (its client has then been notified)."""
        feed = cursor.feed
        try:
            if feed.end_offset_seq != feed.end_seq:
                feed.end_offset = self._readers.get(feed.name).offset_of(feed.end_seq)
                feed.end_offset_seq = feed.end_seq
            if cursor.offset < 0:
                cursor.offset = self._readers.get(feed.name).offset_of(cursor.seq)
            return cursor.client.delivery.chunk(cursor)
        except StreamCut as cut:
            self._cut_while_served(cursor, cut.seq)
        except ValueError:  # cut, and its reader was opened anew, before the owner's word came
            self._cut_while_served(cursor, 0)
        except Trimmed as trimmed:
            self._skip_trimmed(cursor, trimmed.first_seq)
        except StreamDamaged as damage:
            log.error("a subscriber met damage: %s", damage)
            self.give_up(cursor, Code.DAMAGED, peer_text(damage))
        except (StorageError, OSError) as error:
            log.error("cannot read stream %r: %s", feed.name, error)
            self.give_up(cursor, Code.UNAVAILABLE, f"cannot read the stream: {peer_text(error)}")
        return None

    # --- messages set aside -------------------------------------------------------------------------------------------

    def cut(self, name: bytes, seq: int, is_deleted: bool = False, served: Cursor | None = None) -> None:
        """A stream's messages from `seq` on (0: nobody knows from where on) have been set aside, and others may have
        come in their stead. Subscribers that have got some of them are notified, and do not continue. Of a stream that
        was deleted all are gone, also if it has been made again meanwhile. `served`: one that is in no list now.
        """
        self._readers.forget(name)
        self.fresh.pop(name, None)
        self._on_cut(name, seq)
        self.walks.found.clear()
        feed = self.feeds.get(name)
        parked, filtered = dict.fromkeys(self.starved), list[Cursor]()
        parked.update({} if served is None else {served: None})
        if feed is not None:
            feed.end_seq, feed.end_offset_seq = min(feed.end_seq, seq), -1
            feed.stream_id, feed.is_doubted = 0, False
            parked.update(feed.caught_up)
            filtered = self.walks.forget(feed, seq)
            parked.update(dict.fromkeys(filtered))
        gone = feed is not None and (is_deleted or self._readers.is_gone(name))
        for cursor in self._cursors_of(name, parked):
            if gone and (cursor.seq or cursor.skip) and not cursor.done:
                self.give_up(cursor, Code.DELETED, DELETED_TEXT)
            else:
                self._cut_cursor(cursor, seq)
        if feed is not None:
            for cursor in filtered:
                if not cursor.done:
                    self._place(cursor)
            self.refresh(feed)

    def _cursors_of(self, name: bytes, parked: dict[Cursor, None]) -> list[Cursor]:
        """All that move; one that has not been started yet is seen to then. One that is done may be half out still."""
        found = dict(parked)
        for client in (*self.behind(), self._serving):
            if client is not None:
                found.update((cursor, None) for cursor in (client.current, *client.ready) if cursor is not None)
        return [cursor for cursor in found if cursor.feed.name == name]

    def _cut_cursor(self, cursor: Cursor, seq: int) -> None:
        end_seq = cursor.seq if cursor.cut is None else cursor.cut[0]
        if end_seq <= seq:
            if not cursor.skip:
                cursor.offset = -1
        elif not cursor.done:
            self._diverge(cursor, seq)
        elif cursor.skip and not cursor.client.closed:  # unsubscribed, in the middle of a chunk that cannot be finished
            cursor.client.current = None
            cursor.client.subscription_ended(cursor, Code.DIVERGED, diverged_text(seq))

    def _diverge(self, cursor: Cursor, seq: int) -> None:
        cursor.seq = seq  # its reader may continue here
        self.give_up(cursor, Code.DIVERGED, diverged_text(seq))

    def _cut_while_served(self, cursor: Cursor, seq: int) -> None:
        """It was found out in the middle of a turn, before the owner's word came; the cursor is in no list now."""
        in_no_list = cursor.client.current is not cursor
        self.cut(cursor.feed.name, seq, served=cursor if in_no_list else None)
        if in_no_list and not cursor.done:
            self._place(cursor)

    # --- messages trimmed while they were sent ------------------------------------------------------------------------

    def keep_cut_messages(self) -> None:
        """See to those who are in the middle of a chunk that was trimmed. Call it well within the grace period.

        Once the space is given back the chunk cannot be made again. So the rest of the message that is half out (of the
        chunk, if its length was announced) is kept, the one thing that a reader ever costs in memory, and behind it
        goes a notice of the messages that it misses.
        """
        for client in self.behind():
            cursor = client.current
            if cursor is not None and cursor.skip and self._is_trimmed(cursor):
                self._keep_cut_message(client, cursor)

    def _is_trimmed(self, cursor: Cursor) -> bool:
        try:
            return cursor.seq < self._readers.get(cursor.feed.name).first_seq()
        except (StorageError, OSError):
            return False  # serving the cursor meets it, and notifies its client

    def _keep_cut_message(self, client: Subscriber, cursor: Cursor) -> None:
        chunk = self._chunk(cursor)
        if chunk is None:
            return
        if cursor.skip >= chunk.nbytes:  # of a larger rendering that another worker had made
            self._skip_whole(cursor, chunk)
            return
        try:
            rest, messages, next_seq = client.delivery.rest(cursor, chunk)
        except (StorageError, OSError) as error:  # the space was given back before anybody looked
            self.give_up(cursor, Code.TRIMMED, peer_text(error))
            return
        client.keep(rest)
        client.current = None
        client.traffic.messages_out += messages
        client.traffic.bytes_out += cursor.skip + len(rest)
        if cursor.credit_bytes is not None:
            cursor.credit_bytes -= frame_bytes(cursor, chunk)
        cursor.seq = next_seq
        cursor.offset, cursor.skip, cursor.cut = -1, 0, None
        if not cursor.done:
            self._place(cursor)

    def _skip_trimmed(self, cursor: Cursor, first_seq: int) -> None:
        if cursor.skip:  # half a message is out: no answer can be put there any more
            self.give_up(cursor, Code.TRIMMED, f"seq {cursor.seq} was trimmed while it was being sent")
            return
        cursor.client.current = None
        cursor.client.send_trimmed(cursor, first_seq)
        cursor.seq, cursor.offset = first_seq, -1
        self._place(cursor)

    def give_up(self, cursor: Cursor, code: Code, text: str) -> None:
        """End a subscription that cannot go on. If a chunk is half out, the connection ends with it."""
        if cursor.client.current is cursor:
            cursor.client.current = None
        self.end(cursor)
        cursor.client.subscription_ended(cursor, code, text)


def frame_bytes(cursor: Cursor, chunk: DeliveryChunk) -> int:
    """The bytes of the frames that a chunk has."""
    return chunk.picked[1] if cursor.topics else chunk.next_offset - cursor.offset


def diverged_text(seq: int) -> str:
    return f"messages from {seq} on were not those of the stream's master, and were set aside; subscribe from #{seq}"
