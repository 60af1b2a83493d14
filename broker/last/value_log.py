"""`$last/X`, the log of the last values of stream X: appended to, and kept short.

The payload of a record is the message's frame as the stream has it, since the stream may be trimmed. A record counts
for nothing once there is a later one of its topic; one without a payload deletes the topic. To keep the log short the
oldest records that count are appended again, and the log is trimmed behind them once that is on the disk: a crash
leaves at most some records twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgpack

from tailrace.broker.process.work import Nobody
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.frame import HEADER_BYTES, MAX_FRAME_BYTES, pack_frame, unpack_header
from tailrace.shard.names import LAST_PREFIX

VALUE_BYTES_MAX: Final = MAX_FRAME_BYTES - 2 * HEADER_BYTES
"""The longest frame that fits into a record."""

_MARK: Final = Struct("<QII")
_OLD: Final = msgpack.packb({"o": 1})


def frame_in(record: memoryview) -> memoryview:
    """The frame of the stream that is the payload of a whole record."""
    return record[HEADER_BYTES + unpack_header(record).metadata_bytes :]


class ValueLog(Nobody):
    """The log of one stream at its owner, as a publisher of its own records."""

    __slots__ = ("_failure", "_owner", "_synced", "_trimmed_to", "name")

    def __init__(self, owner: Owner, stream: bytes) -> None:
        self._owner = owner
        self.name = LAST_PREFIX + stream
        self._failure: Refused | None = None
        self._synced = 0  # once the log is on the disk up to here, it can be trimmed to `_trimmed_to`
        self._trimmed_to = 0

    def stream(self) -> OpenStream:
        """Raises Refused."""
        return self._owner.stream(self.name)

    def append(self, frames: Sequence[bytes | memoryview], now_s: float) -> int:
        """Append a record for each of these frames of the stream; the seq of the first. Raises Refused."""
        return self._append([pack_frame(frame) for frame in frames], now_s)

    def append_again(self, frames: Sequence[tuple[memoryview, bool]], now_s: float) -> int:
        """As `append`, for frames of records; of each whether it is only a retained one any more, and not the last."""
        return self._append([pack_frame(frame, metadata=_OLD if is_old else b"") for frame, is_old in frames], now_s)

    def append_mark(self, seq: int, epoch: int, now_s: float, *, settled: bool = False) -> None:
        """Note that all messages before `seq`, the last one of this epoch, are taken into account. Raises Refused.

        `settled`: and that no record before this one is of a message that the stream does not have.
        """
        self._append([pack_frame(_MARK.pack(seq, epoch, int(settled)))], now_s)

    def _append(self, records: list[bytes], now_s: float) -> int:
        batch = StreamBatch(self.name, 0, None, 0)
        batch.add_quiet(self, len(records), bytearray(b"".join(records)))
        first_seq, self._failure = self.stream().log.next_seq, None
        self._owner.append_row([batch], now_s)
        if self._failure is not None:
            raise self._failure
        return first_seq

    def trim_later(self, seq: int, now_s: float) -> None:
        """Drop the records before `seq` once all that is in the log now is on the disk. Raises Refused."""
        if not self._synced:
            stream = self.stream()
            self._synced, self._trimmed_to = stream.log.next_seq, seq
            self.sync(now_s)

    def sync(self, now_s: float) -> None:
        """Have it on the disk soon. Raises Refused."""
        stream = self.stream()
        stream.sync_due_s = min(stream.sync_due_s or now_s, now_s)

    def trim(self) -> None:
        """Do what `trim_later` has asked for, if its time has come. Raises Refused, StorageError, OSError."""
        stream = self.stream()
        if self._synced and stream.log.synced_seq >= self._synced:
            self._synced = 0
            self._owner.trim(stream, max(self._trimmed_to, stream.log.first_seq))

    # --- as a publisher ---------------------------------------------------------------------------------------------

    def publish_refused(self, _name: bytes, _count: int, code: Code, text: str) -> None:
        self._failure = Refused(code, text)

    def may_create(self, _name: bytes) -> bool:
        return False

    def creation_refusal(self, _name: bytes) -> Refused:
        return Refused(Code.UNKNOWN, "no such stream here")

    def count_created(self) -> None: ...
