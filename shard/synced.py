"""Saying of streams that are closed that all their messages are on the disk, after one syncfs for many of them.

A clean stop of the node is: close the logs, `sync_file_system`, this for those that were closed before they were
synced. The next boot of the machine then has nothing to check.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from shard.header import (
    INDEX_BOOT,
    INDEX_NEXT_SEQ,
    INDEX_STATE,
    INDEX_SYNCED_SEQ,
    STATE_CLOSED,
    boot_word,
    tagged,
    untagged,
)
from shard.stream_files import stream_paths

_WORDS = struct.Struct("<4Q")
assert (INDEX_SYNCED_SEQ, INDEX_BOOT, INDEX_STATE) == (INDEX_NEXT_SEQ + 1, INDEX_NEXT_SEQ + 2, INDEX_NEXT_SEQ + 3)


def mark_closed_synced(directory: Path, name: str, *, boot_id: str) -> bool:
    """Store synced_seq = next_seq in the index of a closed stream, whose shard's lock the caller holds.

    True to the disk only when a `sync_file_system` was begun after the stream was closed. False, and nothing done, when
    the stream is not there, not closed in this boot, or its header cannot be read. Raises OSError.
    """
    try:
        fd = os.open(stream_paths(directory, name).index_file, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        next_seq, _, boot, state = map(untagged, _WORDS.unpack(os.pread(fd, _WORDS.size, 8 * INDEX_NEXT_SEQ)))
        if state != STATE_CLOSED or boot != boot_word(boot_id):
            return False
        return publish_synced_word(fd, next_seq)
    except (ValueError, struct.error):
        return False
    finally:
        os.close(fd)


def publish_synced_word(index_fd: int, seq: int) -> bool:
    """Store synced_seq into the index of a stream that is not mapped here, unless it says more already.

    False when the word cannot be read. Raises OSError.
    """
    place = 8 * INDEX_SYNCED_SEQ
    try:
        if untagged(int.from_bytes(os.pread(index_fd, 8, place), "little")) >= seq:
            return True
    except ValueError:
        return False
    return os.pwrite(index_fd, tagged(seq).to_bytes(8, "little"), place) == 8
