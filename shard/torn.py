"""NAME.torn: the bytes that recovery and repair cut off a stream's files, for inspection.

Each cut is one line of text (`torn content offset=… bytes=… at=…`), then that many bytes, then a line end. Cuts are
added, never replaced. The broker never reads the file; delete it when it is of no interest.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.shard.errors import StorageFull, TailsDamaged, is_full
from tailrace.shard.files import copy_bytes, read_all, write_all

TORN_SUFFIX: Final = ".torn"
PIECE_BYTES: Final = 1024 * 1024
TITLE_BYTES_MAX: Final = 128
_TITLE: Final = re.compile(rb"torn ([a-z]+) offset=(\d+) bytes=(\d+) at=(\d+)\n")


class TornPart(NamedTuple):
    """`nbytes` that were cut off the file `kind` at `cut_offset`; they stand at byte `offset` of the .torn file."""

    kind: str
    cut_offset: int
    nbytes: int
    at_s: int
    offset: int


def read_torn(fd: int, path: Path, name: str) -> Iterator[TornPart]:
    """Reads the cuts in a .torn file, by their titles alone. Raises TailsDamaged for an invalid one, OSError."""
    place, size = 0, os.fstat(fd).st_size
    while place < size:
        match = _TITLE.match(read_all(fd, TITLE_BYTES_MAX, place))
        if match is None:
            raise TailsDamaged(name, path, place, "the title of a cut is missing")
        cut_offset, nbytes, at_s = map(int, match.groups()[1:])
        part = TornPart(match[1].decode(), cut_offset, nbytes, at_s, place + len(match[0]))
        if part.offset + part.nbytes > size:
            raise TailsDamaged(name, path, size, f"the file ends within a cut, before {part.offset + part.nbytes}")
        yield part
        place = part.offset + part.nbytes + 1


def data_end(fd: int, start: int, end: int) -> int:
    """Returns the end of the last byte of start..end that is not zero; `start` if all are zero. Raises OSError."""
    while end > start:
        piece_start = max(start, end - PIECE_BYTES)
        piece = read_all(fd, end - piece_start, piece_start).rstrip(b"\0")
        if piece:
            return piece_start + len(piece)
        end = piece_start
    return start


def keep_torn(directory: Path, stem: str, fd: int, kind: str, start: int, end: int) -> int:
    """Add bytes start..end of a file to the stream's .torn, without the zeros they end in; on the disk on return.

    `kind` is "content" or "index". Gives how many bytes were kept. Raises StorageFull, OSError: do not cut then.
    """
    end = data_end(fd, start, end)
    if end == start:
        return 0
    path = directory / (stem + TORN_SUFFIX)
    try:
        torn = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if is_full(error):
            raise StorageFull(stem, path, end - start) from error
        raise
    size_before = os.fstat(torn).st_size
    try:
        title = f"torn {kind} offset={start} bytes={end - start} at={int(time.time())}\n"
        _copy(torn, size_before, fd, start, end, title)
        os.fsync(torn)
    except OSError as error:
        os.ftruncate(torn, size_before)
        if is_full(error):
            raise StorageFull(stem, path, end - start) from error
        raise
    finally:
        os.close(torn)
    return end - start


def _copy(torn: int, place: int, fd: int, start: int, end: int, title: str) -> None:
    write_all(torn, title.encode(), place)
    place += len(title)
    copy_bytes(fd, start, end, torn, place, PIECE_BYTES)
    write_all(torn, b"\n", place + end - start)
