"""Any process's view of a stream: read only, and nothing beyond what the owner has committed.

The committed seq is read from the mapped header page of the index; frames are read by offset, with pread or sendfile. A
reader never writes, takes no lock and outlives the owner. Bytes are not verified on reading: the consumer of frames
checks their CRC.

A stream that follows another master may lose its tail (`StreamLog.set_aside`), and other messages get the same seqs and
offsets. The owner marks this in the header page before it changes a byte. From then on every method of a reader that
was open raises StreamCut instead of returning, so old and new are never mixed; a new reader sees the present stream.
Callers that pass `content_fd` to sendfile check `is_current` before and after.
"""

from __future__ import annotations

import os
from pathlib import Path

from tailrace.shard.epochs import History, find_epochs
from tailrace.shard.errors import StreamCut, StreamDamaged, StreamMissing, Trimmed
from tailrace.shard.files import read_all
from tailrace.shard.frame import CRC_OFFSET, IndexEntry
from tailrace.shard.header import (
    HEADER_PAGE_BYTES,
    INDEX_BOOT,
    INDEX_CUT_SEQ,
    INDEX_CUTS,
    INDEX_FIRST_SEQ,
    INDEX_NEXT_SEQ,
    INDEX_PLACE,
    INDEX_SYNCED_SEQ,
    boot_word,
    map_page,
    read_boot_id,
    tagged,
    untagged,
)
from tailrace.shard.index import IndexRun, cut, entry_offset, read_entry, seq_at
from tailrace.shard.newborn import Left, left_of_newborn
from tailrace.shard.place import place_word
from tailrace.shard.stream_files import StreamPaths, is_begun_anew, open_fds, parse_headers, stream_paths

_NO_WORD = -1
_this_boot: list[int] = []


