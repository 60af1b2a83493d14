"""`$cursor/X`, the log of all changes of the consumers of stream X: read, appended to, and kept short.

All records of a turn are one write, for all that wait for any of them (`stage`, `flush`). From time to time that ends
with a checkpoint; the records before it are trimmed as soon as it is on the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tailrace.broker.consumers.state.records import BadRecord, CheckpointBegun, CheckpointEnded, Record, pack, unpack
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.process.work import Nobody
from tailrace.broker.routing.batch import OutcomeSink, StreamBatch
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StreamDamaged
from tailrace.shard.frame import pack_frame, unpack_header
from tailrace.shard.leaves import load
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role
from tailrace.shard.names import InvalidName, cursor_name
from tailrace.shard.stream_files import stream_paths

COMPACT_BYTES: Final = 256 << 10
"""Appended behind the last checkpoint before there is another, at least. All of it is read in the turn in which a
worker takes the consumers over: 5,000 records take it 0.1 s."""
COMPACT_FACTOR: Final = 4
"""And so many times what the last checkpoint took."""
PART_BYTES: Final = 256 << 10
"""Of a checkpoint, in one message, about."""
PARSED_BYTES: Final = 16 << 10
"""Of a log that is read, as objects at one time, about: what is freed of more is not given back to the system."""

_parse = load("tailrace.shard.frame_cy").parse


class CheckpointRange(NamedTuple):
    """Messages `first_seq` to `end_seq - 1` of the log: they hold the outcome of all records before them."""

    first_seq: int
    end_seq: int


class CheckpointFinder:
    """Finds whole checkpoints among records in their order; `found` is the last one."""

    __slots__ = ("_begun_seq", "found")

    def __init__(self) -> None:
        self._begun_seq = -1
        self.found: CheckpointRange | None = None

    def visit(self, seq: int, record: Record) -> None:
        if isinstance(record, CheckpointBegun):
            self._begun_seq = seq
        elif isinstance(record, CheckpointEnded) and self._begun_seq >= 0 and record.parts == seq - self._begun_seq - 1:
            self.found = CheckpointRange(self._begun_seq, seq + 1)


def read_records(stream_log: StreamLog, seq: int) -> Iterator[tuple[int, Record]]:
    """The records from message `seq` on. Raises StreamDamaged, OSError, BadRecord."""
    for run in stream_log.walk(seq):
        for start, end in _parts(run.frames):
            for each, _time_us, _epoch, _flags, _metadata, payload in _parse(run.frames, start, end, False):
                yield each, unpack(payload)


def _parts(frames: memoryview) -> Iterator[tuple[int, int]]:
    """Where parts of PARSED_BYTES, or a little more, begin and end in these frames, which are whole."""
    start = end = 0
    while end < len(frames):
        end += unpack_header(frames, end).length
        if end - start >= PARSED_BYTES or end == len(frames):
            yield start, end
            start = end


def log_name(name: bytes) -> bytes:
    """The name of the log of the stream's consumers. Raises Refused."""
    try:
        return cursor_name(name)
    except InvalidName as error:
        raise Refused(Code.USAGE, f"this stream can have no consumers: {error}") from error


