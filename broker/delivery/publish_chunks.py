"""Chunks of a stream in the form an MQTT subscriber gets them: PUBLISH packets, made once for all of the same form.

A subscription always has a topic filter, so its messages are picked from the log as for the other protocols. A chunk of
a subscription with QoS 1 or 2 has no more messages than its client may still be sent. Its packets have their
identifiers only in the copy that is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

from tailrace.broker.delivery.chunk_cache import ChunkCache, ChunkKey
from tailrace.broker.delivery.cursor import NEVER_SEQ, Cursor, Subscriber
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.topics.picking import PickedCache, PickedFrames, Picker, cache_name
from tailrace.protocol.mqtt.publishes import PublishForm, PublishRendering, render_any, render_plain
from tailrace.shard.leaves import load

ALIKE_MAX: Final = 256
ALIKE_BYTES_MAX: Final = 256 << 10
"""Clients and bytes of one call, about: others are served between two of them."""

_copies_cy = load("tailrace.broker.delivery.copies_cy")
_send_copies = _copies_cy.send_copies
FAILED: int = _copies_cy.FAILED
_new_tuple = tuple.__new__  # without the Python function that a NamedTuple has


class Identifiers(Protocol):
    """Those of the messages of one client that are under way."""

    @property
    def next_id(self) -> int:
        """The identifier of the next message that is sent."""


class PublishSubscriber(Subscriber, Protocol):
    """The side of a client that this delivery uses. `room`: messages with QoS 1 or 2 that may still be sent;
    `rendered_us`: the time for which the chunk was made that it is in the middle of, if that makes a difference.
    """

    fd: int
    rendered_us: int

    @property
    def window(self) -> Identifiers: ...

    def takes_alike(self, cursor: Cursor, form: PublishForm, chunk: PublishChunk) -> bool:
        """Whether the cursor's next chunk, in this form, may go out as it is, at once and before anything else."""

    def chunk_sent(self, cursor: Cursor, chunk: PublishChunk, sent: int) -> int:
        """The socket took `sent` bytes from `cursor.skip` on, none if that is negative. Returns these; 0 if the
        connection is broken, with FAILED.
        """

    @property
    def room(self) -> int: ...

    def form_of(self, cursor: Cursor) -> PublishForm: ...

    def packets(self, cursor: Cursor, chunk: PublishChunk) -> bytes | bytearray: ...


class PublishChunk(NamedTuple):
    """The first `id_count` messages with an identifier of a rendering, and those before them; or all of it."""

    rendering: PublishRendering
    id_count: int
    next_seq: int
    next_offset: int
    nbytes: int
    rendered_us: int
    picked: tuple[int, int]

    @property
    def held_bytes(self) -> int:
        rendering = self.rendering
        return len(rendering.data) + sum(part.itemsize * len(part) for part in rendering[2:6])


class _KnownKey(NamedTuple):
    """`topics`: a stream, and a filter."""

    topics: tuple[bytes, bytes]
    form: PublishForm
    key: ChunkKey


