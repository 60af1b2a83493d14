"""NAME.diverged: messages that this node had and the stream's master did not, set aside when it followed that master.

Each tail is a title of TITLE_BYTES, one line of text with a checksum, then the very frames, then a line feed. The title
is written last, when the frames are on the disk: if it is zeros the copy was not finished, and the messages are still
in the stream. Tails are added, never replaced. The broker never reads them again; delete the file when it is no longer
needed.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.shard.errors import StorageFull, TailsDamaged, is_full
from tailrace.shard.files import copy_bytes, read_all, sync_directory, write_all
from tailrace.shard.frame import IndexEntry
from tailrace.shard.leaves import load
from tailrace.shard.stream_files import StreamPaths

DIVERGED_SUFFIX: Final = ".diverged"
TITLE_BYTES: Final = 256
PIECE_BYTES: Final = 1024 * 1024

_crc32c = load("tailrace.shard.frame_cy").crc32c
_TEXT: Final = "diverged first_seq={} next_seq={} first_epoch={} last_epoch={} first_us={} last_us={} bytes={} at={}"
_TITLE: Final = re.compile(_TEXT.replace("{}", r"(\d{1,20})") + r" crc=([0-9a-f]{8}) *\n")


class SetAsideTail(NamedTuple):
    """Messages first_seq..next_seq, whose frames are `nbytes` long, their first and last epoch and timestamp."""

    first_seq: int
    next_seq: int
    first_epoch: int
    last_epoch: int
    first_us: int
    last_us: int
    nbytes: int


class DivergedTail(NamedTuple):
    """A tail in a .diverged file: the `number`th, from 1 on, set aside at `at_s` (seconds since 1970); its frames begin
    at byte `offset`."""

    number: int
    tail: SetAsideTail
    at_s: int
    offset: int

    @property
    def end_offset(self) -> int:
        """The offset of the next title."""
        return self.offset + self.tail.nbytes + 1


def diverged_path(directory: Path, stem: str) -> Path:
    return directory / (stem + DIVERGED_SUFFIX)


def keep_tail(
    paths: StreamPaths, content_fd: int, first_seq: int, next_seq: int, first: IndexEntry, last: IndexEntry
) -> DivergedTail:
    """Keep messages first_seq..next_seq, of which the first and the last have these entries. As `keep_diverged`."""
    nbytes = last.offset + last.length - first.offset
    epochs, times = (first.epoch, last.epoch), (first.timestamp_us, last.timestamp_us)
    return keep_diverged(paths, content_fd, first.offset, SetAsideTail(first_seq, next_seq, *epochs, *times, nbytes))


def keep_diverged(paths: StreamPaths, content_fd: int, offset: int, tail: SetAsideTail) -> DivergedTail:
    """Add the frames that begin at `offset` of the content; they and all names are on the disk on return.

    Where the last tail is these very messages (they were kept, and then the cut was not made) it is that one. Raises
    StorageFull, TailsDamaged when the file cannot be read, OSError; the file is then as it was.
    """
    path = diverged_path(paths.directory, paths.stem)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        last = kept = next(iter(deque(read_tails(fd, path, paths.name), maxlen=1)), None)
        if last is None or last.tail != tail or not _is_same(fd, last.offset, content_fd, offset, tail.nbytes):
            number, place = (last.number + 1, last.end_offset) if last else (1, 0)
            kept = DivergedTail(number, tail, int(time.time()), place + TITLE_BYTES)
            _add(fd, kept, content_fd, offset, paths.name, path)
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_directory(paths.directory)
    assert kept is not None
    return kept


def read_tails(fd: int, path: Path, name: str) -> Iterator[DivergedTail]:
    """Yields the tails, by their titles alone. Raises TailsDamaged for an invalid title, OSError."""
    place, number, size = 0, 1, os.fstat(fd).st_size
    while place < size:
        title = read_all(fd, TITLE_BYTES, place)
        if not any(title):
            return  # a copy that was not finished
        kept = _parse_title(title, number, place)
        if kept is None:
            raise TailsDamaged(name, path, place, "the title of a tail is missing")
        if kept.end_offset > size:
            raise TailsDamaged(name, path, size, f"the file ends before its tail {number} does, at {kept.end_offset}")
        yield kept
        place, number = kept.end_offset, number + 1


def count_tails(paths: StreamPaths) -> tuple[int, int]:
    """Returns the number of tails set aside of a stream, and of their messages. Raises TailsDamaged, OSError."""
    path = diverged_path(paths.directory, paths.stem)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0, 0
    try:
        tails = [kept.tail for kept in read_tails(fd, path, paths.name)]
    finally:
        os.close(fd)
    return len(tails), sum(tail.next_seq - tail.first_seq for tail in tails)


def _add(fd: int, kept: DivergedTail, content_fd: int, offset: int, name: str, path: Path) -> None:
    place = kept.offset - TITLE_BYTES
    try:
        os.ftruncate(fd, place)  # what a copy that was not finished left
        copy_bytes(content_fd, offset, offset + kept.tail.nbytes, fd, kept.offset, PIECE_BYTES)
        write_all(fd, b"\n", kept.end_offset - 1)
        os.fsync(fd)
        write_all(fd, _title(kept), place)
    except OSError as error:
        os.ftruncate(fd, place)
        if is_full(error):
            raise StorageFull(name, path, TITLE_BYTES + kept.tail.nbytes) from error
        raise


def _title(kept: DivergedTail) -> bytes:
    text = _TEXT.format(*kept.tail, kept.at_s).encode()
    return (b"%s crc=%08x" % (text, _crc32c(text))).ljust(TITLE_BYTES - 1) + b"\n"


def _parse_title(title: bytes, number: int, place: int) -> DivergedTail | None:
    match = _TITLE.fullmatch(title.decode("ascii", "replace"))
    if match is None or len(title) != TITLE_BYTES:
        return None
    *values, at_s = map(int, match.groups()[:-1])
    if _crc32c(_TEXT.format(*values, at_s).encode()) != int(match[match.re.groups], 16):
        return None
    return DivergedTail(number, SetAsideTail(*values), at_s, place + TITLE_BYTES)


def _is_same(one_fd: int, one: int, other_fd: int, other: int, nbytes: int) -> bool:
    """Returns whether two files have the same bytes in these ranges."""
    for done in range(0, nbytes, PIECE_BYTES):
        size = min(PIECE_BYTES, nbytes - done)
        if read_all(one_fd, size, one + done) != read_all(other_fd, size, other + done):
            return False
    return True
