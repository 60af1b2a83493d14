"""An owner's housekeeping: what is due to be synced, what is due to be dropped, and the space that comes back after.

Everything here runs from the coarse timer in small slices: with 100,000 streams a sweep takes many ticks rather than
one long one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker.consumers.patrol import Patrol
from broker.owner import OpenStream, Owner, Refused
from broker.owner_calls import disk_bytes
from broker.settings import StreamPolicy
from broker.syncer import Job, Syncer
from shard.errors import StorageError
from shard.files import sync_file_system
from shard.log import StreamLog
from shard.names import CURSOR_PREFIX
from shard.retention import RetentionPolicy, retention_seq
from shard.stream_files import stream_paths
from shard.synced import mark_closed_synced

log = logging.getLogger(__name__)

SWEEP_SLICE_S = 0.01  # of a tick: how long one slice of the sweep may hold the loop
CLEAN_MARK_S = 3.0  # of a stop: how long closed streams are marked as synced; the others are checked at opening


class Sync(NamedTuple):
    """A sync that is under way: of which stream, and up to which seq it will have been."""

    stream: OpenStream
    upto: int


class Whole:
    """Everything that was written, with one call: for the streams that were closed before their sync was due."""

    __slots__ = ("_path", "name")

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = "all that are closed"

    def sync(self) -> None:
        sync_file_system(self._path)


class Punch:
    """Giving back a stream's trimmed space waits for the disk, so it is done where syncs are."""

    __slots__ = ("_log", "_sent", "_seq", "name")

    def __init__(self, stream_log: StreamLog, seq: int, *, sent: bool) -> None:
        self._log = stream_log
        self._seq = seq
        self._sent = sent
        self.name = stream_log.name

    def sync(self) -> int:
        return self._log.punch(self._seq, sent=self._sent)


class Upkeep:
    """Sync schedule, retention, trimming's second half, the disk's account."""

    def __init__(
        self, owner: Owner, patrol: Patrol, syncer: Syncer, clock: Callable[[], float], clock_us: Callable[[], int]
    ) -> None:
        self.owner = owner
        self.syncer = syncer
        self._clock = clock
        self._clock_us = clock_us
        self._syncing_whole = False
        self._punches: deque[tuple[float, bytes, int]] = deque()  # due, stream, first seq; at most one a trim
        self._sweep: Iterator[bytes] = iter(())
        self._swept_bytes = 0
        self._next_sweep_s = clock()
        self._patrol = patrol
        owner.on_trim = self._note_trim

    # --- syncing ----------------------------------------------------------------------------------------------------

    def request_syncs(self) -> None:
        """Hand every log whose sync is due to the helper thread."""
        now_s = self._clock()
        for stream in [stream for stream in self.owner.dirty.values() if stream.sync_due_s <= now_s]:
            self._request_sync(stream)
        if self.owner.unsynced_due_s <= now_s and not self._syncing_whole:
            self._syncing_whole = True
            self.owner.unsynced_due_s, self.owner.whole_synced_s = float("inf"), now_s
            self.syncer.request(Whole(self.owner.directory.path), None)

    def sync_urgent(self) -> None:
        """At the end of a turn: publishers wait for these. One that is being synced has its turn again right after."""
        urgent, self.owner.urgent = self.owner.urgent, []
        for stream in urgent:
            self._request_sync(stream)

    def _request_sync(self, stream: OpenStream) -> None:
        if not stream.syncing:
            stream.syncing = True
            stream.sync_due_s = 0.0
            self.owner.dirty.pop(stream.name, None)
            self.syncer.request(stream.log, Sync(stream, stream.log.next_seq))

    def take_outcomes(self) -> None:
        for outcome in self.syncer.outcomes():
            if isinstance(outcome.token, Job):
                outcome.token.done()
                continue
            self.owner.metrics.commit.observe(outcome.seconds)
            if isinstance(outcome.log, Whole):
                self._syncing_whole = False
            elif isinstance(outcome.token, Sync):
                self._synced(outcome.token.stream, outcome.token.upto, outcome.error)

    def _synced(self, stream: OpenStream, upto: int, error: OSError | None) -> None:
        stream.syncing = False
        self.owner.batches_synced(stream, upto, error)
        self.owner.on_held(stream.name)
        if stream.waiting:
            self._request_sync(stream)
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
        """Give back the space of what was trimmed a grace period ago: no reader is in the middle of it any more.

        But what was sent may still lie in the socket of a slow one.
        """
        now_s = self._clock()
        while self._punches and self._punches[0][0] <= now_s:
            _due, name, seq = self._punches.popleft()
            try:
                stream_log = self.owner.stream(name).log
                self.syncer.request(Punch(stream_log, seq, sent=self.owner.subscribers(name) > 0), None)
            except Refused as refused:
                log.warning("cannot give back the trimmed space of stream %r: %s", name, refused)

    def sweep(self) -> None:
        """One slice of the walk over all streams: apply retention, add up the disk's bytes."""
        end_s = self._clock() + SWEEP_SLICE_S
        for name in self._sweep:
            self._visit(name)
            if self._clock() > end_s:
                return
        self.owner.metrics.disk_bytes = self._swept_bytes
        self._patrol.finish(self.owner.metrics)
        if self._clock() >= self._next_sweep_s:
            self._next_sweep_s = self._clock() + self.owner.settings.retention_interval_s
            self._swept_bytes = 0
            self._sweep = iter(list(self.owner.names))

    def _visit(self, name: bytes) -> None:
        text = name.decode()
        nbytes = disk_bytes(stream_paths(self.owner.shard_path(name), text))
        self._swept_bytes += nbytes
        if name.startswith(CURSOR_PREFIX):
            self._patrol.visit(name, nbytes)
            return
        policy = self.owner.settings.policy(text)
        if (policy.max_age_s or policy.max_bytes) and name not in self.owner.damaged:
            self._retain(name, policy)

    def _retain(self, name: bytes, policy: StreamPolicy) -> None:
        try:
            stream = self.owner.stream(name)
            seq = retention_seq(stream.log, RetentionPolicy(policy.max_age_s, policy.max_bytes), self._clock_us())
            if seq > stream.log.first_seq and policy.spare_consumers:
                seq = self.owner.sparing(name, seq)
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
        try:
            owner.close_logs()
            sync_file_system(owner.directory.path)
            self._mark_closed()
            sync_file_system(owner.directory.path)
        except OSError as error:
            log.error("the stop is not clean, the streams will be checked when they are opened: %s", error)
        owner.release()

    def _mark_closed(self) -> None:
        """Say of what was closed and not synced that it is on the disk now."""
        end_s = time.monotonic() + CLEAN_MARK_S
        for name in self.owner.unsynced:
            mark_closed_synced(self.owner.shard_path(name), name.decode(), boot_id=self.owner.boot_id)
            if time.monotonic() > end_s:
                return