class PublishChunks:
    """Makes renderings and keeps the latest `cache_bytes` of them: the delivery of MQTT."""

    def __init__(
        self, readers: StreamReaders, cache_bytes: int, clock_us: Callable[[], int], found: PickedCache
    ) -> None:
        self._readers = readers
        self._picker = Picker(readers, found)
        self._clock_us = clock_us
        self.cache: ChunkCache[PublishChunk] = ChunkCache(cache_bytes)
        self.alike = AlikePublishes()
        self._last: _KnownKey | None = None

    def chunk(self, cursor: Cursor) -> PublishChunk:
        """The packets for a cursor that is behind; again the same while it is in the middle of them.

        Raises Trimmed when the place is gone, StreamDamaged when its frame is not whole and right, OSError.
        """
        client: Any = cursor.client  # a PublishSubscriber
        form = client.form_of(cursor)
        lone = self._picker.take_lone(cursor)
        if lone is not None:
            chunk = self._rendered(lone, cursor, form)
        else:
            key = self._key_of(cursor, form)
            kept = self.cache.get(key)
            if kept is None or not _fits(kept, cursor, client):
                kept = self._rendered(self._picker.pick(cursor), cursor, form)
                self.cache.keep(key, kept)
            chunk = kept
        if chunk.id_count and cursor.cut is None and chunk.id_count > client.room:
            return self._first_of(cursor, chunk, client.room)
        return chunk

    def rest(self, cursor: Cursor, chunk: PublishChunk) -> tuple[bytes, int, int]:
        """The rest of a chunk of which a part is sent, its messages, and the seq after them."""
        client = cast("PublishSubscriber", cursor.client)
        return bytes(client.packets(cursor, chunk)[cursor.skip :]), chunk.picked[0], chunk.next_seq

    def _key_of(self, cursor: Cursor, form: PublishForm) -> ChunkKey:
        """In the cache. Mostly it is that of the cursor before: thousands of clients may get the same chunk."""
        topics, last = (cursor.feed.name, cursor.topics), self._last
        if last is None or last.key[1] != cursor.seq or last.topics != topics or last.form != form:
            key = (cache_name(cursor) + b"\0" + form.key(), cursor.seq)
            last = self._last = _KnownKey(topics, form, key)
        return last.key

    def _rendered(self, found: PickedFrames, cursor: Cursor, form: PublishForm) -> PublishChunk:
        frames, _messages, next_seq, next_offset = found
        rendering, rendered_us = render_plain(frames, cursor.feed.name, form), 0
        if rendering is None:
            client = cast("PublishSubscriber", cursor.client)
            rendered_us = client.rendered_us if cursor.skip else self._clock_us()
            rendering = render_any(frames, cursor.feed.name, form, rendered_us)
        size, picked = len(rendering.data), (rendering.messages, 0)
        fields = rendering, len(rendering.id_places), next_seq, next_offset, size, rendered_us, picked
        return _new_tuple(PublishChunk, fields)

    def _first_of(self, cursor: Cursor, chunk: PublishChunk, count: int) -> PublishChunk:
        """The part of a chunk that ends with the last of `count` messages with an identifier."""
        assert count > 0, "a client without room is sent nothing"
        rendering = chunk.rendering
        next_seq = rendering.id_seqs[count - 1] + 1
        next_offset = self._readers.get(cursor.feed.name).offset_of(next_seq)
        messages, size = rendering.id_numbers[count - 1], rendering.id_ends[count - 1]
        return PublishChunk(rendering, count, next_seq, next_offset, size, chunk.rendered_us, (messages, 0))


class AlikePublishes:
    """Sends a chunk to many clients by one call of a leaf, which makes no copy for each."""

    def take(self, row: deque[Subscriber], leader: Cursor, seq: int, chunk: PublishChunk) -> list[Cursor]:
        taken: list[Cursor] = []
        most = min(ALIKE_MAX, ALIKE_BYTES_MAX // chunk.nbytes)
        form = cast("PublishSubscriber", leader.client).form_of(leader)
        delivery, feed, topics = leader.client.delivery, leader.feed, leader.topics
        while row and len(taken) < most:
            client = cast("PublishSubscriber", row[0])
            if client.delivery is not delivery or client.current is not None or len(client.ready) != 1:
                break
            cursor = client.ready[0]
            if cursor.seq != seq or cursor.feed is not feed or cursor.topics is not topics or cursor.done:
                break
            if cursor.until_seq != NEVER_SEQ or not client.takes_alike(cursor, form, chunk):
                break
            row.popleft()
            client.queued = False
            client.ready.clear()
            taken.append(cursor)
        return taken

    def send(self, cursors: Sequence[Cursor], chunk: PublishChunk) -> list[int]:
        clients = [cast("PublishSubscriber", cursor.client) for cursor in cursors]
        fds, first_ids = [client.fd for client in clients], [client.window.next_id for client in clients]
        rendering, count = chunk.rendering, chunk.id_count
        each = _send_copies(fds, rendering.data, rendering.id_places, count, chunk.nbytes, first_ids)
        return [
            client.chunk_sent(cursor, chunk, sent) for client, cursor, sent in zip(clients, cursors, each, strict=True)
        ]


def _fits(chunk: PublishChunk, cursor: Cursor, client: PublishSubscriber) -> bool:
    """Whether a chunk that was kept is the one that the cursor is in the middle of; any will do if it is in none."""
    if cursor.cut is not None and chunk.next_seq != cursor.cut[0]:
        return False
    return not (cursor.skip and chunk.rendering.expires) or chunk.rendered_us == client.rendered_us
