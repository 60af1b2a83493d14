"""Subscriptions with a filter that are far behind pass over what a stream's topic index says has none of their topics.

The index (`shard.topic_index`) is made in a thread (`broker.topics.index_builder`) once such a subscription wants it,
so the first replay of a stream may still look at all of it. Nothing here is needed for a right answer: without an
index, or where it ends, the log is searched.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from time import monotonic
from typing import Final, NamedTuple

from tailrace.broker.delivery.cursor import Cursor, Feed
from tailrace.broker.delivery.readers import StreamReaders
from tailrace.broker.topics.index_builder import IndexBuilder
from tailrace.shard.errors import StorageError
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.topic_index import BLOCK_BYTES, RECORD_BYTES, BlockIndex, BlockRuns, filter_keys, open_index

log = logging.getLogger(__name__)

BEHIND_BYTES_MIN: Final = 256 << 10
"""A subscription that is no further behind does not ask the index."""
BUILD_BYTES_MIN: Final = 16 << 20
"""Nor does one that is no further behind let an index be made."""
GROWN_BYTES: Final = 4 << 20
"""Of a log behind its index, before that is extended."""
WINDOW_BLOCKS: Final = 1_024
"""Searched at once: 256 KiB of the index, for 16 MiB of the log."""
WINDOWS_MAX: Final = 256
"""Results of that which are kept, of up to 16 KiB each."""
INDEXES_MAX: Final = 64
"""Open indexes of a worker, and names of streams that have none."""
LOOK_S: Final = 1.0
"""Between two looks at the file of an index."""
EXTEND_TICKS: Final = 10

_RUN = struct.Struct("<QQQQ")


class KnownIndex(NamedTuple):
    """`opened` is None if the stream has none that can be used; `looked_s`: when that was found, by which reader."""

    opened: BlockIndex | None
    reader: StreamReader
    looked_s: float


class FoundWindow(NamedTuple):
    """The blocks from `block` to before `end_block` of one window were searched."""

    searched: BlockIndex
    block: int
    end_block: int
    found: BlockRuns


class BlockSkips:
    """One per worker.

    looked_bytes: searched, of logs and of indexes; skipped_bytes: of logs that were not.
    """

    def __init__(self, readers: StreamReaders) -> None:
        self._readers = readers
        self._builder = IndexBuilder(readers)
        self._known: OrderedDict[bytes, KnownIndex] = OrderedDict()
        self._windows: OrderedDict[tuple[bytes, bytes, int], FoundWindow] = OrderedDict()
        self._ticks = 0
        self.looked_bytes = 0
        self.skipped_bytes = 0

    @property
    def is_building(self) -> bool:
        """Whether an index that was requested here is not finished yet."""
        return self._builder.is_busy

    def skip(self, cursor: Cursor) -> int:
        """Moves a cursor with a filter between two chunks to the next place that may have a message for it.

        Gives 0 if its next chunk is to be made there; otherwise the work that was done, in bytes: it may have reached
        an end, or it is to be moved further in its next turn.
        """
        cursor.stop_offset = 0
        feed = cursor.feed
        is_placed = cursor.offset >= 0 and feed.end_offset_seq == feed.end_seq
        is_near = is_placed and feed.end_offset - cursor.offset < BEHIND_BYTES_MIN
        if is_near or cursor.topics[:1] in (b"#", b"+", b"/"):
            return 0
        try:
            reader = self._readers.get(feed.name)
            if cursor.offset < 0:
                cursor.offset = reader.offset_of(cursor.seq)
            if feed.end_offset_seq != feed.end_seq:
                feed.end_offset, feed.end_offset_seq = reader.offset_of(feed.end_seq), feed.end_seq
            if feed.end_offset - cursor.offset < BEHIND_BYTES_MIN or cursor.seq < reader.first_seq():
                return 0
            memory = self._readers.memory
            if memory is not None and memory.holds(feed.name):  # short, and its memory is bounded
                return 0
            index = self._index(cursor, reader)
            if index is None or not index.covers(cursor.offset // BLOCK_BYTES):
                return 0
            return self._move(cursor, index)
        except (StorageError, OSError, ValueError):  # the chunk that is made next meets it, and the client is notified
            return 0

    def tick(self) -> None:
        """About once a second: lets the indexes grow that were used."""
        self._ticks += 1
        if self._ticks % EXTEND_TICKS == 0:
            for name, known in self._known.items():
                if known.opened is not None:
                    self._builder.request(name)

    def close(self) -> None:
        self._builder.close()
        for name in list(self._known):
            self._forget(name)

    # --- moving -----------------------------------------------------------------------------------------------------

    def _move(self, cursor: Cursor, index: BlockIndex) -> int:
        window, work = self._window(cursor, index)
        if window is None:
            return work
        runs, stop_offset = window.runs, 0
        seq, offset = window.end_seq, window.end_offset
        at = _first_run_behind(runs, cursor.offset)
        if at < len(runs):
            seq, offset, _, stop_offset = _RUN.unpack_from(runs, at)
        if offset <= cursor.offset:
            cursor.stop_offset = stop_offset
            return work
        limit_seq = min(cursor.feed.end_seq, cursor.until_seq)
        if seq >= limit_seq:
            seq, offset, stop_offset = limit_seq, -1, 0
        else:
            self.skipped_bytes += offset - cursor.offset
        cursor.seq, cursor.offset, cursor.stop_offset = seq, offset, stop_offset
        return work or int(not stop_offset)

    def _window(self, cursor: Cursor, index: BlockIndex) -> tuple[BlockRuns | None, int]:
        """What the index says of the blocks from the cursor's on, and the bytes of it that were read."""
        first, name = index.start.first_block, cursor.feed.name
        block = cursor.offset // BLOCK_BYTES
        number = (block - first) // WINDOW_BLOCKS
        end_block = min(first + (number + 1) * WINDOW_BLOCKS, index.end_block)
        key = name, cursor.topics, number
        known = self._windows.get(key)
        if known is not None and known.block <= block < known.end_block and known.searched is index:
            return known.found, 0
        found = index.find(filter_keys(cursor.topics), block, end_block)
        nbytes = (end_block - block) * RECORD_BYTES
        self.looked_bytes += nbytes
        if found is None:
            log.warning("the topic index of stream %r is damaged; it is made anew", name.decode(errors="replace"))
            self._set(name, None, self._readers.get(name))
            self._builder.request(name, suspect=True)
            return None, 0
        self._windows[key] = FoundWindow(index, block, end_block, found)
        self._windows.move_to_end(key)
        if len(self._windows) > WINDOWS_MAX:
            self._windows.popitem(last=False)
        return found, nbytes

    # --- indexes ----------------------------------------------------------------------------------------------------

    def _index(self, cursor: Cursor, reader: StreamReader) -> BlockIndex | None:
        """The index of a stream, looked at again each LOOK_S; one is requested if there is none, or one too short."""
        name = cursor.feed.name
        known, now_s = self._known.get(name), monotonic()
        if known is not None and known.reader is not reader:  # the stream may have been cut, or be another one
            known = None
        if known is None or now_s - known.looked_s >= LOOK_S:
            index = self._look(name, reader, None if known is None else known.opened)
            self._set(name, index, reader)
            if self._is_wanted(cursor, cursor.feed, index):
                self._builder.request(name)
            return index
        return known.opened

    def _look(self, name: bytes, reader: StreamReader, index: BlockIndex | None) -> BlockIndex | None:
        paths = stream_paths(self._readers.path(name), name.decode())
        if index is not None and index.is_at(paths):
            index.refresh()
            return index
        return open_index(paths, reader)

    def _is_wanted(self, cursor: Cursor, feed: Feed, index: BlockIndex | None) -> bool:
        if index is not None:
            return feed.end_offset - index.end_block * BLOCK_BYTES >= GROWN_BYTES
        is_of_all = cursor.topics == feed.name + b"/#"  # by the built-in rule each topic of the stream matches
        return feed.end_offset - cursor.offset >= BUILD_BYTES_MIN and not is_of_all

    def _set(self, name: bytes, index: BlockIndex | None, reader: StreamReader) -> None:
        before = self._known.pop(name, None)
        if before is not None and before.opened is not None and before.opened is not index:
            before.opened.close()
        self._known[name] = KnownIndex(index, reader, monotonic())
        if len(self._known) > INDEXES_MAX:
            self._forget(next(iter(self._known)))

    def _forget(self, name: bytes) -> None:
        known = self._known.pop(name)
        if known.opened is not None:
            known.opened.close()


def _first_run_behind(runs: bytes, offset: int) -> int:
    """Where the first run stands that ends behind an offset; the end of the runs without any."""
    low, high = 0, len(runs) // _RUN.size
    while low < high:
        middle = (low + high) // 2
        if int.from_bytes(runs[_RUN.size * middle + 24 : _RUN.size * (middle + 1)], "little") > offset:
            high = middle
        else:
            low = middle + 1
    return low * _RUN.size
