"""Streams read from the broker's files, in place, while it writes them. Nothing is written, and no lock is taken.

All reads use pread into memory of our own, and no file is mapped but the index's header page: the owner may punch holes
into trimmed ranges, and may truncate a file whose tail it sets aside, which raises a signal under a mapping instead of
an error. Data counts only if first_seq, read afterwards, shows that it was still there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np

from tailrace.shard.catalog import stream_names
from tailrace.shard.directory import open_data_dir
from tailrace.shard.epochs import History, find_epochs, last_epoch, reconcile
from tailrace.shard.errors import MetaDamaged, StreamCut
from tailrace.shard.frame import HEADER_BYTES, INDEX_ENTRY_BYTES, unpack_header
from tailrace.shard.header import HEADER_PAGE_BYTES, VALUE_MAX, HeaderFault, parse_index
from tailrace.shard.index import entry_offset, read_entry, seq_at
from tailrace.shard.meta import read_meta
from tailrace.shard.reader import StreamReader, this_boot
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tailrace.spark.entries import ENTRY, Entries, find_fault, no_entries
from tailrace.spark.frames import check_frames
from tailrace.spark.patterns import is_exact, is_wanted, needs_listing
from tailrace.spark.scan import IndexScan
from tailrace.spark.slices import Identity, Slice, Stamp
from tailrace.spark.source import Block, Scan, SourceOptions, StreamRef, scan_all
from tailrace.spark.topic_parts import prune

INDEX_BLOCK_ENTRIES: Final = 1 << 16
"""Entries read at once where no frames are wanted: 1.5 MB, which stays in the processor's cache."""
FRAMES_BLOCK_ENTRIES: Final = 1 << 15
GUARD_ENTRIES: Final = 64
"""Looked at on either side of what a search in the index has found. A wrong time that has misled it is among them."""
FRAMES_BLOCK_BYTES: Final = 8 << 20
"""Frames read at once, of so many messages and bytes; one longer message comes alone."""


class DirectorySource:
    """See `spark.source.Source`."""

    def __init__(self, options: SourceOptions) -> None:
        self._data = open_data_dir(Path(options.path))
        self._shard_paths = self._data.shard_paths()
        self._check_crc = options.check_crc
        self._only_synced = options.only_synced
        self._scan: IndexScan | None = None

    def streams(self, patterns: Sequence[str]) -> list[StreamRef]:
        if not needs_listing(patterns):
            return [self.ref(name) for name in patterns]
        found = (
            StreamRef(shard, name)
            for shard, path in enumerate(self._shard_paths)
            for name in stream_names(path)
            if is_wanted(name, patterns)
        )
        # A named stream that does not exist is reported by `view`.
        named = (self.ref(name) for name in patterns if is_exact(name))
        return sorted({*found, *named}, key=lambda ref: ref.stream)

    def scan(self, patterns: Sequence[str]) -> Scan:
        if not needs_listing(patterns):
            return scan_all(self.streams(patterns))
        if self._scan is None or self._scan.patterns != patterns:
            self._scan = IndexScan(self._shard_paths, patterns)
        return self._scan.scan([self.ref(name) for name in patterns if is_exact(name)])

    def ref(self, stream: str) -> StreamRef:
        return StreamRef(self._data.shard_of(stream), stream)

    def node_id(self) -> str:
        return self._data.node_id

    def prune(self, slice_: Slice, topics: bytes) -> list[Slice]:
        return prune(self._shard_paths[slice_.shard], slice_, topics)

    def fetch(self, slices: Sequence[Slice]) -> None:
        """Files are read at once in any case."""

    def prepare(self, refs: Sequence[StreamRef]) -> None:
        """The files of each stream are opened by its view."""

    def view(self, ref: StreamRef) -> DirectoryView:
        return open_view(self._shard_paths[ref.shard], ref, self._only_synced)

    def open(self, slice_: Slice) -> DirectorySlice:
        return DirectorySlice(self._shard_paths[slice_.shard], slice_, self._check_crc)

    def close(self) -> None:
        """Nothing is held."""


