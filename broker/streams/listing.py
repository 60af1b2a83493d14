"""What the owner of streams answers to a listing: a page of their names, and the numbers of one."""

from __future__ import annotations

import heapq
import logging
import os
from dataclasses import astuple
from itertools import islice
from typing import Any, Final

from tailrace.broker.streams.owner import Owner, Refused
from tailrace.broker.streams.refused import CallArgs
from tailrace.protocol.listing import StreamRow
from tailrace.shard.closed_end import StreamEnd, read_closed_end
from tailrace.shard.deletion import SUFFIXES
from tailrace.shard.errors import MessageMissing, StorageError
from tailrace.shard.log import StreamLog
from tailrace.shard.stream_files import CONTENT_SUFFIX, StreamPaths, stream_paths

log = logging.getLogger(__name__)

MINUTE_US: Final = 60_000_000
BLOCK_BYTES: Final = 512
"""The unit of st_blocks, whatever the file system's own."""
DAMAGED: Final = "damaged"
"""The role that is shown of a stream whose files cannot be read."""


def list_names(owner: Owner, args: CallArgs) -> list[bytes]:
    """[prefix, after, most] -> the next `most` names, in the order of their bytes. Opens nothing."""
    prefix, after, most = args
    return list(islice(owner.catalog.names_after(prefix, after), most))


def list_grown(owner: Owner, args: CallArgs) -> list[Any]:
    """[prefix, after, most, mark] -> [next mark, names]: of the streams that have grown since the mark the next `most`,
    in the order of their bytes; None if they are unknown. Opens nothing.
    """
    prefix, after, most, mark = args
    found = owner.growth_log.since(mark)
    if found.streams is None or owner.roles.copies.unready:
        return [found.mark, None]
    wanted = (name for name in found.streams if name > after and owner.catalog.is_listed(name, prefix))
    return [found.mark, heapq.nsmallest(most, wanted)]


def list_ends(owner: Owner, args: CallArgs) -> list[list[Any]]:
    """[one of the names, names] -> [name, *`StreamEnd`] of each stream that is open or was closed cleanly; of others
    it is known only when they are opened; not of those that are to be copied first. Opens nothing.
    """
    ends = ((name, _end(owner, name)) for name in args[1])
    return [[name, *end] for name, end in ends if end is not None]


def _end(owner: Owner, name: bytes) -> StreamEnd | None:
    if name not in owner.catalog.names or name in owner.roles.copies.unready:
        return None
    stream = owner.catalog.open.get(name)
    if stream is None:
        paths = stream_paths(owner.catalog.shard_path(name), name.decode())
        try:
            return read_closed_end(paths, owner.catalog.boot_id)
        except OSError:
            return None
    first_seq, next_seq = stream.log.first_seq, stream.log.next_seq
    try:
        last = stream.log.entry(next_seq - 1) if next_seq > first_seq else None
    except MessageMissing:
        return None
    stamp = () if last is None else (last.timestamp_us, last.epoch)
    return StreamEnd(stream.log.stream_id, stream.log.cuts, first_seq, next_seq, *stamp)


def list_stream(owner: Owner, args: CallArgs) -> list[Any]:
    """[stream] -> the fields of its `StreamRow`; none if it was deleted. Opens the stream."""
    if args[0] not in owner.catalog.names:
        return []
    return list(astuple(describe(owner, args[0])))


def describe(owner: Owner, name: bytes) -> StreamRow:
    """One stream in numbers. One that cannot be read has the role DAMAGED, and 0 in all of them."""
    try:
        return _describe(owner, name)
    except (Refused, StorageError, OSError) as error:
        log.warning("stream %s cannot be listed: %s", name.decode(), error)
        return StreamRow(name.decode(), DAMAGED, owner.roles.epoch(name), *[0] * 11)


def _describe(owner: Owner, name: bytes) -> StreamRow:
    stream, text = owner.stream(name), name.decode()
    found, now_us = stream.log, owner.clock_us()
    minute_seq = max(found.seq_at(max(now_us - MINUTE_US, 0)), found.first_seq)
    consumers, consumer_lag = owner.context.consumer_lag(name)
    return StreamRow(
        text,
        owner.roles.role(name).value,
        owner.roles.epoch(name),
        found.first_seq,
        found.next_seq,
        _bytes_from(found, found.first_seq),
        disk_bytes(stream_paths(owner.catalog.shard_path(name), text)),
        *_times(found),
        found.next_seq - minute_seq,
        _bytes_from(found, minute_seq),
        consumers,
        consumer_lag,
        int(owner.context.stat_upstream(stream).get("lag_messages", 0)),
    )


def _times(found: StreamLog) -> tuple[int, int]:
    """The timestamps of the first and the last message, 0 without one. Another thread may be cutting the stream."""
    try:
        return found.entry(found.first_seq).timestamp_us, found.last_timestamp_us
    except MessageMissing:
        return 0, 0


def _bytes_from(found: StreamLog, seq: int) -> int:
    """The bytes in the log of the messages from `seq` on, with their headers."""
    try:
        return found.end_offset - found.entry(seq).offset
    except MessageMissing:
        return 0


def disk_bytes(paths: StreamPaths) -> int:
    """What a stream's two files take on the disk; a file that is not there, or cannot be asked, takes nothing."""
    total = 0
    for file in (paths.content_file, paths.index_file):
        try:
            total += os.stat(file).st_blocks * BLOCK_BYTES
        except OSError:
            continue
    return total


def used_bytes(paths: StreamPaths, end_offset: int | None) -> tuple[int, int]:
    """The bytes that all files of a stream take on the disk, and those reserved ahead for content, which do not count.

    `end_offset`: where the content ends, if the stream is open; a closed one has nothing reserved.
    """
    total = ahead = 0
    for suffix in SUFFIXES:
        try:
            found = os.stat(f"{paths.directory}/{paths.stem}{suffix}")
        except OSError:
            continue
        total += found.st_blocks * BLOCK_BYTES
        if suffix == CONTENT_SUFFIX and end_offset is not None:
            ahead = max(min(found.st_size - end_offset, found.st_blocks * BLOCK_BYTES), 0)
    return total - ahead, ahead