class CursorLog(Nobody):
    """The log of one stream's consumers, at its owner. `failure`: why staged records were not appended."""

    __slots__ = ("_checkpoint_bytes", "_compacted_offset", "_owner", "_row", "checkpoint", "failure", "name")

    def __init__(self, owner: Owner, name: bytes) -> None:
        """Raises Refused where the stream can have no consumers."""
        self._owner = owner
        self.name = log_name(name)
        self._row: list[StreamBatch] = []
        self.checkpoint: CheckpointRange | None = None  # the last one; records before it may go when it is on the disk
        self._checkpoint_bytes = 0
        self._compacted_offset = 0  # of the log's content, where the last checkpoint ends
        self.failure: Refused | None = None

    @property
    def staged(self) -> bool:
        return bool(self._row)

    def load(self) -> ConsumerTable:
        """Read the consumers from the log; none without a log. Raises Refused, StreamDamaged, OSError."""
        consumers, finder = ConsumerTable(), CheckpointFinder()
        if self.name not in self._owner.catalog.names:
            return consumers
        stream = self._open()
        try:
            for seq, record in read_records(stream.log, stream.log.first_seq):
                consumers.apply(record)
                finder.visit(seq, record)
        except BadRecord as error:
            paths = stream_paths(self._owner.catalog.shard_path(self.name), self.name.decode())
            raise StreamDamaged(paths.name, Path(paths.content_file), 0, f"message {seq}: {error}") from error
        self.checkpoint = finder.found
        if finder.found is not None:
            first, last = stream.log.entry(finder.found.first_seq), stream.log.entry(finder.found.end_seq - 1)
            self._compacted_offset = last.offset + last.length
            self._checkpoint_bytes = self._compacted_offset - first.offset
        elif stream.log.first_seq < stream.log.next_seq:
            self._compacted_offset = stream.log.entry(stream.log.first_seq).offset
        return consumers

    def stage(
        self, records: Iterable[Record], sink: OutcomeSink | None, *, sync: bool = False, replicas: int = 0
    ) -> None:
        """Append the records in this turn, and notify the sink when all that is staged until now is logged as asked.

        Raises Refused if the log does not exist yet and cannot be created.
        """
        frames = [pack_frame(pack(record)) for record in records]
        if not frames and sink is None:
            return
        if frames:
            self._make()
        batch = self._row[-1] if self._row else None
        if batch is None or (batch.sync, batch.replicas) != (sync, replicas):
            batch = StreamBatch(self.name, 0, None, replicas)
            batch.sync = sync
            self._row.append(batch)
        if frames:
            batch.add_quiet(self, len(frames), bytearray(b"".join(frames)))
        if sink is not None:
            batch.parts.append((sink, 0, batch.count))

    def flush(self, consumers: ConsumerTable, now_s: float) -> None:
        """Append the staged records; `consumers` is the state after them."""
        if self.name not in self._owner.catalog.names:  # nothing has ever happened to them: these wait for nothing
            row, self._row = self._row, []
            for batch in row:
                batch.published(0, 0)
            return
        row, self._row = self._row, []
        self._owner.append_row(row, now_s)
        if self.failure is None and not self._row:
            self._compact(consumers, now_s)

    def refuse(self, refused: Refused) -> None:
        """Refuse all staged records: none of them is appended."""
        row, self._row = self._row, []
        for batch in row:
            batch.refused(refused.code, refused.text)

    def trim(self) -> None:
        """Drop records before the last checkpoint, once it is on the disk. Raises Refused, StorageError, OSError."""
        if self.checkpoint is not None and trim_before(self._owner, self._owner.stream(self.name), self.checkpoint):
            self.checkpoint = None

    # --- as a publisher of its own records --------------------------------------------------------------------------

    def publish_refused(self, _name: bytes, _count: int, code: Code, text: str) -> None:
        self.failure = Refused(code, text)

    def may_create(self, _name: bytes) -> bool:
        return False

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.UNKNOWN, "no such stream here")

    def count_created(self) -> None: ...

    # --- within -----------------------------------------------------------------------------------------------------

    def _open(self) -> OpenStream:
        """Raises Refused."""
        if self._owner.roles.role(self.name) is not Role.MASTER:
            text = f"{self.name.decode()} is not this node's own, as its stream is; an administrator can promote it"
            raise Refused(Code.DISABLED, text)
        return self._owner.stream(self.name)

    def _make(self) -> None:
        """Raises Refused."""
        if self.name not in self._owner.catalog.names:
            self._owner.create(self.name, by_command=True)

    def _compact(self, consumers: ConsumerTable, now_s: float) -> None:
        """Append a checkpoint where much was appended since the last one; all that is so is in the log."""
        stream = self._owner.stream(self.name)
        grown_bytes = stream.log.end_offset - self._compacted_offset
        if grown_bytes <= max(COMPACT_BYTES, COMPACT_FACTOR * self._checkpoint_bytes):
            return
        first_seq, start_offset = stream.log.next_seq, stream.log.end_offset
        self.stage(consumers.checkpoint(PART_BYTES), None)
        row, self._row = self._row, []
        self._owner.append_row(row, now_s)
        if self.failure is None:
            self.checkpoint = CheckpointRange(first_seq, stream.log.next_seq)
            self._compacted_offset = stream.log.end_offset
            self._checkpoint_bytes = stream.log.end_offset - start_offset
            stream.sync_due_s = min(stream.sync_due_s, now_s)  # the records before it can go then


def trim_before(owner: Owner, stream: OpenStream, checkpoint: CheckpointRange) -> bool:
    """Drop records before the checkpoint if it is on the disk; returns whether it is. Raises Refused, StorageError."""
    if stream.log.synced_seq < checkpoint.end_seq:
        return False
    if stream.log.first_seq < checkpoint.first_seq:
        owner.trim(stream, checkpoint.first_seq)
    return True
