"""Logs of consumers that no desk here keeps short: those of slaves, and of streams that nobody asks for any more."""

from __future__ import annotations

import logging
from typing import NamedTuple

from tailrace.broker.consumers.coordinator.cursor_log import (
    COMPACT_BYTES,
    CheckpointFinder,
    CheckpointRange,
    read_records,
    trim_before,
)
from tailrace.broker.consumers.state.records import BadRecord
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.shard.errors import StorageError
from tailrace.shard.replacing import replaceable

log = logging.getLogger(__name__)


@replaceable
class ScannedLog(NamedTuple):
    """The checkpoints found in a log up to `next_seq`; valid for this `generation` of the log."""

    generation: int
    next_seq: int
    finder: CheckpointFinder


class Compactor:
    """One per owner. Reads each log once, then only its new records, and only while it is over COMPACT_BYTES."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._read: dict[bytes, ScannedLog] = {}

    def visit(self, name: bytes, nbytes: int) -> None:
        """Trim a log of consumers, whose files take `nbytes`, to its last checkpoint that is on the disk."""
        if nbytes <= COMPACT_BYTES or name in self._owner.catalog.damaged:
            return
        try:
            stream = self._owner.stream(name)
            checkpoint = self._last_checkpoint(stream)
            if checkpoint is not None:
                trim_before(self._owner, stream, checkpoint)
        except (Refused, StorageError, BadRecord, OSError) as error:
            log.warning("stream %r cannot be trimmed to its last checkpoint: %s", name, error)

    def _last_checkpoint(self, stream: OpenStream) -> CheckpointRange | None:
        stream_log = stream.log
        read = self._read.get(stream.name)
        if read is None or read.generation != stream_log.generation or not self._follows(read, stream):
            read = ScannedLog(stream_log.generation, stream_log.first_seq, CheckpointFinder())
        for seq, record in read_records(stream_log, read.next_seq):
            read.finder.visit(seq, record)
        self._read[stream.name] = read._replace(next_seq=stream_log.next_seq)
        return read.finder.found

    def _follows(self, read: ScannedLog, stream: OpenStream) -> bool:
        """Whether the unread records come right after those read."""
        return stream.log.first_seq <= read.next_seq <= stream.log.next_seq
