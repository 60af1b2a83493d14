"""The owner's side of a stream: append or take, find, trim, set aside, sync. One process at a time, the one that holds
the shard's lock.

A batch is written in this order: frames, index entries, the content's length, the committed seq. The last one is the
commit: an aligned 8-byte store into the mapped header page, seen by readers in every process at once. Small batches go
through mapped ends of the files (`shard.window`), others by pwrite.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tailrace.shard.admission import Frames, LogEnd, StampBounds, admit_pieces, require_frames
from tailrace.shard.begun_sync import BegunSync
from tailrace.shard.diverged import DivergedTail, keep_tail
from tailrace.shard.durable_end import RECENT_BYTES_MAX, BegunJournaling, DurableEnd
from tailrace.shard.epochs import NEVER_SEQ, History, find_epochs
from tailrace.shard.errors import MessageMissing, StorageFull, StreamDamaged, StreamMissing, is_full
from tailrace.shard.file_ends import FileEnds
from tailrace.shard.files import punch_hole, start_writing, sync_directory, write_all, write_row
from tailrace.shard.frame import CRC_OFFSET, INDEX_ENTRY_BYTES, IndexEntry
from tailrace.shard.header import (
    CONTENT_END_OFFSET,
    CONTENT_FIRST_OFFSET,
    CONTENT_FIRST_SEQ,
    HEADER_PAGE_BYTES,
    INDEX_CUT_SEQ,
    INDEX_CUTS,
    INDEX_FIRST_SEQ,
    INDEX_NEXT_SEQ,
    INDEX_STATE,
    INDEX_SYNC_FAILED,
    INDEX_SYNCED_SEQ,
    STATE_CLOSED,
    STREAM_ID_WORD,
    VALUE_MAX,
    boot_word,
    put_word,
    tagged,
)
from tailrace.shard.heads import read_metadata
from tailrace.shard.holes import FOLIO_MAX_BYTES, PUNCH_PAGE_BYTES, whole_units
from tailrace.shard.index import entry_offset, read_entry, seq_at
from tailrace.shard.journal import JOURNALED_BYTES_MAX
from tailrace.shard.leaves import load
from tailrace.shard.mend import take_up
from tailrace.shard.newborn import Left, left_of_newborn
from tailrace.shard.recovery import OPEN_CHECK_BYTES, Recovered, no_messages, recover, settle_boot
from tailrace.shard.rewrite import Span, require_messages_on_disk, write_messages_again
from tailrace.shard.stream_files import (
    FilePair,
    NewPair,
    StreamPaths,
    create_pair,
    finish_anew,
    is_begun_anew,
    open_pair,
    stream_paths,
)
from tailrace.shard.sync_marks import try_to_mark_failed
from tailrace.shard.torn import keep_torn
from tailrace.shard.walk import FrameRun, FrameWalk, fault_text
from tailrace.shard.window import DONE, FAULT, MAPS, PAST, WINDOW_BATCH_BYTES_MAX, append_mapped, append_unstamped

_stamp = load("tailrace.shard.frame_cy").stamp
_pwrite, _new_tuple = os.pwrite, tuple.__new__  # the latter skips the Python function that a NamedTuple has


class StreamLog:
    """An open stream. The attributes are for reading:

    stream_id, cuts: of its files; first_seq, next_seq: the range of messages; synced_seq: messages before it are known
    to be on the disk in its files, durable: in them or in a journal; end_offset: bytes of the content file in use;
    last_timestamp_us, last_epoch: of the last message, 0 before the first; torn_bytes, lost_messages: cut at opening
    after a crash of the machine or a failed sync; new_boot: this is the first opening since the machine came up, or its
    volume was lost meanwhile, or opening it has cut messages, so that messages which others have seen may be lost
    without a trace; taken_flags: all flags of the frames of the last `take`; syncing: held during a sync, since the
    kernel reports an error once, to the first caller; errors_seen: for `shard.group_sync`.
    """

    __slots__ = (
        "_base_seq",
        "_boot",
        "_content_fd",
        "_content_words",
        "_directory_synced",
        "_ends",
        "_generation",
        "_index_end",
        "_index_fd",
        "_index_words",
        "_is_cut",
        "_is_unmarked",
        "_lock",
        "_pair",
        "_punched_content",
        "_punched_index",
        "closed",
        "cuts",
        "durable",
        "end_offset",
        "errors_seen",
        "first_seq",
        "last_epoch",
        "last_timestamp_us",
        "lost_messages",
        "name",
        "new_boot",
        "next_seq",
        "stream_id",
        "synced_seq",
        "syncing",
        "taken_flags",
        "torn_bytes",
    )

    def __init__(self, pair: FilePair, state: Recovered, boot: int) -> None:
        """Used by `open`."""
        self._boot = boot
        self.name = pair.paths.name
        self.torn_bytes, self.lost_messages = state.torn_bytes, state.lost_messages
        self.new_boot = state.new_boot
        self.closed = self._is_unmarked = False
        self.taken_flags = self._generation = 0
        self.cuts = state.cuts
        self._lock = threading.Lock()
        self.syncing = threading.RLock()
        self.errors_seen = 0
        self._adopt(pair, state)

    def _adopt(self, pair: FilePair, state: Recovered) -> None:
        """These are the stream's files from now on."""
        self.first_seq = state.first_seq
        self.next_seq = state.next_seq
        self.synced_seq = state.synced_seq
        self.end_offset = state.end_offset
        self.durable = DurableEnd(state.synced_seq, state.end_offset if state.synced_seq == state.next_seq else 0)
        self.last_timestamp_us, self.last_epoch = state.last_timestamp_us, state.last_epoch
        self._pair = pair
        self.stream_id = pair.index_words[STREAM_ID_WORD]
        self._base_seq = state.base_seq
        self._content_fd, self._index_fd = pair.content_fd, pair.index_fd
        self._content_words, self._index_words = pair.content_words, pair.index_words
        self._punched_content = self._punched_index = HEADER_PAGE_BYTES
        self._directory_synced = state.synced_seq > state.base_seq
        self._is_cut = state.is_cut
        self._begin_growth()

    def _begin_growth(self) -> None:
        """The files end with their messages."""
        self._index_end = entry_offset(self.next_seq, self._base_seq)
        self._ends = FileEnds(self._pair, self.end_offset, self._index_end)

    @classmethod
    def open(
        cls,
        directory: Path,
        name: str,
        *,
        create: bool,
        boot_id: str,
        check_bytes: int = OPEN_CHECK_BYTES,
        base_seq: int = 0,
    ) -> StreamLog:
        """Open a stream in its shard's directory, whose lock the caller holds; make it when `create` and missing.

        `check_bytes` bounds the window at the end that is verified; 0 verifies the last message alone (for a stream
        that this process has had open before). `base_seq` is the first seq of a stream that is made here; see
        `begin_at` for an existing one. Raises StreamMissing, StreamDamaged, StorageFull, InvalidName (when it would be
        made), OSError; ValueError for an invalid base_seq.
        """
        if not 0 <= base_seq <= VALUE_MAX:
            raise ValueError(f"stream {name!r} cannot begin at {base_seq}: 0 to {VALUE_MAX}")
        paths = stream_paths(directory, name)
        boot = boot_word(boot_id)
        may_be_lost = False
        try:
            return cls._open_existing(paths, boot, check_bytes)
        except StreamMissing:
            if not create:
                raise
        except StreamDamaged:
            if is_begun_anew(paths):
                finish_anew(paths, boot)
                return cls._open_existing(paths, boot, check_bytes)
            if (left := left_of_newborn(paths, boot)) is None:
                raise
            if left is Left.FRAMES:
                return cls._open_rebuilt(paths, boot)
            if not create:
                raise StreamMissing(name, directory) from None
            may_be_lost = True
        state = no_messages(base_seq)
        state.new_boot = may_be_lost
        return cls(create_pair(paths, boot, base_seq), state, boot)

    @classmethod
    def _open_existing(cls, paths: StreamPaths, boot: int, check_bytes: int) -> StreamLog:
        pair = open_pair(paths)
        try:
            return cls(pair, recover(pair, boot, check_bytes), boot)
        except BaseException:
            pair.close()
            raise

    @classmethod
    def _open_rebuilt(cls, paths: StreamPaths, boot: int) -> StreamLog:
        """Take up the frames that a loss of power has left of a new stream."""
        cut_bytes = take_up(paths, boot).cut_bytes
        log = cls._open_existing(paths, boot, OPEN_CHECK_BYTES)
        log.torn_bytes, log.new_boot = cut_bytes, True
        return log

    def append(self, frames: bytearray | memoryview, count: int, now_us: int, epoch: int) -> int:
        """Stamp `count` whole unstamped frames, at least one, in place, write and commit them. Gives the first's seq.

        Raises StorageFull (nothing is committed, the log can go on), ValueError for other frames, OSError.
        """
        seq, offset, timestamp_us = self.next_seq, self.end_offset, self.last_timestamp_us
        timestamp_us = now_us if now_us > timestamp_us else timestamp_us
        size, words, at = len(frames), self._ends.words, self._index_end
        is_small = MAPS and size <= WINDOW_BATCH_BYTES_MAX
        if is_small and append_unstamped(words, frames, count, seq, timestamp_us, epoch, offset, at) == DONE:
            self.end_offset, self._index_end, self.next_seq = offset + size, at + count * INDEX_ENTRY_BYTES, seq + count
            if self.durable.keeps_recent:
                self.durable.recent = bytes(frames) if size <= RECENT_BYTES_MAX else b""
        else:
            entries = require_frames(self.name, _stamp(frames, seq, timestamp_us, epoch, offset), count)
            self._commit(frames, size, entries, seq + count)
        self.last_timestamp_us, self.last_epoch = timestamp_us, epoch
        return seq

    def take(self, *pieces: Frames, bounds: StampBounds | None = None) -> int:
        """Append frames that the stream's master has stamped, the very bytes, and commit them. Gives how many they are.

        They may come in several pieces, which are then committed together. Before anything is written all of them are
        checked: whole, with right checksums, seqs from next_seq on without a hole, timestamps and epochs that never go
        back, nor beyond `bounds`. Raises FramesRefused: nothing is taken of the piece that is wrong and of those behind
        it, and those before it are. Raises StorageFull: nothing is committed. The log can go on. Raises OSError.
        """
        first_seq = self.next_seq
        end = LogEnd(first_seq, self.end_offset, self.last_timestamp_us, self.last_epoch)
        row, end, flags, refused = admit_pieces(self.name, pieces, end, bounds)
        if row:
            frames, entries = (pieces[0], row[0]) if len(row) == 1 else (pieces[: len(row)], bytearray().join(row))
            self._commit(frames, end.end_offset - self.end_offset, entries, end.next_seq)
            self.last_timestamp_us, self.last_epoch, self.taken_flags = end.timestamp_us, end.epoch, flags
        if refused is not None:
            raise refused
        return end.next_seq - first_seq

    def _commit(self, frames: Frames | tuple[Frames, ...], size: int, entries: bytearray, next_seq: int) -> None:
        """Write stamped frames, in one piece or several, and their entries, then commit them. As `append`."""
        offset, index_offset, outcome = self.end_offset, self._index_end, PAST
        if MAPS and size <= WINDOW_BATCH_BYTES_MAX and not isinstance(frames, tuple):
            outcome = append_mapped(self._ends.words, frames, entries, offset, index_offset, next_seq)
        end, index_end = offset + size, index_offset + len(entries)
        if outcome != DONE:
            if not self._is_cut:
                self._cut_torn()
            ends = self._ends
            if outcome == FAULT:
                ends.window.fault()
            try:
                if end > ends.content.limit or index_end > ends.index.limit:
                    ends.reserve(offset, end, index_offset, index_end)
                if isinstance(frames, tuple):
                    write_row(self._content_fd, frames, offset)
                elif _pwrite(self._content_fd, frames, offset) != size:
                    write_all(self._content_fd, frames, offset)
                if _pwrite(self._index_fd, entries, index_offset) != len(entries):
                    write_all(self._index_fd, entries, index_offset)
            except OSError as error:
                ends.surplus = True
                if is_full(error):
                    raise StorageFull(self.name, Path(self._pair.paths.content_file), size) from error
                raise
            self._content_words[CONTENT_END_OFFSET] = tagged(end)
            self._index_words[INDEX_NEXT_SEQ] = tagged(next_seq)
            if MAPS:
                ends.wrote(size, end, index_end)
        if self.durable.keeps_recent:
            self.durable.recent = bytes(frames) if size <= RECENT_BYTES_MAX and not isinstance(frames, tuple) else b""
        self.end_offset, self._index_end, self.next_seq = end, index_end, next_seq

    def entry(self, seq: int) -> IndexEntry:
        """Returns the index entry of an existing message. Raises MessageMissing for others, StreamDamaged, OSError."""
        if not self.first_seq <= seq < self.next_seq:
            raise MessageMissing(self.name, seq, self.first_seq, self.next_seq)
        return self._entry(seq)

    def seq_at(self, timestamp_us: int, skip: int = 0) -> int:
        """The first seq with at least this timestamp, next_seq without any; `skip` messages of exactly this
        timestamp are skipped. Raises OSError."""
        return seq_at(self._index_fd, self._base_seq, self.first_seq, self.next_seq, timestamp_us, skip)

    def epochs(self, first_seq: int = 0) -> History:
        """The epochs that the messages kept from `first_seq` on show: a few reads. Raises StreamDamaged, OSError."""
        return find_epochs(lambda seq: self._entry(seq).epoch, max(first_seq, self.first_seq), self.next_seq)

    def frame_crc(self, seq: int) -> int:
        """Returns the checksum of a message, with which another log can check whether it has the same. As `entry`."""
        return int.from_bytes(os.pread(self._content_fd, 4, self.entry(seq).offset + CRC_OFFSET), "little")

    def walk(self, seq: int, end_seq: int = NEVER_SEQ) -> Iterator[FrameRun]:
        """The frames from message `seq` on, before `end_seq` and the present end, in checked pieces of bounded size.
        Raises StreamDamaged, OSError; ValueError for a message that does not exist.
        """
        if seq == self.next_seq:
            return
        end_offset = self.entry(end_seq).offset if end_seq < self.next_seq else self.end_offset
        walk = FrameWalk(self._content_fd, self.entry(seq).offset, end_offset, seq)
        yield from walk
        if walk.fault:
            paths = self._pair.paths
            raise paths.damaged(paths.content_file, walk.offset, fault_text(walk.fault))

    def metadata(self, first_seq: int, messages: int) -> Iterator[bytes]:
        """Returns the metadata of `count` existing messages from `first_seq` on. Raises as `entry`."""
        last = self.entry(first_seq + messages - 1)
        return read_metadata(self._content_fd, self.entry(first_seq).offset, last.offset + last.length, messages)

    @property
    def generation(self) -> int:
        """Changes whenever messages are cut; cached facts are then invalid."""
        return self._generation

    def trim(self, seq: int) -> None:
        """Let the stream begin with message `seq`; nothing is given back before `punch`.

        A seq at or below first_seq changes nothing. ValueError beyond next_seq; StreamDamaged, OSError.
        """
        if seq > self.next_seq:
            raise ValueError(f"cannot trim stream {self.name!r} to {seq}: its next message is {self.next_seq}")
        if seq <= self.first_seq:
            return
        first_offset = self._entry(min(seq, self.next_seq - 1)).offset
        with self._lock:  # a repair that writes a header page again would undo it
            self._pair.dirty_heads()
            self._index_words[INDEX_FIRST_SEQ] = tagged(seq)
            self._content_words[CONTENT_FIRST_OFFSET] = tagged(first_offset)
            self._content_words[CONTENT_FIRST_SEQ] = tagged(seq)
        self.first_seq = seq

    def punch(self, before: int, *, sent: bool = False) -> int:
        """Give back the whole pages of trimmed messages before seq `before`, and no more than was trimmed.

        Call it when the trimmed messages have no reader. With `sent`, bytes of the content that sockets may still hold
        stay unchanged, for which up to FOLIO_MAX_BYTES are not given back yet. It waits for the disk, and may run in
        another thread while messages are appended. So nothing is given back after a failed sync, before another one has
        succeeded. The last message always stays: it has the last timestamp. Returns the bytes that were freed. Raises
        OSError.
        """
        with self._lock:
            seq = min(before, self._oldest_seq())
            oldest = None if self.closed or seq <= self._base_seq else read_entry(self._index_fd, seq, self._base_seq)
            if oldest is None:
                return 0
            content_end = whole_units(oldest.offset, FOLIO_MAX_BYTES if sent else PUNCH_PAGE_BYTES)
            index_end = whole_units(entry_offset(seq, self._base_seq), PUNCH_PAGE_BYTES)
            generation = self._generation
        if content_end <= self._punched_content and index_end <= self._punched_index:
            return 0
        # What recovery starts from, the new beginning and a synced seq beyond the hole, is on the disk before the hole.
        with self.syncing:
            if self.sync_failed_seq is not None or self.sync() < seq or not self._flush_header():
                return 0
        return self._punch_files(content_end, index_end, generation)

    def set_aside(self, seq: int) -> DivergedTail | None:
        """Let the stream end before message `seq`; move those from there on to NAME.diverged (`shard.diverged`).

        They are copied and on the disk before the stream loses them. If no message before `seq` is kept, the stream
        becomes one without messages that begins at `seq`. Returns the kept tail, None if it had no message. Waits for
        the disk, and may run in another thread, as `punch`, while nothing is appended or trimmed.

        Readers that are open raise StreamCut from now on. Raises StorageFull, TailsDamaged, StreamDamaged, ValueError
        beyond next_seq, or when something was appended meanwhile, and OSError: the stream is then as it was. After an
        OSError that comes later the log is closed, and opening it anew finishes the cut.
        """
        with self.syncing:
            if self.sync_failed_seq is not None or self.durable.seq > self.synced_seq:
                self.sync()  # a cut asserts that all messages before it are on the disk
            return self._set_aside(seq)

    def _set_aside(self, seq: int) -> DivergedTail | None:
        with self._lock:
            if not 0 <= seq <= self.next_seq or self.closed:
                raise ValueError(f"stream {self.name!r} cannot end before {seq}: its next message is {self.next_seq}")
            if seq == self.next_seq:
                return None
            self._cut_torn()
            next_seq, first_seq, generation = self.next_seq, max(seq, self.first_seq), self._generation
            content_fd, index_fd = os.dup(self._content_fd), os.dup(self._index_fd)
        try:
            kept = None
            if first_seq < next_seq:
                ends = self._entry(first_seq, index_fd), self._entry(next_seq - 1, index_fd)
                kept = keep_tail(self._pair.paths, content_fd, first_seq, next_seq, *ends)
        finally:
            os.close(content_fd)
            os.close(index_fd)
        with self._lock:
            if (self.closed, self.next_seq, self._generation) != (False, next_seq, generation):
                raise ValueError(f"stream {self.name!r} was changed while its tail was set aside: it is not cut")
            if seq > self.first_seq:
                self._cut(seq)
            else:
                self._begin_anew(seq)
        return kept

    def begin_at(self, seq: int, *, drops: bool = False) -> None:
        """Let a stream that keeps no message go on with message `seq`, be that before or after next_seq; on the disk.

        For a copy that begins later than its master's stream, or whose master has trimmed what should come next; or is
        to have none of its messages: `drops` them, all or none. Readers that are open raise StreamCut from now on.
        Raises ValueError when there are others, StorageFull, OSError as `set_aside`.
        """
        if not 0 <= seq <= VALUE_MAX:
            raise ValueError(f"stream {self.name!r} cannot begin at {seq}: 0 to {VALUE_MAX}")
        with self._lock:
            if (self.first_seq != self.next_seq and not drops) or self.closed:
                raise ValueError(f"stream {self.name!r} cannot begin at {seq}: it keeps messages from {self.first_seq}")
            if seq != self.next_seq:
                self._cut_torn()
                self._begin_anew(seq)

    @property
    def sync_failed_seq(self) -> int | None:
        """The first message that a failed sync has left unsure; None without such a failure."""
        return self.synced_seq if not self.closed and self._is_sync_failed() else None

    def _is_sync_failed(self) -> bool:
        return self._is_unmarked or self._index_words[INDEX_SYNC_FAILED] != 0

    def sync(self) -> int:
        """Syncs the messages committed now, then stores and returns synced_seq.

        May run in another thread while the owner appends, trims and even closes. After an error the stream is marked in
        its header page, also for those who open it later: the kernel calls pages clean then that never reached the
        disk. The next sync of a marked stream writes all messages past synced_seq again; nothing may be appended while
        it runs. Raises OSError; MessagesLost when some of them cannot be read any more, and StreamDamaged: then open
        the stream anew.
        """
        with self.syncing:
            begun = self.begin_sync()
            if begun is None:
                return self.synced_seq
            try:
                if begun.failed:
                    self._sync_again(begun)
                begun.put()
                if not self._directory_synced:
                    sync_directory(self._pair.paths.directory)
                self.finish_sync(begun)
            except OSError:
                self.mark_sync_failed(begun)
                raise
            finally:
                begun.close()
        return self.synced_seq

    def begin_sync(self, *, fds: bool = True) -> BegunSync | None:
        """For `sync` and `shard.group_sync`, with `syncing` held; None if closed. The caller closes the result."""
        with self._lock:
            if self.closed:
                return None
            self._ends.window.show_appends()
            fds_held = (os.dup(self._content_fd), os.dup(self._index_fd)) if fds else (-1, -1)
            return BegunSync(self.next_seq, self.end_offset, self._generation, *fds_held, self._is_sync_failed())

    def start_writing(self) -> None:
        """For `shard.group_sync`: begin to write what was appended to the disk. Does nothing if closed."""
        start_writing(self._content_fd)
        start_writing(self._index_fd)

    def finish_sync(self, begun: BegunSync) -> None:
        """Content, index and directory are on the disk: publish synced_seq.

        Not if the log was closed meanwhile, since the stream may have another owner then, or if its tail was cut off.
        """
        with self._lock:
            if self.closed or begun.generation != self._generation:
                return
            self._directory_synced = True
            self._ends.window.synced()
            self.durable.advance(begun.seq, begun.end_offset)
            if begun.seq > self.synced_seq:
                self.synced_seq = begun.seq
                self._index_words[INDEX_SYNCED_SEQ] = tagged(begun.seq)
            if begun.failed:
                self._index_words[INDEX_SYNC_FAILED] = self._is_unmarked = False

    def begin_journaling(self) -> BegunJournaling | None:
        """For `shard.group_journal`; None if the messages must go to the stream's own files first."""
        with self._lock:
            seq, end = self.next_seq, self.end_offset  # in this order: the owner may append meanwhile
            durable, start = self.durable, self.durable.offset
            is_early = self.closed or not start or not self._directory_synced or self._is_sync_failed()
            if is_early or end - start > JOURNALED_BYTES_MAX:
                return None
            frames, durable.keeps_recent = durable.recent, True
            if len(frames) != end - start:
                frames = os.pread(self._content_fd, end - start, start)
            place = durable.seq, start, frames, seq, end, self._generation
            return _new_tuple(BegunJournaling, (self.name, self.stream_id, self.cuts, *place))

    def finish_journaling(self, begun: BegunJournaling) -> None:
        """The record is on the disk. Does nothing if the log was closed or cut meanwhile."""
        with self._lock:
            if not self.closed and begun.generation == self._generation:
                self.durable.advance(begun.seq, begun.end_offset)

    def mark_sync_failed(self, begun: BegunSync) -> None:
        """Remember in the header page that not all before `begun.seq` may be on the disk."""
        with self._lock:
            self._mark_failed(begun.index_fd if self.closed else self._index_fd)

    def _mark_failed(self, index_fd: int) -> None:
        if self.closed or not self._is_sync_failed():
            self._is_unmarked = not try_to_mark_failed(index_fd, self.synced_seq)

    def _sync_again(self, begun: BegunSync) -> None:
        """Write messages past synced_seq, entries and header pages again, and see that they are there. As `sync`."""
        with self._writing(begun.generation):
            self._ends.window.close()  # pages that are mapped would not leave the cache
            first_seq, start = self.synced_seq, HEADER_PAGE_BYTES
            if first_seq > self._base_seq:
                last = self._entry(first_seq - 1)
                start = last.offset + last.length
        span = Span(self.name, self._base_seq, first_seq, start)
        write_messages_again(begun, span, lambda: self._writing(begun.generation))
        with self._writing(begun.generation):
            self._pair.dirty_heads()
        begun.put()
        sync_directory(self._pair.paths.directory)
        require_messages_on_disk(begun, span, lambda: self._writing(begun.generation))

    @contextmanager
    def _writing(self, generation: int) -> Iterator[None]:
        """Hold off closing and cutting. Raises OSError after one of them."""
        with self._lock:
            if self.closed or generation != self._generation:
                raise OSError(errno.ECANCELED, f"stream {self.name!r} was closed or cut while it was synced")
            yield

    def close(self) -> None:
        """Give back the unused tails and mark the stream as closed. Nothing is synced. Raises OSError; it is closed
        all the same. A second call does nothing."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            try:
                self._ends.cut(self.end_offset, self._index_end)
                put_word(self._index_fd, INDEX_STATE, tagged(STATE_CLOSED))
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
        self._ends.window.close()
        self._pair.close()

    def _entry(self, seq: int, index_fd: int | None = None) -> IndexEntry:
        entry = read_entry(self._index_fd if index_fd is None else index_fd, seq, self._base_seq)
        if entry is None:
            paths, place = self._pair.paths, entry_offset(seq, self._base_seq)
            raise paths.damaged(paths.index_file, place, f"there is no entry of message {seq}")
        return entry

    def _oldest_seq(self) -> int:
        """The oldest message that must stay in the files: the one at the beginning in the content's header page."""
        first_seq = self.first_seq
        if self.closed or first_seq == self.next_seq:
            return self.next_seq - 1
        # When all was trimmed the last message stayed, and the header page goes on pointing to it.
        first_offset = self._content_words[CONTENT_FIRST_OFFSET] & VALUE_MAX
        entry = read_entry(self._index_fd, first_seq, self._base_seq)
        if entry is None:
            return self._base_seq  # damaged, which is for the readers of this message to find: nothing is given back
        return first_seq - 1 if first_offset < entry.offset else first_seq

    def _cut(self, seq: int) -> None:
        """The stores that end the stream before `seq`, of which a message is kept; then the files follow.

        Until next_seq is stored the old stream is whole. After a crash of the machine it is whole again until the file
        is cut: synced_seq marks the messages beyond it as unchecked. The words are on the disk before that.
        """
        last, index = self._entry(seq - 1), self._index_words
        end = last.offset + last.length
        self._ends.window.close()
        self._pair.dirty_heads()
        index[INDEX_CUTS] = tagged(self.cuts + 1)
        index[INDEX_CUT_SEQ] = tagged(seq)
        index[INDEX_SYNCED_SEQ] = tagged(min(seq, self.synced_seq))
        index[INDEX_NEXT_SEQ] = tagged(seq)
        self._content_words[CONTENT_END_OFFSET] = tagged(end)
        index[INDEX_CUTS] = tagged(self.cuts + 2)
        self.cuts += 2
        self._generation += 1
        self.next_seq, self.end_offset = seq, end
        self.synced_seq = min(seq, self.synced_seq)
        self.durable = DurableEnd(self.synced_seq)
        self.last_timestamp_us, self.last_epoch = last.timestamp_us, last.epoch
        try:
            self._sync_files()
            os.ftruncate(self._content_fd, end)
            os.ftruncate(self._index_fd, entry_offset(seq, self._base_seq))
            self._sync_files()
        except OSError:
            self._mark_failed(self._index_fd)
            self.closed = True
            self._release()
            raise
        self.synced_seq = seq
        self.durable = DurableEnd(seq, end)
        index[INDEX_SYNCED_SEQ] = tagged(seq)
        self._directory_synced = True
        self._begin_growth()

    def _begin_anew(self, seq: int) -> None:
        """New files without messages, beginning at `seq`, take the places of these."""
        old, index = self._pair, self._index_words
        self._ends.window.close()
        new = NewPair(old.paths, old.headers().index_words.boot, seq)
        index[INDEX_CUTS] = tagged(self.cuts + 1)
        index[INDEX_CUT_SEQ] = tagged(min(seq, self.next_seq))
        try:
            pair = new.put()
        except OSError:
            self.closed = True
            self._release()
            raise
        index[INDEX_CUTS] = tagged(self.cuts + 2)
        self.cuts = 0
        self._generation += 1
        self._adopt(pair, no_messages(seq))
        self._directory_synced = True
        old.close()

    def _sync_files(self) -> None:
        os.fdatasync(self._content_fd)
        os.fdatasync(self._index_fd)

    def _cut_torn(self) -> None:
        """Finishes an opening that lacked space: keeps the torn end, then cuts it. Raises StorageFull, OSError."""
        if self._is_cut:
            return
        paths, fd, end = self._pair.paths, self._content_fd, self.end_offset
        self.torn_bytes = keep_torn(paths.directory, paths.stem, fd, "content", end, os.fstat(fd).st_size)
        os.ftruncate(fd, end)
        settle_boot(self._pair, self._boot)
        self._is_cut = True
        self._begin_growth()

    def _flush_header(self) -> bool:
        """Put the index's header page on the disk; False when the log was closed meanwhile."""
        with self._lock:
            if self.closed:
                return False
            fd = os.dup(self._index_fd)
        try:
            os.fdatasync(fd)
        except OSError:
            with self._lock:
                if not self.closed:
                    self._mark_failed(self._index_fd)
            raise
        finally:
            os.close(fd)
        return True

    def _punch_files(self, content_end: int, index_end: int, generation: int) -> int:
        freed = 0
        with self._lock:
            if self.closed or generation != self._generation:
                return 0
            if content_end > self._punched_content and punch_hole(self._content_fd, HEADER_PAGE_BYTES, content_end):
                freed += content_end - self._punched_content
                self._ends.content.keep_short(content_end - self._punched_content)
                self._punched_content = content_end
            if index_end > self._punched_index and punch_hole(self._index_fd, HEADER_PAGE_BYTES, index_end):
                freed += index_end - self._punched_index
                self._ends.index.keep_short(index_end - self._punched_index)
                self._punched_index = index_end
        return freed
