"""The copy of a log of sessions whose master is another node: kept short, and not kept in memory.

The master appends the records that count again and trims its log; a copy is not trimmed with it. So its records are
looked through now and then, a few each time, for the oldest one that counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tailrace.broker.sessions.record import unpack_record
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.record_log import RecordLog
from tailrace.shard.leaves import load

SLACK: Final = 16_384
"""Records beyond twice those that were left last, from which on it is looked through."""
TURN_S: Final = 0.002

_parse = load("tailrace.shard.frame_cy").parse


class SessionCopy(RecordLog):
    """`_newest`: the seq of the newest record of each session among those looked at, the oldest of these first; None if
    none is to be looked at. `_seq`: the next one; `_end_seq`: where this ends.
    """

    __slots__ = ("_clock", "_end_seq", "_generation", "_left", "_newest", "_seq")

    def __init__(self, owner: Owner, name: bytes, clock: Callable[[], float]) -> None:
        super().__init__(owner, name)
        self._clock = clock
        self._newest: dict[bytes, int] | None = None
        self._left = self._seq = self._end_seq = self._generation = 0

    def tidy(self) -> None:
        """Look at some records, or trim. Raises Refused, StorageError, OSError, ValueError."""
        stream_log = self.stream().log
        if self._newest is not None and self._generation != stream_log.generation:
            self._newest = None  # messages were cut
        if self._newest is not None:
            self._look(self._newest)
        elif not self.is_trimming and stream_log.next_seq - stream_log.first_seq > 2 * self._left + SLACK:
            self._newest, self._seq, self._end_seq = {}, stream_log.first_seq, stream_log.next_seq
            self._generation = stream_log.generation
        self.trim()

    def _look(self, newest: dict[bytes, int]) -> None:
        end_s = self._clock() + TURN_S
        for run in self.stream().log.walk(self._seq, self._end_seq):
            for seq, _time_us, _epoch, _flags, _metadata, payload in _parse(run.frames, 0, len(run.frames), False):
                client_id, record = unpack_record(bytes(payload))
                newest.pop(client_id, None)
                if record is not None:
                    newest[client_id] = seq
                self._seq = seq + 1
            if self._clock() > end_s:
                break
        if self._seq < self._end_seq:
            return
        oldest = next(iter(newest.values()), self._end_seq)
        self._newest, self._left = None, self._end_seq - oldest
        self.trim_later(oldest, self._clock())
