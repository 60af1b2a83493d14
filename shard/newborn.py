"""Recovers a stream that was made moments before a loss of power.

Its files are renamed into place without a sync, and get their sizes and their pages on the disk in any order: one of
them is missing, empty, shorter than its header page, or has zeros there. None of its messages was reported as synced
then: the first sync of a stream puts both header pages and both names there. So this is not damage. The remaining
frames become the stream again.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import Final, NamedTuple

from tailrace.shard.files import read_all
from tailrace.shard.growth import STEP_BYTES_MAX
from tailrace.shard.header import HEADER_PAGE_BYTES, HeaderFault, parse_content, parse_index
from tailrace.shard.place import place_word
from tailrace.shard.stream_files import StreamPaths
from tailrace.shard.torn import data_end

REBUILD_BYTES_MAX: Final = 256 << 20
"""The longest content that is read whole when it is opened; a longer one is for `tailrace check --rebuild-index`."""


class Left(Enum):
    """NOTHING: no message; FRAMES: there are bytes behind the content's header page."""

    NOTHING = "nothing"
    FRAMES = "frames"


class _File(NamedTuple):
    """`page` is empty if the header page is lost. `end`: behind the last byte that is not zero, or behind the page."""

    page: bytes
    end: int
    place: int


_MISSING: Final = _File(b"", HEADER_PAGE_BYTES, 0)


def left_of_newborn(paths: StreamPaths, boot: int) -> Left | None:
    """Returns the frames of a stream whose files may be left by a loss of power soon after it was made; None for
    others.

    Raises OSError.
    """
    content, index = _look(paths.content_file), _look(paths.index_file)
    try:
        if content.page:
            parse_content(content.page)
        if index.page and not _is_young(index, boot):
            return None
    except HeaderFault:
        return None
    if (content.page and index.page) or content.end > REBUILD_BYTES_MAX:
        return None
    return Left.FRAMES if content.end > HEADER_PAGE_BYTES else Left.NOTHING


def _is_young(index: _File, boot: int) -> bool:
    """Whether nothing of the stream was ever reported as synced, and the machine may have lost written bytes.

    Raises HeaderFault.
    """
    fixed, words = parse_index(index.page)
    kept = words.boot == boot and words.place in (0, index.place)
    return not kept and words.synced_seq == fixed.base_seq and not words.cuts


def _look(file: str) -> _File:
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return _MISSING
    try:
        size = os.fstat(fd).st_size
        page = read_all(fd, HEADER_PAGE_BYTES, 0)
        is_lost = len(page) < HEADER_PAGE_BYTES or not any(page)
        # The data may be followed by reserved space.
        end = data_end(fd, HEADER_PAGE_BYTES, size) if size <= REBUILD_BYTES_MAX + STEP_BYTES_MAX else size
        return _File(b"" if is_lost else page, max(HEADER_PAGE_BYTES, end), place_word(fd))
    finally:
        os.close(fd)
