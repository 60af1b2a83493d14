"""New frames of a stream are walked over once for all cursors with a filter that wait at its end.

A leaf finds the filters that match each frame's topic, by the worker's trie and the cache of its answers. Only the
cursors of these filters are woken, and what matches is kept for their deliveries, which need not scan it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from tailrace.broker.delivery.chunk_cache import LONE_BYTES_MAX
from tailrace.broker.delivery.cursor import Cursor, Feed
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.streams.open_stream import Growth
from tailrace.broker.topics.match_cache import MatchCache
from tailrace.broker.topics.picking import SCAN_BYTES, PickedCache, PickedFrames, cache_name_of, read_piece
from tailrace.broker.topics.trie import FilterTrie
from tailrace.shard.errors import StorageError
from tailrace.shard.leaves import load

WALK_S: Final = 0.005
"""Of one turn, after which the walks go on in the next one."""
FRAMES_MOST: Final = 4_096
FRAMES_LEAST: Final = 16
"""In one call of the leaf, whose work for a frame grows with the number of filters at worst."""
FILTER_FRAMES: Final = 1 << 20
"""Filters times frames in one call, between those bounds."""
FOUND_BYTES_MAX: Final = 8 << 20
"""Of frames that walks have found and that are kept for deliveries."""
LONE_MOST: Final = FOUND_BYTES_MAX // LONE_BYTES_MAX
"""Cursors of a turn that what was found for them is handed to directly, up to LONE_BYTES_MAX each."""

_walk = load("tailrace.broker.topics.pick_cy").walk

_LENGTH_BYTES = 4
_new_tuple = tuple.__new__  # without the Python function that a NamedTuple has


class FilterWalks:
    """One per worker: the filters of all its subscriptions, and the feeds with frames to be walked over (`due`)."""

    def __init__(
        self, readers: StreamReaders, fresh: Mapping[bytes, Growth], filter_bytes: int, cache_bytes: int
    ) -> None:
        """`fresh`: messages that this worker has appended in this turn: they need not be read from the file."""
        self.filters = FilterTrie(filter_bytes)
        self.found = PickedCache(FOUND_BYTES_MAX)
        self.woken = 0
        self._cache = MatchCache(self.filters, cache_bytes)
        self._readers = readers
        self._fresh = fresh
        self.due: dict[Feed, None] = {}
        self._buffer = memoryview(bytearray(SCAN_BYTES))

    def add(self, cursor: Cursor, topic_filter: bytes) -> None:
        """Gives a new cursor its filter. Raises TooManyFilters."""
        cursor.filter_number = self.filters.add(topic_filter)
        cursor.topics = self.filters[cursor.filter_number]  # one object for all of the filter

    def remove(self, cursor: Cursor) -> None:
        """The cursor has ended."""
        cursor.feed.filtered.discard(cursor)
        self.filters.remove(cursor.topics)

    def parks(self, cursor: Cursor) -> bool:
        """Lets a cursor between two chunks wait until a message matches its filter, if it is at the end, or where a
        walk gets on its way there. Returns whether it does.
        """
        feed = cursor.feed
        filtered = feed.filtered
        if cursor.seq < feed.end_seq and not filtered.is_joined_by(cursor):
            return False
        if feed.remote and not filtered.count and cursor.offset < 0:
            self._find_offset(cursor)
        filtered.park(cursor)
        if filtered.walked_seq < feed.end_seq:
            self.due[feed] = None
        return True

    def _find_offset(self, cursor: Cursor) -> None:
        """Now, for the messages before those that match it may be trimmed before this worker is notified of them."""
        with suppress(StorageError, OSError, ValueError):  # the walk meets it again
            cursor.offset = self._readers.get(cursor.feed.name).offset_of(cursor.seq)

    def forget(self, feed: Feed, seq: int) -> list[Cursor]:
        """The messages of a stream from `seq` on were cut: takes out its cursors."""
        self.due.pop(feed, None)
        filtered = feed.filtered
        filtered.walked_seq, filtered.walked_offset = min(filtered.walked_seq, seq), -1
        return filtered.take_all()

    def run(self, budget_bytes: int) -> list[Cursor]:
        """Walks over about `budget_bytes` of new frames, for WALK_S at most, and gives the cursors to be woken."""
        woken: list[Cursor] = []
        due, end_s = self.due, 0.0
        while due and budget_bytes > 0:
            if not end_s:
                end_s = monotonic() + WALK_S
            elif monotonic() >= end_s:
                break
            feed = next(iter(due))
            filtered = feed.filtered
            if filtered.count and filtered.walked_seq < feed.end_seq:
                before = filtered.walked_offset
                woken += self._walk_piece(feed)
                budget_bytes -= max(filtered.walked_offset - before, 1) if before >= 0 else SCAN_BYTES
            if not filtered.count or filtered.walked_seq >= feed.end_seq:
                del due[feed]
        self.woken += len(woken)
        return woken

    def _walk_piece(self, feed: Feed) -> list[Cursor]:
        filtered = feed.filtered
        limit_seq = feed.end_seq
        if limit_seq - filtered.walked_seq > FRAMES_LEAST:
            frames_max = min(max(FILTER_FRAMES // (1 + len(self.filters)), FRAMES_LEAST), FRAMES_MOST)
            limit_seq = min(filtered.walked_seq + frames_max, limit_seq)
        try:
            content, size, is_checked = self._piece(feed)
        except (StorageError, OSError, ValueError):  # each of the cursors meets it, and tells its client
            return filtered.take_all()
        hits, passed, used, fault = _walk(
            content,
            size,
            filtered.walked_seq,
            limit_seq,
            feed.name,
            self._cache.known(),
            self._cache.match,
            is_checked,
        )
        if not passed or fault:
            return filtered.take_all()
        woken = self._wake(feed, content, hits, passed, used)
        filtered.walked_seq += passed
        filtered.walked_offset += used
        return woken

    def _piece(self, feed: Feed) -> tuple[Any, int, bool]:
        """Frames from where the walk is, and whether they are known to be right. Raises StorageError, OSError."""
        filtered, growth = feed.filtered, self._fresh.get(feed.name)
        if growth is not None and growth.first_seq <= filtered.walked_seq < growth.next_seq:
            size = len(growth.frames)
            begin_offset = growth.end_offset - size
            if growth.first_seq == filtered.walked_seq:
                filtered.walked_offset = begin_offset
                if size <= SCAN_BYTES:
                    return growth.frames, size, True
            if filtered.walked_offset >= begin_offset:
                rest = memoryview(growth.frames)[filtered.walked_offset - begin_offset :]
                length = int.from_bytes(rest[:_LENGTH_BYTES], "little")
                size = min(len(rest), max(SCAN_BYTES, length))
                return rest[:size], size, True
        reader = self._readers.get(feed.name)
        if filtered.walked_offset < 0:
            filtered.walked_offset = reader.offset_of(filtered.walked_seq)
        if feed.end_offset_seq != feed.end_seq:
            feed.end_offset, feed.end_offset_seq = reader.offset_of(feed.end_seq), feed.end_seq
        content, size = read_piece(reader, self._buffer, filtered.walked_offset, feed.end_offset)
        return content, size, False

    def _wake(
        self, feed: Feed, content: Any, hits: list[tuple[tuple[int, ...], int, int]], passed: int, used: int
    ) -> list[Cursor]:
        """Keeps what each filter has matched, and takes out its cursors."""
        filtered, lone = feed.filtered, self.found.lone
        places: dict[int, list[tuple[int, int]]] = {}
        for numbers, position, length in hits:
            for number in numbers:
                if number in filtered.by_number:
                    places.setdefault(number, []).append((position, length))
        woken: list[Cursor] = []
        next_seq, next_offset = filtered.walked_seq + passed, filtered.walked_offset + used
        view = memoryview(content)
        for number, matched in places.items():
            frames = b"".join([view[position : position + length] for position, length in matched])
            picked = _new_tuple(PickedFrames, (frames, len(matched), next_seq, next_offset))
            taken = filtered.take(number, next_seq)
            woken += taken
            if len(taken) == 1 and len(frames) <= LONE_BYTES_MAX and len(lone) < LONE_MOST:
                taken[0].stop_offset = 0  # nobody asks the topic index
                lone[taken[0]] = filtered.walked_seq, picked
            else:
                self.found.keep((cache_name_of(feed.name, self.filters[number]), filtered.walked_seq), picked)
        return woken
