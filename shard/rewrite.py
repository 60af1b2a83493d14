"""Repair after a failed sync: check the messages, write their bytes again, and compare them with the disk.

After a failed write the kernel calls a page clean although it never reached the disk, so that the next sync succeeds
without it. Storing the same bytes makes the page dirty again, but that is not enough: ext4 takes the blocks for written
by then, leaves their extent marked as unwritten, and the bytes read as zeros once the page is gone. So each page is
dropped from the cache before the bytes are written again, and afterwards they are read back past the cache.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from tailrace.shard.begun_sync import BegunSync
from tailrace.shard.errors import MessagesLost
from tailrace.shard.files import read_all, write_all
from tailrace.shard.header import FIXED_BYTES, HEADER_PAGE_BYTES
from tailrace.shard.index import entry_offset
from tailrace.shard.walk import FrameWalk, fault_text

PIECE_BYTES: Final = 2 << 20
"""Written again at once: the largest piece that the kernel caches as one, at a multiple of its size."""
PAGE_BYTES: Final = 4_096

Writing = Callable[[], AbstractContextManager[None]]
"""Held while a piece is written. Raises OSError on entry if the bytes may no longer be written."""


class Span(NamedTuple):
    """The messages of a stream from `first_seq` on, which begin at `start` in the content."""

    name: str
    base_seq: int
    first_seq: int
    start: int


def write_messages_again(begun: BegunSync, span: Span, writing: Writing) -> None:
    """Check these messages, up to where the sync ends, and write them and their entries again. They are not synced yet.

    Raises MessagesLost when one of them cannot be read any more, and OSError.
    """
    begun.put()  # skip bytes that cannot be written now; and only clean pages leave the cache
    walk = FrameWalk(begun.content_fd, span.start, begun.end_offset, span.first_seq)
    for run in walk:
        place = entry_offset(run.seq, span.base_seq)
        with writing():
            if read_all(begun.index_fd, len(walk.entries), place) != walk.entries:
                write_all(begun.index_fd, walk.entries, place)
    if walk.fault or walk.seq != begun.seq:
        raise MessagesLost(span.name, walk.seq, fault_text(walk.fault) if walk.fault else "there are fewer frames")
    write_again(begun.content_fd, span.start, begun.end_offset, writing)
    write_again(begun.index_fd, *_entries(begun, span), writing)


def require_messages_on_disk(begun: BegunSync, span: Span, writing: Writing) -> None:
    """As `require_on_disk`, of content and index."""
    require_on_disk(begun.content_fd, span.start, begun.end_offset, writing)
    require_on_disk(begun.index_fd, *_entries(begun, span), writing)


def _entries(begun: BegunSync, span: Span) -> tuple[int, int]:
    return entry_offset(span.first_seq, span.base_seq), entry_offset(begun.seq, span.base_seq)


def write_again(fd: int, start: int, end: int, writing: Writing) -> None:
    """Write the bytes start..end of a file again, in whole pieces; those before them in the first piece too.

    The header page is left alone. Nobody else may write there meanwhile. A reader between the two calls gets the bytes
    on the disk. Raises OSError.
    """
    place = max(HEADER_PAGE_BYTES, start // PIECE_BYTES * PIECE_BYTES)
    while place < end:
        piece_end = min(end, (place // PIECE_BYTES + 1) * PIECE_BYTES)
        with writing():
            data = read_all(fd, piece_end - place, place)
            os.posix_fadvise(fd, place, -(-len(data) // PAGE_BYTES) * PAGE_BYTES, os.POSIX_FADV_DONTNEED)
            write_all(fd, data, place)
        place = piece_end


def require_on_disk(fd: int, start: int, end: int, writing: Writing) -> None:
    """Compare the bytes start..end, which are synced, and the fixed part of the header page, with those on the disk.

    A header page that is not there is written past the cache. Nothing is compared on a file system without direct
    reads of whole pages. Raises OSError when bytes differ, or cannot be read.
    """
    try:
        direct_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        try:
            _require_same(fd, direct_fd, start, end, writing)
        finally:
            os.close(direct_fd)
    except OSError as error:  # some file systems open for direct reads and then refuse them, or want larger blocks
        if error.errno != errno.EINVAL:
            raise


def _require_same(fd: int, direct_fd: int, start: int, end: int, writing: Writing) -> None:
    buffer = mmap.mmap(-1, PIECE_BYTES)
    try:
        if not _same(fd, direct_fd, buffer, 0, FIXED_BYTES):
            _write_header_page(fd, direct_fd, buffer, writing)
        for place in range(start // PIECE_BYTES * PIECE_BYTES, end, PIECE_BYTES):
            piece_start, piece_end = max(start, place), min(end, place + PIECE_BYTES)
            if not _same(fd, direct_fd, buffer, piece_start, piece_end):
                raise OSError(errno.EIO, f"bytes {piece_start} to {piece_end} were rewritten, but are not on the disk")
    finally:
        buffer.close()


def _same(fd: int, direct_fd: int, buffer: mmap.mmap, start: int, end: int) -> bool:
    """Returns whether the bytes on the disk equal those in the cache; they are one contiguous range."""
    first = start // PAGE_BYTES * PAGE_BYTES
    wanted = -(-(end - first) // PAGE_BYTES) * PAGE_BYTES
    with memoryview(buffer) as whole, whole[:wanted] as view:
        found = os.preadv(direct_fd, [view], first)
        return found >= end - first and view[start - first : end - first] == read_all(fd, end - start, start)


def _write_header_page(fd: int, direct_fd: int, buffer: mmap.mmap, writing: Writing) -> None:
    """The page is mapped, so that it cannot be dropped from the cache; a direct write replaces it.

    A word that somebody stores between the two calls would be undone, and so would those of a later owner.
    """
    with writing(), memoryview(buffer) as whole, whole[:HEADER_PAGE_BYTES] as view:
        buffer[:HEADER_PAGE_BYTES] = read_all(fd, HEADER_PAGE_BYTES, 0)
        os.pwrite(direct_fd, view, 0)
    os.fdatasync(fd)
    if not _same(fd, direct_fd, buffer, 0, FIXED_BYTES):
        raise OSError(errno.EIO, "the header page was rewritten, but is not on the disk")
