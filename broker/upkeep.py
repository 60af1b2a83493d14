"""An owner's housekeeping: what is due to be synced, what is due to be dropped, and the space that comes back after.

Everything here runs from the coarse timer in small slices: with 100,000 streams a sweep takes many ticks rather than
one long one.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator

from broker.owner import OpenStream, Owner, Refused
from broker.settings import StreamPolicy
from broker.syncer import Syncer
from shard.errors import StorageError
from shard.layout import stream_paths
from shard.log import mark_closed_synced
from shard.retention import retention_seq
from shard.system import syncfs

log = logging.getLogger(__name__)

SWEEP_SLICE_S = 0.01  # of a tick: how long one slice of the sweep may hold the loop
CLEAN_MARK_S = 3.0  # of a stop: how long closed streams are marked as synced; the others are checked at opening


class Upkeep:
    """Sync schedule, retention, trimming's second half, the disk's account."""

    def __init__(self, owner: Owner, syncer: Syncer, clock: Callable[[], float], clock_us: Callable[[], int]) -> None:
        self.owner = owner
        self.syncer = syncer
        self._clock = clock
        self._clock_us = clock_us
        self._punches: deque[tuple[float, bytes, int]] = deque()  # due, stream, first seq; at most one a trim
        self._sweep: Iterator[bytes] = iter(())
        self._swept_bytes = 0
        self._next_sweep_s = clock()
        owner.on_trim = self._note_trim

    # --- syncing ----------------------------------------------------------------------------------------------------

    def request_syncs(self) -> None:
        """Hand every log whose sync is due to the helper thread."""
        now_s = self._clock()
        due = [stream for stream in self.owner.dirty.values() if stream.sync_due_s <= now_s and not stream.syncing]
        for stream in due:
            stream.syncing = True
            stream.sync_due_s = 0.0
            del self.owner.dirty[stream.name]
            self.syncer.request(stream.log, (stream, stream.log.next_seq))

    def take_outcomes(self) -> None:
        for outcome in self.syncer.outcomes():
            stream, upto = outcome.token  # type: ignore[misc]  # what request_syncs gave
            self._synced(stream, upto, outcome.error)

    def _synced(self, stream: OpenStream, upto: int, error: OSError | None) -> None:
        stream.syncing = False
        self.owner.batches_synced(stream, upto, error)
        if stream.name not in self.owner.dirty and not stream.sync_due_s:
            self.owner.unsynced.discard(stream.name)

    def finish_syncs(self) -> None:
        """Before the logs are closed: sync, here and now, whatever publisher waits for its disk."""
        for stream in list(self.owner.open.values()):
            if not stream.waiting:
                continue
            error = None
            try:
                stream.log.sync()
            except OSError as failed:
                error = failed
            self.owner.batches_synced(stream, stream.log.next_seq, error)

    # --- trimming ---------------------------------------------------------------------------------------------------

    def _note_trim(self, stream: OpenStream, dropped: int) -> None:
        self.owner.metrics.trimmed_messages += dropped
        self._punches.append((self._clock() + self.owner.settings.trim_grace_s, stream.name, stream.log.first_seq))

    def punch_due(self) -> None:
        """Give back the space of what was trimmed a grace period ago: no reader is in the middle of it any more."""
        now_s = self._clock()
        while self._punches and self._punches[0][0] <= now_s:
            _due, name, seq = self._punches.popleft()
            try:
                self.owner.stream(name).log.punch(seq)
            except (Refused, OSError) as error:
                log.warning("cannot give back the trimmed space of stream %r: %s", name, error)

    def sweep(self) -> None:
        """One slice of the walk over all streams: apply retention, add up the disk's bytes."""
        end_s = self._clock() + SWEEP_SLICE_S
        for name in self._sweep:
            self._visit(name)
            if self._clock() > end_s:
                return
        self.owner.metrics.disk_bytes = self._swept_bytes
        if self._clock() >= self._next_sweep_s:
            self._next_sweep_s = self._clock() + self.owner.settings.retention_interval_s
            self._swept_bytes = 0
            self._sweep = iter(list(self.owner.names))

    def _visit(self, name: bytes) -> None:
        text = name.decode()
        paths = stream_paths(self.owner.shard_path(name), text)
        for path in (paths.content, paths.index):
            try:
                self._swept_bytes += os.stat(path).st_blocks * 512
            except FileNotFoundError:
                continue  # removed under our feet: it has no bytes
        policy = self.owner.settings.policy(text)
        if (policy.max_age_s or policy.max_bytes) and name not in self.owner.damaged:
            self._retain(name, policy)

    def _retain(self, name: bytes, policy: StreamPolicy) -> None:
        try:
            stream = self.owner.stream(name)
            seq = retention_seq(
                stream.log, now_us=self._clock_us(), max_age_s=policy.max_age_s, max_bytes=policy.max_bytes
            )
            if seq > stream.log.first_seq:
                self.owner.trim(stream, seq)
        except (Refused, StorageError, OSError) as error:
            log.warning("cannot apply retention to stream %r: %s", name, error)

    # --- stopping ---------------------------------------------------------------------------------------------------

    def close_clean(self) -> None:
        """Put everything on the disk, mark it so, and give the shards back."""
        owner = self.owner
        if not owner.owning:
            return
        names = owner.unsynced | set(owner.dirty)
        try:
            syncfs(owner.directory.path)
            for stream in owner.open.values():
                stream.log.mark_synced()
            owner.dirty.clear()
            owner.release()
            self._mark_closed(names)
            syncfs(owner.directory.path)
        except OSError as error:
            log.error("the stop is not clean, the streams will be checked at the next start: %s", error)
            owner.release()

    def _mark_closed(self, names: set[bytes]) -> None:
        end_s = time.monotonic() + CLEAN_MARK_S
        for name in names:
            mark_closed_synced(self.owner.shard_path(name), name.decode())
            if time.monotonic() > end_s:
                return
