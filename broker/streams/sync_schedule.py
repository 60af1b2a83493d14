"""When each stream of an owner is to be synced, and which were closed before that.

`broker.streams.maintenance` requests the syncs; this module only holds when they are due.
"""

from __future__ import annotations

from tailrace.broker.process.settings import Durability, StreamPolicy
from tailrace.broker.streams.failed_syncs import FailedSyncs
from tailrace.broker.streams.open_stream import OpenStream

NEVER_S = float("inf")
JOURNALED_DUE_S = 5.0  # after it was put in a journal


class SyncSchedule:
    """One per owner. Times are of the worker's monotonic clock.

    urgent: streams that were appended to under `always` in this turn; a stream may be in it twice.
    dirty: open streams that were appended to since their last sync was requested.
    due_s: when the next stream of `dirty` is due; NEVER_S if none is, or the end of the turn sees to it.
    unsynced: streams that were closed before they were synced; a clean stop marks them when they are.
    unsynced_due_s: when all of those must be synced, with one sync of the file system.
    whole_synced_s: when the last such sync began. It covers what was appended before.
    lost_ends: (stream, seq) of what opening a stream has found lost, for `OwnerEvents.on_cut`.
    """

    def __init__(self, async_sync_s: float) -> None:
        """`async_sync_s`: how long messages of streams with durability `async` may stay unsynced."""
        self._async_sync_s = async_sync_s
        self.urgent: list[OpenStream] = []
        self.dirty: dict[bytes, OpenStream] = {}
        self.due_s = self.unsynced_due_s = NEVER_S
        self.unsynced: set[bytes] = set()
        self.whole_synced_s = -NEVER_S
        self.failed = FailedSyncs()
        self.lost_ends: list[tuple[bytes, int]] = []

    def add(self, stream: OpenStream, now_s: float) -> None:
        """The stream was appended to, and has no sync due yet (`sync_due_s` is 0)."""
        stream.sync_due_s = due_s = now_s + self._delay_s(stream.policy)
        self.dirty[stream.name] = stream
        if now_s < due_s < self.due_s:  # a sync that is due at once is requested at the end of the turn
            self.due_s = due_s

    def add_journaled(self, stream: OpenStream, now_s: float) -> None:
        """The stream is on the disk in the journal only. Its own files are synced before it is due here, usually."""
        stream.sync_due_s = due_s = now_s + JOURNALED_DUE_S
        self.dirty[stream.name] = stream
        if due_s < self.due_s:
            self.due_s = due_s

    def settle(self, stream: OpenStream) -> None:
        """All of the stream is on the disk in its own files, without a sync that was requested for it."""
        stream.sync_due_s = 0.0
        self.dirty.pop(stream.name, None)
        self.unsynced.discard(stream.name)

    def remove(self, stream: OpenStream) -> None:
        """The stream is being closed: if it is not synced, it is with the whole file system, when its sync was due."""
        if self.dirty.pop(stream.name, None) is not None:
            self.unsynced.add(stream.name)
            due_s = max(stream.sync_due_s, self.whole_synced_s + self._delay_s(stream.policy))
            self.unsynced_due_s = min(self.unsynced_due_s, due_s)

    def whole_sync_begins(self, now_s: float) -> None:
        """The file system is being synced: no closed stream is due."""
        self.unsynced_due_s, self.whole_synced_s = NEVER_S, now_s

    def take_urgent(self) -> list[OpenStream]:
        urgent, self.urgent = self.urgent, []
        return urgent

    def take_lost_ends(self) -> list[tuple[bytes, int]]:
        lost_ends, self.lost_ends = self.lost_ends, []
        return lost_ends

    def find_next(self) -> None:
        """Set `due_s` anew, after syncs were requested."""
        dues = (stream.sync_due_s for stream in self.dirty.values() if not stream.syncing)
        self.due_s = min(dues, default=NEVER_S)

    def _delay_s(self, policy: StreamPolicy) -> float:
        if policy.durability is Durability.ASYNC:
            return self._async_sync_s
        return policy.interval_ms / 1000 if policy.durability is Durability.INTERVAL else 0.0
