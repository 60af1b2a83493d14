"""NAME.topics: which pieces of a stream's content may have messages of a topic. It may be removed at any time.

A header page, then one record for each block of BLOCK_BYTES of the content (`shard.topic_blocks_cy`), in order and
without holes, up to some block before the end of the log. A record is written once, so a file that was opened stays
right. It is believed only if the header names this stream and the number of cuts that it has had, if each record has
its checksum, and if the last message that the last record stands for is the one in the log: a log changes only behind a
message that stays, so all before it is the same too. Nothing of this file is ever synced.

`shard.topic_index_build` makes and extends it. Any process may read it.
"""

from __future__ import annotations

import os
import struct
from typing import Final, NamedTuple

from tailrace.shard.errors import StorageError
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import TOPICS_SUFFIX, StreamPaths

TOPICS_MAGIC: Final = b"TRtopics"
TOPICS_VERSION: Final = 1
TOPICS_HEADER: Final = struct.Struct("<8sIIQQQI")
"""magic, version, BLOCK_BYTES, stream_id, cuts, number of the first record's block, crc32c of all before."""

_leaf = load("tailrace.shard.topic_blocks_cy")
BLOCK_BYTES: Final[int] = _leaf.BLOCK_BYTES
RECORD_BYTES: Final[int] = _leaf.RECORD_BYTES
_RECORD_HEAD: Final = struct.Struct("<IIQQII")
_CRC_BYTES: Final = 4
_crc32c = load("tailrace.shard.frame_cy").crc32c


class BlockRuns(NamedTuple):
    """Runs of neighbouring blocks that may have messages of a topic, each first seq, first offset, end seq, end offset
    as u64; and where the last of the blocks that were searched ends.
    """

    runs: bytes
    end_seq: int
    end_offset: int


class IndexStart(NamedTuple):
    """The header: whose blocks they are."""

    stream_id: int
    cuts: int
    first_block: int

    @property
    def salt(self) -> int:
        """Goes into the checksums of the records, so that those of another file are not taken for this one's."""
        return (self.stream_id ^ self.stream_id >> 32 ^ self.cuts << 7) & 0xFFFFFFFF

    def pack(self) -> bytes:
        fields = TOPICS_HEADER.pack(TOPICS_MAGIC, TOPICS_VERSION, BLOCK_BYTES, *self, 0)[:-_CRC_BYTES]
        crc: int = _crc32c(fields)
        return (fields + crc.to_bytes(_CRC_BYTES, "little")).ljust(HEADER_PAGE_BYTES, b"\0")


class BlockIndex:
    """An open index, for reading. `end_block`: the number behind that of its last block. Close it."""

    __slots__ = ("end_block", "fd", "inode", "start")

    def __init__(self, fd: int, start: IndexStart) -> None:
        """Takes the descriptor over."""
        self.fd = fd
        self.start = start
        self.end_block = start.first_block
        self.inode = os.fstat(fd).st_ino
        self.refresh()

    @property
    def identity(self) -> tuple[int, int]:
        """That of the readers for which it is right."""
        return self.start.stream_id, self.start.cuts

    def refresh(self) -> None:
        """Find the blocks that have been added. Raises OSError."""
        records = max(os.fstat(self.fd).st_size - HEADER_PAGE_BYTES, 0) // RECORD_BYTES
        self.end_block = self.start.first_block + records

    def is_at(self, paths: StreamPaths) -> bool:
        """Whether the stream's index is still this file."""
        try:
            return os.stat(topics_path(paths)).st_ino == self.inode
        except OSError:
            return False

    def place_of(self, block: int) -> int:
        return HEADER_PAGE_BYTES + (block - self.start.first_block) * RECORD_BYTES

    def covers(self, block: int) -> bool:
        return self.start.first_block <= block < self.end_block

    def find(self, keys: bytes, block: int, end_block: int) -> BlockRuns | None:
        """The runs from `block` to before `end_block` that may have all of the keys, at least one.

        None if the file is damaged. Raises OSError.
        """
        nbytes = (end_block - block) * RECORD_BYTES
        records = os.pread(self.fd, nbytes, self.place_of(block))
        if len(records) < nbytes:
            return None
        runs, end_seq, end_offset, is_right = _leaf.find(records, block, self.start.salt, keys)
        return BlockRuns(runs, end_seq, end_offset) if is_right else None

    def end(self) -> tuple[int, int] | None:
        """The seq and the offset behind its last block; None without any, or if it is damaged. Raises OSError."""
        if self.end_block == self.start.first_block:
            return None
        found = self.find(b"", self.end_block - 1, self.end_block)
        return None if found is None else (found.end_seq, found.end_offset)

    def is_of(self, reader: StreamReader) -> bool:
        """Whether it can be believed: the last message that it stands for is the log's. Raises OSError."""
        end = self.end() if self.identity == reader.identity else None
        if end is None:
            return False
        crc = _RECORD_HEAD.unpack(os.pread(self.fd, _RECORD_HEAD.size, self.place_of(self.end_block - 1)))[1]
        try:
            return bool(reader.offset_of(end[0]) == end[1] and reader.frame_crc(end[0] - 1) == crc)
        except (StorageError, ValueError):  # trimmed, not there yet since the machine went down, cut, or damaged
            return False

    def close(self) -> None:
        """A second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def topics_path(paths: StreamPaths) -> str:
    return f"{paths.directory}/{paths.stem}{TOPICS_SUFFIX}"


def read_start(fd: int) -> IndexStart | None:
    """The header; None if it is damaged. Raises OSError."""
    data = os.pread(fd, TOPICS_HEADER.size, 0)
    if len(data) < TOPICS_HEADER.size:
        return None
    magic, version, block_bytes, stream_id, cuts, first_block, crc = TOPICS_HEADER.unpack(data)
    if (magic, version, block_bytes) != (TOPICS_MAGIC, TOPICS_VERSION, BLOCK_BYTES):
        return None
    return IndexStart(stream_id, cuts, first_block) if crc == _crc32c(data[:-_CRC_BYTES]) else None


def open_index(paths: StreamPaths, reader: StreamReader) -> BlockIndex | None:
    """The index of the stream that the reader reads; None if there is none, or none that can be believed.

    Raises OSError.
    """
    try:
        fd = os.open(topics_path(paths), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        start = read_start(fd)
        index = None if start is None else BlockIndex(fd, start)
        if index is not None and index.is_of(reader):
            fd = -1
            return index
        return None
    finally:
        if fd >= 0:
            os.close(fd)


def filter_keys(topic_filter: bytes) -> bytes:
    """The keys that each topic has that a valid filter matches; b"" if it begins with a wildcard, or an empty level."""
    levels = topic_filter.split(b"/")
    known = next((at for at, level in enumerate(levels) if level in (b"+", b"#")), len(levels))
    if known < len(levels):
        known = min(known, _leaf.KEYS_MAX - 1)
    literal = b"/".join(levels[:known])
    keys: bytes = _leaf.topic_keys(literal) if levels[0] and literal else b""
    return keys