class DirectoryView:
    """See `spark.source.StreamView`. Only the index is opened: that is quick, also for very many streams."""

    exists = True
    boot_is_of_files = False
    last: Stamp | None = None

    def __init__(self, paths: StreamPaths, shard: int, only_synced: bool) -> None:
        """Raises FileNotFoundError, HeaderFault, OSError."""
        self.stream = paths.name
        self.shard = shard
        self._paths = paths
        self._content_fd = -1  # opened when it is needed
        self._fd = os.open(paths.index_file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fixed, words = parse_index(os.pread(self._fd, HEADER_PAGE_BYTES, 0))
        except BaseException:
            os.close(self._fd)
            raise
        self._base_seq = fixed.base_seq
        self.first_seq = words.first_seq
        # After a crash of the machine only synced messages are trusted, until the owner has opened the stream again.
        is_recovered = words.boot == this_boot()
        shown = words.next_seq if is_recovered and not only_synced else min(words.synced_seq, words.next_seq)
        self.next_seq = max(shown, words.first_seq)
        # The words may be older than the frames that the owner will find.
        self.possible_seq = max(words.next_seq, self.next_seq) if is_recovered else VALUE_MAX
        # A volume that was lost and mounted again in the same boot has another place.
        self.boot = words.boot ^ words.place
        self.identity: Identity = (fixed.stream_id, words.cuts)
        self.stream_id = fixed.stream_id

    def seq_at(self, timestamp_us: int) -> int:
        """Raises StreamDamaged if the entries beside the place that was found contradict each other or their frames."""
        # Trimmed entries may be punched meanwhile, and read as time 0: the search then ends further ahead, which is
        # right, as they are not wanted any more.
        seq = seq_at(self._fd, self._base_seq, self.first_seq, self.next_seq, timestamp_us)
        self._check_beside(seq)
        for each in (seq - 1, seq):
            if self.first_seq <= each < self.next_seq:
                self._check_frame(each)
        return seq

    def _check_frame(self, seq: int) -> None:
        """The frame's time must equal the index's. If the messages on both sides of a seq agree, the seq is right.

        Raises StreamDamaged.
        """
        entry = read_entry(self._fd, seq, self._base_seq)
        if entry is not None:
            if self._content_fd < 0:
                self._content_fd = os.open(self._paths.content_file, os.O_RDONLY | os.O_CLOEXEC)
            frame = os.pread(self._content_fd, HEADER_BYTES, entry.offset)
            if len(frame) == HEADER_BYTES:
                found = unpack_header(frame)
                if (found.seq, found.timestamp_us, found.length) == (seq, entry.timestamp_us, entry.length):
                    return
        # Messages trimmed meanwhile may be zeros.
        if seq >= parse_index(os.pread(self._fd, HEADER_PAGE_BYTES, 0))[1].first_seq:
            cause = f"the frame of message {seq} contradicts its index entry"
            raise self._paths.damaged(self._paths.index_file, entry_offset(seq, self._base_seq), cause)

    def _check_beside(self, seq: int) -> None:
        """A wrong time leads a search astray once it is looked at, and the search then ends right beside it."""
        first = max(self.first_seq, seq - GUARD_ENTRIES)
        end = min(self.next_seq, seq + GUARD_ENTRIES)
        place = entry_offset(first, self._base_seq)
        data = os.pread(self._fd, (end - first) * INDEX_ENTRY_BYTES, place)
        times = np.frombuffer(data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES], ENTRY)["timestamp_us"]
        falls = np.flatnonzero(times[1:] < times[:-1])
        if len(falls):
            fault = place + (int(falls[0]) + 1) * INDEX_ENTRY_BYTES
            cause = "its time is before that of the message before it"
            raise self._paths.damaged(self._paths.index_file, fault, cause)

    def timestamp_at(self, seq: int) -> int:
        entry = read_entry(self._fd, seq, self._base_seq)
        return entry.timestamp_us if entry else 0

    def stamp_at(self, seq: int) -> Stamp | None:
        entry = read_entry(self._fd, seq, self._base_seq)
        return Stamp(entry.timestamp_us, entry.epoch) if entry else None

    def history(self) -> History:
        return read_history(self._paths, self.first_seq, self.next_seq, self._epoch_at)

    def _epoch_at(self, seq: int) -> int:
        """0 if the message has been trimmed since."""
        entry = read_entry(self._fd, seq, self._base_seq)
        return entry.epoch if entry else 0

    def close(self) -> None:
        os.close(self._fd)
        if self._content_fd >= 0:
            os.close(self._content_fd)

    def __enter__(self) -> DirectoryView:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.close()


