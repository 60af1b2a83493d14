"""NAME.producers: a checkpoint of a stream's producers (`shard.producers`), and their recovery.

All of it follows from the log, so the file is not evidence: it saves reading the log up to where it was written. It is
not put on the disk, and one that is not whole, or is of another line of messages, is ignored.

    offset 0   8 bytes   magic
    offset 8   u32       CRC-32C of what follows
    offset 12            a msgpack array: upto_seq, epoch, crc, producers
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgpack

from tailrace.shard.errors import StreamDamaged
from tailrace.shard.files import NEW_SUFFIX
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.names import file_stem
from tailrace.shard.numbering import read_numbering
from tailrace.shard.producers import ProducerRun, Producers
from tailrace.shard.stream_files import PRODUCERS_SUFFIX

PRODUCERS_MAGIC: Final = b"TRprod\x001"
PRODUCERS_BYTES_MAX: Final = 16 << 20
CHECKPOINT_BYTES: Final = 64 << 20
"""Appended to the content between two checkpoints."""
SCAN_BYTES_MAX: Final = 256 << 20
"""Read of a log at most to know its producers: those with nothing in there are not known."""
HEAD: Final = struct.Struct("<8sI")

_crc32c = load("tailrace.shard.frame_cy").crc32c
_find_flagged = load("tailrace.shard.run_cy").find_flagged


class ProducerCheckpoint(NamedTuple):
    """The producers of the messages before `upto_seq`, of which the last has this epoch and checksum."""

    upto_seq: int
    epoch: int
    crc: int
    rows: list[list[Any]]


def producers_path(directory: Path, name: str) -> Path:
    return directory / (file_stem(name) + PRODUCERS_SUFFIX)


def save(path: Path, log: StreamLog, producers: Producers) -> None:
    """Write a checkpoint of the log as it ends now, unless it keeps no message. Raises OSError, StreamDamaged."""
    last_seq = log.next_seq - 1
    if last_seq < log.first_seq:
        return
    body: bytes = msgpack.packb([log.next_seq, log.last_epoch, log.frame_crc(last_seq), list(producers.rows())])
    new = path.with_name(path.name + NEW_SUFFIX)
    new.write_bytes(HEAD.pack(PRODUCERS_MAGIC, _crc32c(body)) + body)
    os.rename(new, path)


def read(path: Path) -> ProducerCheckpoint | None:
    """None if it is missing or incomplete. Raises OSError."""
    try:
        with open(path, "rb") as file:
            data = file.read(PRODUCERS_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if not HEAD.size < len(data) <= PRODUCERS_BYTES_MAX:
        return None
    magic, crc = HEAD.unpack_from(data)
    body = data[HEAD.size :]
    if magic != PRODUCERS_MAGIC or crc != _crc32c(body):
        return None
    try:
        return ProducerCheckpoint(*msgpack.unpackb(body))
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def rebuild(path: Path, log: StreamLog, expiry_us: int, now_us: int, pause: Callable[[], None]) -> Producers:
    """Builds the producers of a log, from its checkpoint and later messages. `pause` is called between pieces of the
    log.

    Raises StreamDamaged, OSError.
    """
    alive_seq = log.seq_at(max(now_us - expiry_us, 0))
    least_seq = max(alive_seq, _seq_before_end(log, SCAN_BYTES_MAX))
    producers, start = _restored(read(path), log, expiry_us)
    start = max(start, alive_seq)
    if start < least_seq:  # too many messages since: producers that published in between would be restored wrongly
        producers, start = Producers(expiry_us), least_seq
    for run in log.walk(start):
        follow(producers, run.frames)
        pause()
    return producers


def follow(producers: Producers, frames: bytes | bytearray | memoryview) -> None:
    """These whole stamped frames were appended by somebody else."""
    for seq, timestamp_us, messages, metadata in _find_flagged(frames, 0, len(frames)):
        if not metadata:
            producers.go_on(messages, seq, timestamp_us)
            continue
        try:
            producer_id, number = read_numbering(metadata)
        except ValueError:
            continue  # no owner has let it in as a producer's
        producers.note(producer_id, ProducerRun(number, messages, seq), timestamp_us)


def _restored(checkpoint: ProducerCheckpoint | None, log: StreamLog, expiry_us: int) -> tuple[Producers, int]:
    """Returns the checkpoint's producers, if it is of this very line of messages, and its end."""
    producers = Producers(expiry_us)
    if checkpoint is not None and _fits(checkpoint, log):
        try:
            producers.restore(checkpoint.rows)
        except (ValueError, TypeError):
            return Producers(expiry_us), log.first_seq
        return producers, checkpoint.upto_seq
    return producers, log.first_seq


def _fits(checkpoint: ProducerCheckpoint, log: StreamLog) -> bool:
    last_seq = checkpoint.upto_seq - 1
    if not log.first_seq <= last_seq < log.next_seq:
        return False
    try:
        return log.entry(last_seq).epoch == checkpoint.epoch and log.frame_crc(last_seq) == checkpoint.crc
    except StreamDamaged:
        return False


def _seq_before_end(log: StreamLog, nbytes: int) -> int:
    """The first message of those that begin in the last bytes of the content."""
    seqs = range(log.first_seq, log.next_seq)
    return log.first_seq + bisect_left(seqs, log.end_offset - nbytes, key=lambda seq: log.entry(seq).offset)
