"""A view of a stream for planning by the times in its frames, if those in its index are not to be trusted."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

from tailrace.shard.directory import DataDirectory
from tailrace.shard.epochs import History
from tailrace.shard.errors import Trimmed
from tailrace.shard.frame import unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.spark.directory_source import read_history
from tailrace.spark.slices import Identity
from tailrace.spark.source import StreamRef

FrameViews = Callable[[StreamRef], AbstractContextManager["FrameView"]]

_check: Final = load("tailrace.shard.frame_cy").check


class FrameView:
    """A `spark.source.TimedView`. A search reads as many frames as it has steps, each whole and checked."""

    exists = True

    def __init__(self, reader: StreamReader, shard: int, directory: Path) -> None:
        self.stream = reader.name
        self.shard = shard
        self._reader = reader
        self._directory = directory
        self.first_seq = reader.first_seq()
        self.next_seq = reader.next_seq()
        self.identity: Identity = reader.identity
        self.stream_id = reader.identity[0]
        self._damaged = range(0)  # the run of damaged messages that was found last

    def seq_at(self, timestamp_us: int) -> int:
        """Raises StorageError, OSError."""
        return self.first_seq + bisect_left(range(self.first_seq, self.next_seq), timestamp_us, key=self.timestamp_at)

    def cut_at(self, timestamp_us: int, end_seq: int) -> int:
        """A place at which rows that begin at this time may be made apart from those before: damaged messages go with
        the whole one behind them, and without one before `end_seq` with the one before them.

        Raises StorageError, OSError.
        """
        seq = self.seq_at(timestamp_us)
        if seq not in self._damaged:
            self._damaged = self._damaged_around(seq, end_seq)
        return end_seq if self._damaged.stop >= end_seq else self._damaged.start

    def _damaged_around(self, seq: int, end_seq: int) -> range:
        """The damaged messages just before `seq` and from it on; without any the empty range at `seq`."""
        first = end = seq
        while end < end_seq and whole_frame_time(self._reader, end) is None:
            end += 1
        while first > self.first_seq and whole_frame_time(self._reader, first - 1) is None:
            first -= 1
        return range(first, end)

    def timestamp_at(self, seq: int) -> int:
        return frame_time(self._reader, seq)

    def history(self) -> History:
        paths = stream_paths(self._directory, self.stream)
        return read_history(paths, self.first_seq, self.next_seq, self._epoch_at)

    def _epoch_at(self, seq: int) -> int:
        """0 if the message has been trimmed since."""
        try:
            return self._reader.entry(seq).epoch
        except Trimmed:
            return 0


def frame_views(data: DataDirectory) -> FrameViews:
    """Opens streams of a data directory. Raises StorageError, OSError."""

    @contextmanager
    def view(ref: StreamRef) -> Iterator[FrameView]:
        directory = data.shard_path(ref.shard)
        with StreamReader.open(directory, ref.stream) as reader:
            yield FrameView(reader, ref.shard, directory)

    return view


def frame_time(reader: StreamReader, seq: int) -> int:
    """The time of a message, in microseconds, from its frame; from the index if the frame is damaged.

    Raises StorageError, OSError.
    """
    timestamp_us = whole_frame_time(reader, seq)
    return reader.entry(seq).timestamp_us if timestamp_us is None else timestamp_us


def whole_frame_time(reader: StreamReader, seq: int) -> int | None:
    """The time of a message, in microseconds, from its frame; None if the frame is damaged.

    Raises StorageError, OSError.
    """
    entry = reader.entry(seq)
    frame = bytearray(entry.length)
    size = reader.read_into(memoryview(frame), entry.offset)
    right, _, _ = _check(frame, 0, size, seq)
    return unpack_header(frame, 0).timestamp_us if right else None
