"""Which parts of a stream may have messages of some topics, by its topic index, if the broker has made one."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.shard.errors import StorageError
from tailrace.shard.reader import StreamReader
from tailrace.shard.stream_files import stream_paths
from tailrace.shard.topic_index import BLOCK_BYTES, BlockIndex, filter_keys, open_index
from tailrace.spark.slices import Slice

WINDOW_BLOCKS: Final = 4_096
"""Searched at once: 1 MiB of the index, for 64 MiB of the log."""
JOIN_BYTES: Final = 256 << 10
"""Parts that are no further apart become one: to open a stream once more takes as long as to read so much."""
PARTS_MAX: Final = 10_000
"""Of a slice; if there are more, those that are further apart are joined, too."""

_RUN: Final = struct.Struct("<QQQQ")


class BlockRun(NamedTuple):
    """Messages that may have the topics, and where they are in the content."""

    first_seq: int
    first_offset: int
    end_seq: int
    end_offset: int


def prune(directory: Path, slice_: Slice, topics: bytes) -> list[Slice]:
    """All of the slice if it has no index that can be believed, or an index says nothing of the filter."""
    keys = filter_keys(topics)
    if not keys:
        return [slice_]
    try:
        with StreamReader.open(directory, slice_.stream) as reader:
            index = open_index(stream_paths(directory, slice_.stream), reader)
            if index is None:
                return [slice_]
            with closing(index):
                runs = _find(index, reader, slice_, keys)
    except (StorageError, OSError, ValueError):  # the task that reads the slice meets it
        return [slice_]
    parts = [] if runs is None else [each for run in _joined(runs) if (each := _part(slice_, run)).messages > 0]
    return [slice_] if runs is None else parts


def _part(slice_: Slice, run: BlockRun) -> Slice:
    first_seq, end_seq = max(slice_.first_seq, run.first_seq), min(slice_.end_seq, run.end_seq)
    return slice_._replace(first_seq=first_seq, end_seq=end_seq)


def _find(index: BlockIndex, reader: StreamReader, slice_: Slice, keys: bytes) -> list[BlockRun] | None:
    """The runs, the last of which is what is behind the index; None if the index is not of the slice, or damaged."""
    offset = reader.offset_of(slice_.first_seq)
    block = offset // BLOCK_BYTES
    if index.identity != slice_.identity or not index.covers(block):
        return None
    runs: list[BlockRun] = []
    behind = BlockRun(slice_.first_seq, offset, slice_.first_seq, offset)
    while block < index.end_block and behind.end_seq < slice_.end_seq:
        end_block = min(block + WINDOW_BLOCKS, index.end_block)
        found = index.find(keys, block, end_block)
        if found is None:
            return None
        runs += map(BlockRun._make, _RUN.iter_unpack(found.runs))
        behind = BlockRun(found.end_seq, found.end_offset, found.end_seq, found.end_offset)
        block = end_block
    return [*runs, BlockRun(behind.end_seq, behind.end_offset, max(slice_.end_seq, behind.end_seq), behind.end_offset)]


def _joined(runs: list[BlockRun]) -> list[BlockRun]:
    """PARTS_MAX at most, all messages of the runs among them."""
    gap_bytes = JOIN_BYTES
    joined = list(_join(runs, gap_bytes))
    while len(joined) > PARTS_MAX:
        gap_bytes *= 2
        joined = list(_join(joined, gap_bytes))
    return joined


def _join(runs: list[BlockRun], gap_bytes: int) -> Iterator[BlockRun]:
    held: BlockRun | None = None
    for run in runs:
        if held is not None and run.first_offset - held.end_offset <= gap_bytes:
            held = held._replace(end_seq=run.end_seq, end_offset=run.end_offset)
            continue
        if held is not None:
            yield held
        held = run
    if held is not None:
        yield held