def read_history(paths: StreamPaths, first_seq: int, next_seq: int, epoch_of: Callable[[int], int]) -> History:
    """The terms that are written down, and those that messages first_seq..next_seq show. Raises OSError."""
    try:
        stored = read_meta(paths.directory, paths.name).history
    except MetaDamaged:
        stored = ()
    if next_seq > first_seq and epoch_of(next_seq - 1) != last_epoch(stored):
        found = find_epochs(epoch_of, first_seq, next_seq)
        stored = reconcile(stored, tuple(start for start in found if start.epoch), next_seq)
    return tuple(start for start in stored if start.first_seq <= next_seq)


def open_view(directory: Path, ref: StreamRef, only_synced: bool = False) -> DirectoryView:
    """Raises StreamMissing, StreamDamaged, OSError."""
    paths = stream_paths(directory, ref.stream)
    try:
        return DirectoryView(paths, ref.shard, only_synced)
    except (FileNotFoundError, HeaderFault):
        # The reader distinguishes damage from a stream that is being made or written at this moment.
        StreamReader.open(paths.directory, ref.stream).close()
    try:
        return DirectoryView(paths, ref.shard, only_synced)
    except HeaderFault as fault:
        raise paths.damaged(paths.index_file, fault.offset, fault.cause) from None


class DirectorySlice:
    """See `spark.source.SliceReader`."""

    def __init__(self, directory: Path, slice_: Slice, check_crc: bool) -> None:
        """Raises StreamMissing, StreamDamaged, StreamCut, OSError."""
        self._slice = slice_
        self._check_crc = check_crc
        self._reader = StreamReader.open(directory, slice_.stream)
        if slice_.identity != self._reader.identity:
            self._reader.close()
            raise StreamCut(slice_.stream, 0)

    def blocks(self, *, frames: bool) -> Iterator[Block]:
        seq, end_seq = self._slice.first_seq, self._slice.end_seq
        block_entries = FRAMES_BLOCK_ENTRIES if frames else INDEX_BLOCK_ENTRIES
        while seq < end_seq:
            entries = self.entries(seq, min(block_entries, end_seq - seq))
            seq = entries.end_seq
            found = map(self._read_frames, _parts(entries)) if frames else (Block(entries, None),)
            yield from (block for block in found if block.entries.messages)

    def entries(self, seq: int, count: int) -> Entries:
        first_seq = self._reader.first_seq()
        end_seq, seq = seq + count, max(seq, first_seq)
        if seq >= end_seq:
            return no_entries(end_seq)
        table = np.empty(end_seq - seq, ENTRY)
        view = memoryview(table.view(np.uint8).data).cast("B")
        size = self._reader.read_entries(view, seq)
        # Afterwards, not before: messages trimmed from here on were read whole.
        entries = Entries(seq, table[: size // INDEX_ENTRY_BYTES]).since(self._reader.first_seq())
        fault = find_fault(entries.table)
        if fault:
            raise self._reader.damaged_entry(entries.first_seq + fault.place, fault.cause)
        if entries.end_seq < end_seq and entries.end_seq >= self._reader.first_seq():
            raise self._reader.damaged_entry(entries.end_seq, "the file ends before its entries")
        return entries

    def _read_frames(self, entries: Entries) -> Block:
        """Raises StreamDamaged where the frames are not those of the entries."""
        offset, nbytes = int(entries.table["offset"][0]), entries.nbytes
        buffer = np.empty(nbytes, np.uint8).data
        size = self._fill(buffer, offset)
        kept = entries.since(self._reader.first_seq())
        if not kept.messages:
            return Block(kept, None)
        skipped = int(kept.table["offset"][0]) - offset
        frames = buffer[skipped:size]
        fault = check_frames(kept, frames, self._check_crc)
        if fault:
            place = int(kept.table["offset"][fault.place])
            raise self._reader.damaged(place, f"message {kept.first_seq + fault.place}: {fault.cause}")
        return Block(kept, frames)

    def _fill(self, buffer: memoryview, offset: int) -> int:
        """Read until the buffer is full or the file ends; gives the bytes that came."""
        size = 0
        while size < len(buffer) and (more := self._reader.read_into(buffer[size:], offset + size)):
            size += more
        return size

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> DirectorySlice:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: object, _trace: TracebackType | None) -> None:
        self.close()


def _parts(entries: Entries) -> Iterator[Entries]:
    """Cut where the frames would be more than are read at once."""
    start, offset = 0, entries.table["offset"]
    ends = offset + entries.table["length"]
    while start < entries.messages:
        limit = offset[start] + np.uint64(FRAMES_BLOCK_BYTES)
        end = max(int(np.searchsorted(ends, limit, side="right")), start + 1)
        yield entries.part(start, end)
        start = end
