"""Makes and extends a stream's topic index (`shard.topic_index`), from a thread that may wait for the disk.

One process at a time does it for a stream: the one with the flock of the file. It holds no lock of the shard, and
changes no other file. The stream may be cut or deleted meanwhile: then the reader that the builder has raises
StreamCut, or the file has been removed with the stream's other files, or is removed here.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from tailrace.shard.files import punch_hole, write_all
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.leaves import load
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import StreamPaths
from tailrace.shard.topic_index import BLOCK_BYTES, RECORD_BYTES, BlockIndex, IndexStart, read_start, topics_path

SLICE_BYTES: Final = 256 << 10
"""Of content in one call of the leaf, which takes about 0.2 ms; more if a frame is longer."""
VERIFY_BLOCKS: Final = 1_024
SPARE_BYTES: Final = 256 << 20
"""Of free space, without which nothing is built."""
PUNCH_BYTES: Final = 4_096

_build = load("tailrace.shard.topic_blocks_cy").build


def build_index(paths: StreamPaths, reader: StreamReader, pause: Callable[[], bool], *, verify: bool = False) -> int:
    """Makes or extends the index of the reader's stream up to the last whole block; gives how many blocks were added.

    `pause` is called after each slice; False ends the work. `verify`: look at all records first. Without room on the
    disk, or while another process does it, nothing is done. Raises StorageError (StreamCut when the stream was cut),
    OSError.
    """
    if not reader.recovered or reader.first_seq() == reader.next_seq() or not _has_room(paths, reader):
        return 0
    with _locked(topics_path(paths)) as fd:
        if fd is None:
            return 0
        index = _believed(fd, reader, verify)
        if index is not None:
            return _extend(index, reader, pause)
        os.unlink(topics_path(paths))
    return _build_anew(paths, reader, pause)


def _build_anew(paths: StreamPaths, reader: StreamReader, pause: Callable[[], bool]) -> int:
    first_seq = reader.first_seq()
    offset = reader.offset_of(first_seq)
    start = IndexStart(*reader.identity, offset // BLOCK_BYTES)
    with _locked(topics_path(paths)) as fd:
        if fd is None or os.fstat(fd).st_size:
            return 0
        write_all(fd, start.pack(), 0)
        if not reader.is_current:  # cut, or deleted: then the file may have come too late to be removed with the others
            os.unlink(topics_path(paths))
            return 0
        return _append_blocks(BlockIndex(os.dup(fd), start), reader, (first_seq, offset), pause)


def _extend(index: BlockIndex, reader: StreamReader, pause: Callable[[], bool]) -> int:
    end = index.end()
    if end is None:
        return 0
    _give_back(index, reader)
    return _append_blocks(index, reader, end, pause)


def _append_blocks(index: BlockIndex, reader: StreamReader, place: tuple[int, int], pause: Callable[[], bool]) -> int:
    """Add the blocks from `place`, a seq and its offset, up to the last whole one. Closes the index."""
    added, (seq, offset) = 0, place
    limit_seq = reader.next_seq()
    end_offset = reader.offset_of(limit_seq)
    buffer = memoryview(bytearray(SLICE_BYTES))
    try:
        while offset < end_offset:
            size = reader.read_into(buffer[: min(len(buffer), end_offset - offset)], offset)
            records, seq, used, fault = _build(
                buffer, size, seq, limit_seq, offset, reader.name.encode(), index.start.salt
            )
            if records:
                write_all(index.fd, records, index.place_of(index.end_block + added))
                added += len(records) // RECORD_BYTES
                offset += used
            elif fault or size < len(buffer):
                break
            else:
                buffer = memoryview(bytearray(2 * len(buffer)))  # up to the longest frame and a block
            if fault or not pause():
                break
    finally:
        index.close()
    return added


def _believed(fd: int, reader: StreamReader, verify: bool) -> BlockIndex | None:
    """The index in a file, with a descriptor of its own, if it can be believed and extended."""
    start = read_start(fd)
    if start is None:
        return None
    index = BlockIndex(os.dup(fd), start)
    is_whole = (os.fstat(fd).st_size - HEADER_PAGE_BYTES) % RECORD_BYTES == 0
    if is_whole and index.is_of(reader) and not (verify and _is_damaged(index, reader)):
        return index
    index.close()
    return None


def _is_damaged(index: BlockIndex, reader: StreamReader) -> bool:
    block = max(reader.offset_of(reader.first_seq()) // BLOCK_BYTES, index.start.first_block)
    while block < index.end_block:
        end_block = min(block + VERIFY_BLOCKS, index.end_block)
        if index.find(b"", block, end_block) is None:
            return True
        block = end_block
    return False


def _give_back(index: BlockIndex, reader: StreamReader) -> None:
    """Punch out the records of blocks that are trimmed."""
    block = reader.offset_of(reader.first_seq()) // BLOCK_BYTES
    end = min(index.place_of(block), index.place_of(index.end_block - 1)) // PUNCH_BYTES * PUNCH_BYTES
    if end > HEADER_PAGE_BYTES:
        punch_hole(index.fd, HEADER_PAGE_BYTES, end)


def _has_room(paths: StreamPaths, reader: StreamReader) -> bool:
    found = os.statvfs(paths.directory)
    wanted = reader.offset_of(reader.next_seq()) // BLOCK_BYTES * RECORD_BYTES
    return found.f_bavail * found.f_frsize >= SPARE_BYTES + wanted


@contextmanager
def _locked(path: str) -> Iterator[int | None]:
    """The file, made if missing, with its lock; None while another process has it, or has just replaced the file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = os.stat(path).st_ino == os.fstat(fd).st_ino
    except (BlockingIOError, FileNotFoundError):
        is_there = False
    except BaseException:
        os.close(fd)
        raise
    try:
        yield fd if is_there else None
    finally:
        os.close(fd)


def drop_index(paths: StreamPaths) -> None:
    """Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(topics_path(paths))