class StreamReader:
    """Two descriptors, one of which, `content_fd`, is for pread and sendfile. Close it."""

    __slots__ = (
        "_base_seq",
        "_boot",
        "_cuts",
        "_cuts_word",
        "_first_seq",
        "_first_word",
        "_index_fd",
        "_map",
        "_next_seq",
        "_next_word",
        "_paths",
        "_trusts_next",
        "_words",
        "content_fd",
        "identity",
        "name",
    )

    def __init__(self, paths: StreamPaths, content_fd: int, index_fd: int, boot: int) -> None:
        """Used by `open`. Takes the descriptors over once it has returned."""
        headers = parse_headers(paths, *[read_all(fd, HEADER_PAGE_BYTES, 0) for fd in (content_fd, index_fd)])
        self.name = paths.name
        self.content_fd = content_fd
        self._index_fd = index_fd
        self._paths = paths
        self._base_seq = headers.index_fixed.base_seq
        self._boot = boot
        self._first_seq = self._next_seq = 0
        self._first_word = self._next_word = _NO_WORD
        self._trusts_next = False
        self._map, self._words = map_page(index_fd, writable=False)
        self._cuts = headers.index_words.cuts
        self._cuts_word = tagged(self._cuts) if self._cuts else 0
        self.identity = (headers.index_fixed.stream_id, self._cuts)
        """Another one where the stream's tail was set aside, or its files were replaced, in between."""
        try:
            self._check_files()
        except BaseException:
            self._unmap()
            raise

    @classmethod
    def open(cls, directory: Path, name: str, *, boot_id: str | None = None) -> StreamReader:
        """Open a stream for reading. Raises StreamMissing, StreamDamaged, StreamCut (by chance, try again), OSError.

        `boot_id` is this boot of the machine's unless a test plays another one.
        """
        paths = stream_paths(directory, name)
        boot = this_boot() if boot_id is None else boot_word(boot_id)
        try:
            return cls._open(paths, boot)
        except StreamDamaged:
            if left_of_newborn(paths, boot) is Left.NOTHING or is_begun_anew(paths):
                raise StreamMissing(name, directory) from None
        except StreamCut:
            pass
        # The owner may have been making the stream, or storing words, at that moment: real damage persists.
        return cls._open(paths, boot)

    @classmethod
    def _open(cls, paths: StreamPaths, boot: int) -> StreamReader:
        content_fd, index_fd = open_fds(paths, os.O_RDONLY)
        try:
            return cls(paths, content_fd, index_fd, boot)
        except BaseException:
            os.close(content_fd)
            os.close(index_fd)
            raise

    def next_seq(self) -> int:
        """The committed end: the seq of the next message to come. Cheap. Raises StreamCut, StreamDamaged."""
        words = self._words
        word = words[INDEX_NEXT_SEQ]
        if words[INDEX_CUTS] != self._cuts_word:
            raise self._cut_error()
        if word == self._next_word:
            return self._next_seq
        return self._read_next(word)

    @property
    def is_current(self) -> bool:
        """False when the stream's tail was set aside since this reader was opened: open another one. Cheap."""
        return self._words[INDEX_CUTS] == self._cuts_word

    @property
    def recovered(self) -> bool:
        """Whether the owner has opened the stream since the machine came up. Before that only synced messages are
        shown, although later ones may be whole. Raises StreamDamaged.
        """
        if not self._trusts_next:
            self._trusts_next = self._untag(INDEX_BOOT) == self._boot
        return self._trusts_next

    @property
    def has_place(self) -> bool:
        """Whether the files are where their owner has opened them last, seen from this mount namespace. If not, the
        machine may have lost written bytes, also in this boot. Raises StreamDamaged.
        """
        return self._words[INDEX_PLACE] == 0 or self._untag(INDEX_PLACE) == place_word(self._index_fd)

    def first_seq(self) -> int:
        """The oldest message that is kept; next_seq() without any. Cheap. Raises StreamDamaged."""
        word = self._words[INDEX_FIRST_SEQ]
        if word != self._first_word:
            self._first_seq = self._untag(INDEX_FIRST_SEQ)
            self._first_word = word
        return self._first_seq

    def entry(self, seq: int) -> IndexEntry:
        """The index entry of a message there is: one pread.

        Raises Trimmed, ValueError when the message has not come yet, StreamCut, StreamDamaged, OSError.
        """
        # Read first, then ask whether it is trimmed or cut: an entry may be punched away in between.
        entry = read_entry(self._index_fd, seq, self._base_seq) if seq >= self._base_seq else None
        next_seq, first_seq = self.next_seq(), self.first_seq()
        if seq < first_seq:
            raise Trimmed(self.name, seq, first_seq)
        if seq >= next_seq:
            raise ValueError(f"stream {self.name!r} has messages before {next_seq}, not {seq}")
        if entry is None:
            raise self.damaged_entry(seq, f"there is no entry of message {seq}")
        return entry

    def read_entries(self, buffer: memoryview, seq: int) -> int:
        """Read the index entries from message `seq` on, as the file has them; gives how many bytes came.

        For many at once, without checks: entries of messages that were trimmed may be zeros (compare first_seq()
        afterwards), those beyond the committed end are invalid. Raises StreamCut, OSError, and ValueError for a seq
        before the index begins.
        """
        if seq < self._base_seq:
            raise ValueError(f"the index of stream {self.name!r} begins with message {self._base_seq}, not {seq}")
        size = os.preadv(self._index_fd, [buffer], entry_offset(seq, self._base_seq))
        self._require_current()
        return size

    def offset_of(self, seq: int) -> int:
        """The content offset of message `seq`; next_seq() gives the end of the committed frames. As `entry`."""
        next_seq = self.next_seq()  # once: the owner may commit between two looks
        if seq < next_seq:
            return self.entry(seq).offset
        if seq == self._base_seq:
            return HEADER_PAGE_BYTES
        # The last message stays in the index even when everything is trimmed.
        last = read_entry(self._index_fd, seq - 1, self._base_seq)
        self._require_current()
        if seq != next_seq:
            raise ValueError(f"stream {self.name!r} has messages before {next_seq}, not {seq}")
        if last is None:
            raise self.damaged_entry(seq - 1, f"there is no entry of message {seq - 1}")
        return last.offset + last.length

    def seq_at(self, timestamp_us: int, skip: int = 0) -> int:
        """The first seq with at least this timestamp, next_seq() without any; `skip` messages of exactly this
        timestamp are skipped. Raises StreamCut, StreamDamaged, OSError."""
        seq = seq_at(self._index_fd, self._base_seq, self.first_seq(), self.next_seq(), timestamp_us, skip)
        self._require_current()
        return seq

    def epochs(self, first_seq: int = 0) -> History:
        """The epochs that the messages kept from `first_seq` on show: a few reads. Raises as `entry`."""
        return find_epochs(lambda seq: self.entry(seq).epoch, max(first_seq, self.first_seq()), self.next_seq())

    def frame_crc(self, seq: int) -> int:
        """Returns the checksum of an existing message, with which another log can check whether it has the same. As
        `entry`."""
        place = self.entry(seq).offset + CRC_OFFSET
        crc = int.from_bytes(os.pread(self.content_fd, 4, place), "little")
        self._require_current()
        return crc

    def cut(self, run: IndexRun, nbytes: int) -> tuple[int, int]:
        """The seq and the offset after the longest part of committed messages that takes at most `nbytes`.

        At least one message, of any size. Raises Trimmed, StreamCut, StreamDamaged, OSError.
        """
        end = cut(self._index_fd, self._base_seq, run, nbytes)
        self._require_current()
        first_seq = self.first_seq()
        if run.seq < first_seq:
            raise Trimmed(self.name, run.seq, first_seq)
        if end is None:
            raise self.damaged_entry(run.seq, f"the entries after message {run.seq} are inconsistent")
        return end

    def damaged(self, offset: int, cause: str) -> StreamDamaged:
        """Makes the error for damaged content."""
        return self._paths.damaged(self._paths.content_file, offset, cause)

    def damaged_entry(self, seq: int, cause: str) -> StreamDamaged:
        """Makes the error for a damaged entry."""
        return self._paths.damaged(self._paths.index_file, entry_offset(seq, self._base_seq), cause)

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Read content from `offset` on; gives how many bytes came, 0 beyond the end of the file.

        Bytes beyond the last committed frame are not part of the stream. Raises StreamCut if the buffer may have been
        filled with other frames than requested, OSError.
        """
        size = os.preadv(self.content_fd, [buffer], offset)
        self._require_current()
        return size

    def close(self) -> None:
        """A second call does nothing."""
        if self.content_fd >= 0:
            self._unmap()
            os.close(self.content_fd)
            os.close(self._index_fd)
            self.content_fd = self._index_fd = -1

    def __enter__(self) -> StreamReader:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _unmap(self) -> None:
        self._words.release()
        self._map.close()

    def _check_files(self) -> None:
        """The files are as long as the committed messages need. Raises StreamDamaged."""
        next_seq = self.next_seq()
        index_size = os.fstat(self._index_fd).st_size
        index_end = entry_offset(next_seq, self._base_seq)
        if index_size < index_end:
            cause = f"the file ends before its entries, at {index_end}"
            raise self._paths.damaged(self._paths.index_file, index_size, cause)
        content_size = os.fstat(self.content_fd).st_size
        content_end = self.offset_of(next_seq)
        if content_size < content_end:
            cause = f"the file ends before its messages, at {content_end}"
            raise self._paths.damaged(self._paths.content_file, content_size, cause)

    def _require_current(self) -> None:
        """After reading: checks that the bytes were not changed meanwhile. Raises StreamCut."""
        if self._words[INDEX_CUTS] != self._cuts_word:
            raise self._cut_error()

    def _cut_error(self) -> StreamCut:
        """Returns the seq of the cut, if the stream was cut just once and the cut is finished."""
        cuts = self._untag(INDEX_CUTS)
        seq = self._untag(INDEX_CUT_SEQ) if self._words[INDEX_CUT_SEQ] else 0
        once = cuts % 2 == 0 and cuts - self._cuts <= 2 and cuts == self._untag(INDEX_CUTS)
        return StreamCut(self.name, seq if once else 0)

    def _read_next(self, word: int) -> int:
        """The committed seq changed, or its owner has not recovered the stream since the machine went down.

        In that case only synced messages are trusted, until the owner has opened the stream in this boot.
        """
        if not self.recovered:
            return min(self._untag(INDEX_SYNCED_SEQ), self._untag(INDEX_NEXT_SEQ))
        self._next_seq = self._untagged(word, INDEX_NEXT_SEQ)
        self._next_word = word
        return self._next_seq

    def _untag(self, place: int) -> int:
        return self._untagged(self._words[place], place)

    def _untagged(self, word: int, place: int) -> int:
        try:
            return untagged(word)
        except ValueError as error:
            raise self._paths.damaged(self._paths.index_file, 8 * place, str(error)) from None


def this_boot() -> int:
    """The boot word of this boot of the machine; the kernel is asked once a process."""
    if not _this_boot:
        _this_boot.append(boot_word(read_boot_id()))
    return _this_boot[0]
