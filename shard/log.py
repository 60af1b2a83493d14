"""The owner's side of a stream: append, find, trim, sync. One process at a time, the one that holds the shard's lock.

A batch is written in this order: frames, index entries, the content's length, the committed seq. The last one is the
commit: an aligned 8-byte store into the mapped header page, seen by readers in every process at once. Frames and
entries are written by pwrite, never through a mapping, so that a full disk is an error and not a signal.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Final, NoReturn

from shard.errors import StorageFull, StreamDamaged, StreamMissing, is_full
from shard.files import punch_hole, sync_directory, write_all
from shard.frame import INDEX_ENTRY_BYTES, IndexEntry
from shard.growth import Extent
from shard.header import (
    CONTENT_END_OFFSET,
    CONTENT_FIRST_OFFSET,
    CONTENT_FIRST_SEQ,
    HEADER_PAGE_BYTES,
    INDEX_FIRST_SEQ,
    INDEX_NEXT_SEQ,
    INDEX_STATE,
    INDEX_SYNCED_SEQ,
    STATE_CLOSED,
    boot_word,
    tagged,
)
from shard.index import entry_offset, read_entry, seq_at
from shard.leaves import load
from shard.recovery import OPEN_CHECK_BYTES, Recovered, recover
from shard.stream_files import FilePair, StreamPaths, create_pair, is_unborn, open_pair, stream_paths
from shard.synced import publish_synced_word

PUNCH_PAGE_BYTES: Final = 4_096
"""Holes are punched in whole pages of this size."""
FOLIO_MAX_BYTES: Final = 2 << 20
"""The largest piece that the kernel caches as one, at a multiple of its size. Where a hole ends within a piece, the
kernel zeroes the part of it in the hole at once, also under a socket that `sendfile` has given it to; a piece that is
all in the hole is left to the socket as it is."""

_stamp = load("shard.frame_cy").stamp
_pwrite = os.pwrite


class StreamLog:
    """An open stream. The attributes are for reading:

    first_seq, next_seq: the messages there are; synced_seq: up to where they are known to be on the disk;
    end_offset: bytes of the content file in use; last_timestamp_us: of the last message, 0 when there was none;
    torn_bytes, lost_messages: what opening it had to cut after a crash of the machine.
    """

    __slots__ = (
        "_base_seq",
        "_content_extent",
        "_content_fd",
        "_content_limit",
        "_content_words",
        "_directory_synced",
        "_index_end",
        "_index_extent",
        "_index_fd",
        "_index_limit",
        "_index_words",
        "_lock",
        "_pair",
        "_punched_content",
        "_punched_index",
        "_sync_failed",
        "_tail",
        "closed",
        "end_offset",
        "first_seq",
        "last_timestamp_us",
        "lost_messages",
        "name",
        "next_seq",
        "synced_seq",
        "torn_bytes",
    )

    def __init__(self, pair: FilePair, state: Recovered) -> None:
        """For `open` and `create`."""
        self.name = pair.paths.name
        self.first_seq = state.first_seq
        self.next_seq = state.next_seq
        self.synced_seq = state.synced_seq
        self.end_offset = state.end_offset
        self.last_timestamp_us = state.last_timestamp_us
        self.torn_bytes = state.torn_bytes
        self.lost_messages = state.lost_messages
        self.closed = False
        self._pair = pair
        self._base_seq = state.base_seq
        self._content_fd, self._index_fd = pair.content_fd, pair.index_fd
        self._content_words, self._index_words = pair.content_words, pair.index_words
        self._index_end = entry_offset(state.next_seq, state.base_seq)
        self._content_extent = Extent(pair.content_fd, state.end_offset)
        self._index_extent = Extent(pair.index_fd, self._index_end)
        self._content_limit = self._content_extent.limit
        self._index_limit = self._index_extent.limit
        self._tail = False
        self._punched_content = self._punched_index = HEADER_PAGE_BYTES
        self._directory_synced = state.synced_seq > state.base_seq
        self._sync_failed = False
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, directory: Path, name: str, *, create: bool, boot_id: str, check_bytes: int = OPEN_CHECK_BYTES
    ) -> StreamLog:
        """Open a stream in its shard's directory, whose lock the caller holds; make it when `create` and missing.

        `check_bytes` bounds the window at the end that is verified; 0 verifies the last message alone (for a stream
        that this process has had open before). Raises StreamMissing, StreamDamaged, StorageFull, InvalidName (when it
        would be made), OSError.
        """
        paths = stream_paths(directory, name)
        boot = boot_word(boot_id)
        try:
            return cls._open_existing(paths, boot, check_bytes)
        except StreamMissing:
            if not create:
                raise
        except StreamDamaged:
            if not is_unborn(paths):
                raise
            if not create:
                raise StreamMissing(name, directory) from None
        return cls(create_pair(paths, boot), Recovered(0, 0, 0, 0, HEADER_PAGE_BYTES, 0))

    @classmethod
    def _open_existing(cls, paths: StreamPaths, boot: int, check_bytes: int) -> StreamLog:
        pair = open_pair(paths)
        try:
            return cls(pair, recover(pair, boot, check_bytes))
        except BaseException:
            pair.close()
            raise

    def append(self, frames: bytearray | memoryview, count: int, now_us: int, epoch: int) -> int:
        """Stamp `count` whole unstamped frames, at least one, in place, write and commit them. Gives the first's seq.

        Raises StorageFull (nothing is committed, the log can go on), ValueError when the frames are not whole or not
        `count`, OSError.
        """
        seq = self.next_seq
        offset = self.end_offset
        timestamp_us = self.last_timestamp_us
        if now_us > timestamp_us:
            timestamp_us = now_us
        entries = _stamp(frames, seq, timestamp_us, epoch, offset)
        size, index_size = len(frames), len(entries)
        if index_size != count * INDEX_ENTRY_BYTES or not count:
            found = index_size // INDEX_ENTRY_BYTES
            raise ValueError(f"{found} frames for stream {self.name!r}, where {count} were announced")
        index_offset = self._index_end
        if offset + size > self._content_limit or index_offset + index_size > self._index_limit:
            self._reserve(offset + size, index_offset + index_size)
        try:
            if _pwrite(self._content_fd, frames, offset) != size:
                write_all(self._content_fd, frames, offset)
            if _pwrite(self._index_fd, entries, index_offset) != index_size:
                write_all(self._index_fd, entries, index_offset)
        except OSError as error:
            self._fail(error, size)
        next_seq = seq + count
        self._content_words[CONTENT_END_OFFSET] = tagged(offset + size)
        self._index_words[INDEX_NEXT_SEQ] = tagged(next_seq)
        self.end_offset = offset + size
        self.last_timestamp_us = timestamp_us
        self._index_end = index_offset + index_size
        self.next_seq = next_seq
        return seq

    def entry(self, seq: int) -> IndexEntry:
        """The index entry of a message there is. ValueError when there is none, StreamDamaged, OSError."""
        if not self.first_seq <= seq < self.next_seq:
            raise ValueError(f"stream {self.name!r} has messages {self.first_seq} to {self.next_seq - 1}, not {seq}")
        return self._entry(seq)

    def seq_at(self, timestamp_us: int, skip: int = 0) -> int:
        """The first seq with at least this timestamp, next_seq when there is none; `skip` messages of exactly this
        timestamp are passed over. Raises OSError."""
        return seq_at(self._index_fd, self._base_seq, self.first_seq, self.next_seq, timestamp_us, skip)

    def trim(self, seq: int) -> None:
        """Let the stream begin with message `seq`; nothing is given back before `punch`.

        A seq at or below first_seq changes nothing. ValueError beyond next_seq; StreamDamaged, OSError.
        """
        if seq > self.next_seq:
            raise ValueError(f"cannot trim stream {self.name!r} to {seq}: its next message is {self.next_seq}")
        if seq <= self.first_seq:
            return
        first_offset = self._entry(min(seq, self.next_seq - 1)).offset
        self._index_words[INDEX_FIRST_SEQ] = tagged(seq)
        self._content_words[CONTENT_FIRST_OFFSET] = tagged(first_offset)
        self._content_words[CONTENT_FIRST_SEQ] = tagged(seq)
        self.first_seq = seq

    def punch(self, before: int, *, sent: bool = False) -> int:
        """Give back the whole pages of trimmed messages before seq `before`, and no more than was trimmed.

        Call it when no reader is there any more. With `sent`, what sockets may still hold of the content stays as it
        is, for which up to FOLIO_MAX_BYTES are not given back yet. It waits for the disk, and may run in another
        thread, as `sync`. The last message always stays: it tells the last timestamp. Gives the bytes that were freed.
        Raises OSError.
        """
        with self._lock:
            seq = min(before, self.first_seq, self.next_seq - 1)
            oldest = None if self.closed or seq <= self._base_seq else read_entry(self._index_fd, seq, self._base_seq)
            if oldest is None:
                return 0  # also where the entry is damaged: that is for the readers of this message to find
            content_end = _floor(oldest.offset, FOLIO_MAX_BYTES if sent else PUNCH_PAGE_BYTES)
            index_end = _floor(entry_offset(seq, self._base_seq), PUNCH_PAGE_BYTES)
        if content_end <= self._punched_content and index_end <= self._punched_index:
            return 0
        # What recovery starts from, the new beginning and a synced seq beyond the hole, is on the disk before the hole.
        if self.sync() < seq or not self._flush_header():
            return 0
        return self._punch_files(content_end, index_end)

    def sync(self) -> int:
        """Put on the disk what is committed now, then publish that as synced_seq; gives it.

        May run in another thread while the owner appends, trims and even closes. Raises OSError, and goes on doing so
        until the stream is opened anew: after a failure the kernel calls pages clean that never reached the disk.
        """
        with self._lock:
            if self._sync_failed:
                raise OSError(errno.EIO, f"an earlier sync of stream {self.name!r} failed")
            if self.closed:
                return self.synced_seq
            seq = self.next_seq
            content_fd, index_fd = os.dup(self._content_fd), os.dup(self._index_fd)
        try:
            os.fdatasync(content_fd)
            os.fdatasync(index_fd)
            if not self._directory_synced:
                sync_directory(self._pair.paths.directory)
                self._directory_synced = True
            self._publish_synced(seq, index_fd)
        except OSError:
            self._sync_failed = True
            raise
        finally:
            os.close(content_fd)
            os.close(index_fd)
        return self.synced_seq

    def mark_synced(self, seq: int | None = None) -> None:
        """Publish that messages before `seq` (all of now) are on the disk, after a sync_file_system begun since."""
        self._publish_synced(self.next_seq if seq is None else seq, self._index_fd)

    def close(self) -> None:
        """Give back the unused tails and mark the stream as closed. Nothing is synced. Raises OSError; it is closed
        all the same. A second call does nothing."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            try:
                if self._tail:
                    os.ftruncate(self._content_fd, self.end_offset)
                    os.ftruncate(self._index_fd, self._index_end)
                self._index_words[INDEX_STATE] = tagged(STATE_CLOSED)
            finally:
                self._release()

    def abandon(self) -> None:
        """Close the descriptors and leave the files as a crash of the process would; for a forked child, and tests."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._release()

    def _release(self) -> None:
        """The numbers are given to other files soon: nothing may be written to them by mistake."""
        self._content_fd = self._index_fd = -1
        self._pair.close()

    def _entry(self, seq: int) -> IndexEntry:
        entry = read_entry(self._index_fd, seq, self._base_seq)
        if entry is None:
            paths, place = self._pair.paths, entry_offset(seq, self._base_seq)
            raise paths.damaged(paths.index_file, place, f"there is no entry of message {seq}")
        return entry

    def _reserve(self, end: int, index_end: int) -> None:
        self._tail = True
        try:
            if end > self._content_limit:
                self._content_extent.reserve(self.end_offset, end)
                self._content_limit = self._content_extent.limit
            if index_end > self._index_limit:
                self._index_extent.reserve(self._index_end, index_end)
                self._index_limit = self._index_extent.limit
        except OSError as error:
            self._fail(error, end - self.end_offset)

    def _fail(self, error: OSError, size: int) -> NoReturn:
        """A batch was not committed. Part of it may lie beyond the end, to be overwritten or cut."""
        self._tail = True
        if is_full(error):
            raise StorageFull(self.name, Path(self._pair.paths.content_file), size) from error
        raise error

    def _publish_synced(self, seq: int, index_fd: int) -> None:
        """Store synced_seq unless it is further already; into the file when the log was closed meanwhile."""
        with self._lock:
            if seq <= self.synced_seq:
                return
            self.synced_seq = seq
            if not self.closed:
                self._index_words[INDEX_SYNCED_SEQ] = tagged(seq)
                return
        publish_synced_word(index_fd, seq)

    def _flush_header(self) -> bool:
        """Put the index's header page on the disk; False when the log was closed meanwhile."""
        with self._lock:
            if self.closed:
                return False
            fd = os.dup(self._index_fd)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        return True

    def _punch_files(self, content_end: int, index_end: int) -> int:
        freed = 0
        with self._lock:
            if self.closed:
                return 0
            if content_end > self._punched_content and punch_hole(self._content_fd, HEADER_PAGE_BYTES, content_end):
                freed += content_end - self._punched_content
                self._punched_content = content_end
            if index_end > self._punched_index and punch_hole(self._index_fd, HEADER_PAGE_BYTES, index_end):
                freed += index_end - self._punched_index
                self._punched_index = index_end
        return freed


def _floor(offset: int, unit_bytes: int) -> int:
    return offset // unit_bytes * unit_bytes
