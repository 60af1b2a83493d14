"""The journal of a worker: small messages of many streams, put on the disk with one write of one file.

A file of a header page and two halves of JOURNAL_HALF_BYTES, all of it written when the file is made, so that a write
needs no more than its own bytes on the disk. A half holds blocks, one behind the other, each from the start of a page
on. A block is what one group commit has put there: a record for each stream, with the frames that are not in the
stream's own files on the disk yet. Blocks are numbered, and never again with the same number in one file: those of a
half end with the first one whose number is not the next one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tailrace.shard.files import read_all
from tailrace.shard.header import crc32c

JOURNAL_PREFIX: Final = "journal-"
JOURNAL_HALF_BYTES: Final = 1 << 20
JOURNAL_PAGE_BYTES: Final = 4_096
JOURNALED_BYTES_MAX: Final = 16 << 10
"""Of one stream in a block: what has more goes to its own files."""
JOURNAL_BYTES: Final = JOURNAL_PAGE_BYTES + 2 * JOURNAL_HALF_BYTES
HALF_STARTS: Final = (JOURNAL_PAGE_BYTES, JOURNAL_PAGE_BYTES + JOURNAL_HALF_BYTES)
JOURNAL_MAGIC: Final = b"TRjrnl\x001"
BLOCK_MAGIC: Final = b"TRblock\n"

BLOCK: Final = struct.Struct("<8sQIII")
BLOCK_FIELDS: Final = ("magic", "number", "bytes", "records", "crc32c")
RECORD: Final = struct.Struct("<QQQQIH")
RECORD_FIELDS: Final = ("stream_id", "cuts", "first_seq", "offset", "frames_bytes", "name_bytes")
_HEAD = struct.Struct("<8sQII")
_CRC = struct.Struct("<I")
assert _HEAD.size + _CRC.size == BLOCK.size


class JournalRecord(NamedTuple):
    """Frames of a stream from message `first_seq` on, which begin at `offset` of its content.

    `stream_id` and `cuts` are those of its header pages then: a stream that has others was made anew, or its end was
    cut off since.
    """

    name: str
    stream_id: int
    cuts: int
    first_seq: int
    offset: int
    frames: bytes


class FramesAt(Protocol):
    """The fields of a `JournalRecord`, with or without others."""

    @property
    def name(self) -> str: ...

    @property
    def stream_id(self) -> int: ...

    @property
    def cuts(self) -> int: ...

    @property
    def first_seq(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def frames(self) -> bytes: ...


def journal_path(data: Path, slot: int) -> Path:
    """The journal of the worker of this slot."""
    return data / f"{JOURNAL_PREFIX}{slot:02d}"


def journal_files(data: Path) -> list[Path]:
    """The journals of all workers that have left one. Raises OSError."""
    return sorted(data / file for file in os.listdir(data) if file.startswith(JOURNAL_PREFIX) and file[8:].isdecimal())


def pack_block(number: int, records: Sequence[FramesAt]) -> bytes:
    """A block of whole pages."""
    body = b"".join(map(_pack_record, records))
    head = _HEAD.pack(BLOCK_MAGIC, number, len(body), len(records))
    block = head + _CRC.pack(crc32c(head + body)) + body
    return block.ljust(-(-len(block) // JOURNAL_PAGE_BYTES) * JOURNAL_PAGE_BYTES, b"\0")


def _pack_record(record: FramesAt) -> bytes:
    name, frames = record.name.encode(), record.frames
    head = RECORD.pack(record.stream_id, record.cuts, record.first_seq, record.offset, len(frames), len(name))
    return head + name + frames


def read_journal(path: Path) -> list[JournalRecord]:
    """The records of a journal in the order they were written; none of an unfinished file. Raises OSError."""
    blocks: list[tuple[int, list[JournalRecord]]] = []
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.pread(fd, len(JOURNAL_MAGIC), 0) == JOURNAL_MAGIC:
            for start in HALF_STARTS:
                blocks += _read_half(read_all(fd, JOURNAL_HALF_BYTES, start))
    finally:
        os.close(fd)
    return [record for _, records in sorted(blocks, key=lambda block: block[0]) for record in records]


def _read_half(half: bytes) -> list[tuple[int, list[JournalRecord]]]:
    """Its blocks with their numbers."""
    blocks: list[tuple[int, list[JournalRecord]]] = []
    place = 0
    while place + BLOCK.size <= len(half):
        magic, number, size, count, crc = BLOCK.unpack_from(half, place)
        body = half[place + BLOCK.size : place + BLOCK.size + size]
        is_next = not blocks or number == blocks[-1][0] + 1
        if magic != BLOCK_MAGIC or not is_next or len(body) != size:
            break
        if crc32c(half[place : place + _HEAD.size] + body) != crc:
            break
        blocks.append((number, _parse_records(body, count)))
        place += -(-(BLOCK.size + size) // JOURNAL_PAGE_BYTES) * JOURNAL_PAGE_BYTES
    return blocks


def _parse_records(body: bytes, count: int) -> list[JournalRecord]:
    """The checksum of the block was right."""
    records = []
    place = 0
    for _ in range(count):
        stream_id, cuts, first_seq, offset, frames_bytes, name_bytes = RECORD.unpack_from(body, place)
        name_end = place + RECORD.size + name_bytes
        place = name_end + frames_bytes
        name = body[name_end - name_bytes : name_end].decode()
        records.append(JournalRecord(name, stream_id, cuts, first_seq, offset, body[name_end:place]))
    return records
