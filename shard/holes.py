"""Finds out whether the space of trimmed messages was given back, from the content file alone. The stream is not
opened."""

from __future__ import annotations

import errno
import os
import struct
from typing import Final

from tailrace.shard.files import read_all
from tailrace.shard.header import CONTENT_FIRST_OFFSET, CONTENT_FIRST_SEQ, HEADER_PAGE_BYTES, untagged
from tailrace.shard.stream_files import StreamPaths
from tailrace.shard.walk import PAGE_BYTES

PUNCH_PAGE_BYTES: Final = 4_096
"""Holes are punched in whole pages of this size."""
FOLIO_MAX_BYTES: Final = 2 << 20
"""The largest piece that the kernel caches as one, at a multiple of its size. Where a hole ends within a piece, the
kernel zeroes the part of it in the hole at once, also under a socket that `sendfile` has given it to; a piece that is
all in the hole is left to the socket as it is."""

_WORDS: Final = struct.Struct("<2Q")
assert CONTENT_FIRST_OFFSET == CONTENT_FIRST_SEQ + 1


def unpunched_seq(paths: StreamPaths) -> int | None:
    """The first seq of a stream if whole pages before its oldest message still have data. Raises OSError.

    None also if the file is missing or its header page cannot be read.
    """
    try:
        fd = os.open(paths.content_file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        first_seq, first_offset = map(untagged, _WORDS.unpack(read_all(fd, _WORDS.size, 8 * CONTENT_FIRST_SEQ)))
        end = first_offset // PAGE_BYTES * PAGE_BYTES
        has_data = end > HEADER_PAGE_BYTES and os.lseek(fd, HEADER_PAGE_BYTES, os.SEEK_DATA) < end
        return first_seq if has_data else None
    except (ValueError, struct.error):
        return None
    except OSError as error:
        if error.errno == errno.ENXIO:  # no data behind the header page
            return None
        raise
    finally:
        os.close(fd)


def whole_units(offset: int, unit_bytes: int) -> int:
    """Returns how many bytes before `offset` fill whole units."""
    return offset // unit_bytes * unit_bytes
