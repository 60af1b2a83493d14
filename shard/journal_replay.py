"""Write the frames in journals to the streams' own files again, before anybody opens these.

A frame goes to its former place, and only into the very stream: one that was made anew, cut, trimmed or deleted since
is passed over, and so are messages that its files have on the disk. Frames are written also if they seem to be there:
after a failed write the kernel may take pages for clean that never reached the disk. Opening the stream then finds them
as it finds all frames that were not synced (`shard.recovery`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StreamDamaged, StreamMissing
from tailrace.shard.files import read_all, sync_directory, sync_file_system, write_all
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.journal import JournalRecord, journal_files, read_journal
from tailrace.shard.lock import lock_shard
from tailrace.shard.stream_files import HeaderPair, StreamPaths, open_fds, parse_headers, stream_paths
from tailrace.shard.walk import check

LOCK_PATIENCE_S = 5.0  # workers of a node that was killed may still be leaving


class PutBack(NamedTuple):
    """The outcome for a stream. is_marked: a failed sync of it is still to be repaired."""

    name: str
    frames_bytes: int
    is_marked: bool


def replay_all(data: DataDirectory) -> list[PutBack]:
    """Put back the frames in the journals of all workers, on the disk, and remove the journals.

    The caller holds the lock of the data directory; no worker may hold a shard's. Raises ShardLocked, OSError; the
    journals are still there then.
    """
    if not journal_files(data.path):
        return []
    with ExitStack() as held:
        deadline_s = time.monotonic() + LOCK_PATIENCE_S
        for path in data.shard_paths():
            held.callback(lock_shard(path, deadline_s).release)
        found = [each for file in journal_files(data.path) for each in put_back(file, data.stream_directory)]
        if not any(each.is_marked for each in found):
            remove_journals(data.path, journal_files(data.path))
    return found


def remove_journals(data: Path, files: Iterable[Path]) -> None:
    """Put all that was written on the disk, then remove the journals, which are not needed then. Raises OSError."""
    sync_file_system(data)
    for file in files:
        _flush_disk(file)
        file.unlink()
    sync_directory(data)


def _flush_disk(file: Path) -> None:
    """XFS may not make the disk write its cache in a syncfs."""
    fd = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def put_back(journal: Path, directory_of: Callable[[str], Path], only: str | None = None) -> list[PutBack]:
    """Write the frames in a journal, or `only` those of one stream, to the streams' files; not synced.

    `directory_of` gives a stream's directory; the caller holds the lock of its shard. Raises OSError.
    """
    records: dict[str, list[JournalRecord]] = {}
    for record in read_journal(journal):
        if only in (None, record.name):
            records.setdefault(record.name, []).append(record)
    return [_put_back_stream(stream_paths(directory_of(name), name), row) for name, row in records.items()]


def _put_back_stream(paths: StreamPaths, records: Sequence[JournalRecord]) -> PutBack:
    try:
        content_fd, index_fd = open_fds(paths, os.O_RDWR)
    except (StreamMissing, StreamDamaged):
        return PutBack(paths.name, 0, False)
    try:
        pages = [os.pread(fd, HEADER_PAGE_BYTES, 0) for fd in (content_fd, index_fd)]
        headers = parse_headers(paths, *pages)
        written = sum(_write(content_fd, record) for record in records if _is_missing(record, headers))
        return PutBack(paths.name, written, headers.index_words.sync_failed != 0)
    except StreamDamaged:
        return PutBack(paths.name, 0, False)  # which opening it reports
    finally:
        os.close(content_fd)
        os.close(index_fd)


def _is_missing(record: JournalRecord, headers: HeaderPair) -> bool:
    """Whether these frames belong to the stream as it is, and may not be in its files on the disk."""
    words = headers.index_words
    if (record.stream_id, record.cuts) != (headers.index_fixed.stream_id, words.cuts):
        return False
    count, _, _ = check(record.frames, 0, len(record.frames), record.first_seq)
    return bool(record.first_seq + count > max(words.synced_seq, words.first_seq))


def _write(content_fd: int, record: JournalRecord) -> int:
    """Write the frames to their place, unless there are other whole frames of these seqs, or the content ends before it
    (then it is an older one that was put there); gives the bytes written.
    """
    if os.fstat(content_fd).st_size < record.offset:
        return 0
    there = read_all(content_fd, len(record.frames), record.offset)
    _, whole_bytes, _ = check(there, 0, len(there), record.first_seq)
    if there[:whole_bytes] != record.frames[:whole_bytes]:
        return 0
    write_all(content_fd, record.frames, record.offset)
    return len(record.frames)
