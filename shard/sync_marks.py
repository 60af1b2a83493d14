"""Updates the indexes of streams that are not open here: that all their messages are synced, after one syncfs for many
of them, or that a sync has failed.

A clean stop of the node is: close the logs, `sync_file_system`, this for those that were closed before they were
synced. The next boot of the machine then has nothing to check.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tailrace.shard.header import (
    INDEX_BOOT,
    INDEX_NEXT_SEQ,
    INDEX_STATE,
    INDEX_SYNC_FAILED,
    INDEX_SYNCED_SEQ,
    STATE_CLOSED,
    boot_word,
    put_word,
    tagged,
    untagged,
)
from tailrace.shard.stream_files import stream_paths

_WORDS = struct.Struct("<7Q")
assert INDEX_SYNC_FAILED == INDEX_NEXT_SEQ + 6
assert (INDEX_SYNCED_SEQ, INDEX_BOOT, INDEX_STATE) == (INDEX_NEXT_SEQ + 1, INDEX_NEXT_SEQ + 2, INDEX_NEXT_SEQ + 3)


class Unsynced(NamedTuple):
    """The sync state in a closed stream's index. sync_failed: whether a failed sync of it is still to be repaired."""

    next_seq: int
    synced_seq: int
    boot: int
    state: int
    sync_failed: bool


def mark_closed_synced(directory: Path, name: str, *, boot_id: str) -> bool:
    """Store synced_seq = next_seq in the index of a closed stream, whose shard's lock the caller holds.

    True to the disk only when a `sync_file_system` was begun after the stream was closed. False, and nothing done, when
    the stream is not there, not closed in this boot, marked after a failed sync, or its header cannot be read. Raises
    OSError.
    """
    with _index(directory, name) as (fd, found):
        if found is None or found.state != STATE_CLOSED or found.boot != boot_word(boot_id) or found.sync_failed:
            return False
        return publish_synced_word(fd, found.next_seq)


def mark_unsynced_failed(directory: Path, name: str, *, boot_id: str) -> bool:
    """After a failed sync of the whole file system: mark a stream that may not be on the disk whole, open or not.

    Gives whether it is marked, now or before. Raises OSError.
    """
    with _index(directory, name) as (fd, found):
        if found is None or found.boot != boot_word(boot_id) or found.next_seq == found.synced_seq:
            return False
        if not found.sync_failed:
            mark_failed_word(fd, found.synced_seq)
        return True


def is_sync_failed(directory: Path, name: str) -> bool:
    """Whether the stream is marked after a failed sync. Raises OSError."""
    with _index(directory, name) as (_fd, found):
        return found is not None and found.sync_failed


@contextmanager
def _index(directory: Path, name: str) -> Iterator[tuple[int, Unsynced | None]]:
    """The index of a stream, open, and its words; none when it is not there or cannot be read."""
    try:
        fd = os.open(stream_paths(directory, name).index_file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield -1, None
        return
    try:
        yield fd, _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> Unsynced | None:
    try:
        *words, _cuts, _cut_seq, failed = _WORDS.unpack(os.pread(fd, _WORDS.size, 8 * INDEX_NEXT_SEQ))
        next_seq, synced_seq, boot, state = map(untagged, words)
        return Unsynced(next_seq, synced_seq, boot, state, failed != 0)
    except (ValueError, struct.error):
        return None


def mark_failed_word(index_fd: int, seq: int) -> None:
    """Store that a sync has failed from message `seq` on, into the index of a stream. Raises OSError."""
    put_word(index_fd, INDEX_SYNC_FAILED, tagged(seq + 1))


def try_to_mark_failed(index_fd: int, seq: int) -> bool:
    """As `mark_failed_word`. False if the file system takes no more words: nothing reaches it until it is mounted anew,
    and then no stream there is trusted beyond its synced messages. Until then the caller remembers it.
    """
    try:
        mark_failed_word(index_fd, seq)
    except OSError:
        return False
    return True


def publish_synced_word(index_fd: int, seq: int) -> bool:
    """Stores synced_seq into the index of a stream that is not mapped here, unless it has a higher one already.

    False when the word cannot be read. Raises OSError.
    """
    place = 8 * INDEX_SYNCED_SEQ
    try:
        if untagged(int.from_bytes(os.pread(index_fd, 8, place), "little")) >= seq:
            return True
    except ValueError:
        return False
    return os.pwrite(index_fd, tagged(seq).to_bytes(8, "little"), place) == 8
