"""A log of the broker's own at its owner, of records of which later ones supersede earlier ones: appended to, and kept
short.

Whose log it is appends the records that still count again, and has the log trimmed behind them once that is on the
disk: a crash leaves at most some records twice.
"""

from __future__ import annotations

from tailrace.broker.process.work import Nobody
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code


class RecordLog(Nobody):
    """One log, as a publisher of its own records."""

    __slots__ = ("_failure", "_owner", "_synced", "_trimmed_to", "name")

    def __init__(self, owner: Owner, name: bytes) -> None:
        self._owner = owner
        self.name = name
        self._failure: Refused | None = None
        self._synced = 0  # once the log is on the disk up to here, it can be trimmed to `_trimmed_to`
        self._trimmed_to = 0

    def stream(self) -> OpenStream:
        """Raises Refused."""
        return self._owner.stream(self.name)

    def append_records(self, frames: list[bytes], now_s: float) -> int:
        """Append these unstamped frames; the seq of the first. Raises Refused."""
        batch = StreamBatch(self.name, 0, None, 0)
        batch.add_quiet(self, len(frames), bytearray(b"".join(frames)))
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

    @property
    def is_trimming(self) -> bool:
        """Whether a trim waits for the disk."""
        return self._synced > 0

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
