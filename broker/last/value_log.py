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

from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.record_log import RecordLog
from tailrace.shard.frame import HEADER_BYTES, MAX_FRAME_BYTES, pack_frame, unpack_header
from tailrace.shard.names import LAST_PREFIX

VALUE_BYTES_MAX: Final = MAX_FRAME_BYTES - 2 * HEADER_BYTES
"""The longest frame that fits into a record."""

_MARK: Final = Struct("<QII")
_OLD: Final = msgpack.packb({"o": 1})


def frame_in(record: memoryview) -> memoryview:
    """The frame of the stream that is the payload of a whole record."""
    return record[HEADER_BYTES + unpack_header(record).metadata_bytes :]


class ValueLog(RecordLog):
    """The log of one stream at its owner."""

    __slots__ = ()

    def __init__(self, owner: Owner, stream: bytes) -> None:
        super().__init__(owner, LAST_PREFIX + stream)

    def append(self, frames: Sequence[bytes | memoryview], now_s: float) -> int:
        """Append a record for each of these frames of the stream; the seq of the first. Raises Refused."""
        return self.append_records([pack_frame(frame) for frame in frames], now_s)

    def append_again(self, frames: Sequence[tuple[memoryview, bool]], now_s: float) -> int:
        """As `append`, for frames of records; of each whether it is only a retained one any more, and not the last."""
        records = [pack_frame(frame, metadata=_OLD if is_old else b"") for frame, is_old in frames]
        return self.append_records(records, now_s)

    def append_mark(self, seq: int, epoch: int, now_s: float, *, settled: bool = False) -> None:
        """Note that all messages before `seq`, the last one of this epoch, are taken into account. Raises Refused.

        `settled`: and that no record before this one is of a message that the stream does not have.
        """
        self.append_records([pack_frame(_MARK.pack(seq, epoch, int(settled)))], now_s)
