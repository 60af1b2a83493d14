"""An owner's housekeeping: syncs that are due, messages that are due to be dropped, and the space that this frees.

Everything here runs from the coarse timer in small slices: with 100,000 streams a sweep takes many ticks rather than
one long one.
"""

from __future__ import annotations

import logging
import select
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from tailrace.broker.consumers.coordinator.lag_scanner import LagScanner
from tailrace.broker.process.settings import Durability, StreamPolicy
from tailrace.broker.streams.failed_syncs import RETRY_MIN_S
from tailrace.broker.streams.journaling import JournalKeeper
from tailrace.broker.streams.listing import disk_bytes, used_bytes
from tailrace.broker.streams.owner import OpenStream, Owner, Refused
from tailrace.broker.streams.owner_calls import spare, tails_of
from tailrace.broker.streams.syncer import JournaledGroup, Syncer, SyncJob, SyncRequest
from tailrace.shard.errors import StorageError
from tailrace.shard.files import FileSystem
from tailrace.shard.holes import unpunched_seq
from tailrace.shard.log import StreamLog
from tailrace.shard.names import CURSOR_PREFIX, REPLIES_PREFIX
from tailrace.shard.retention import RetentionPolicy, retention_seq
from tailrace.shard.stream_files import StreamPaths, stream_paths
from tailrace.shard.sync_marks import is_sync_failed, mark_closed_synced, mark_unsynced_failed

log = logging.getLogger(__name__)

_new_tuple = tuple.__new__  # without the Python function that a NamedTuple has
SWEEP_SHARE, SWEEP_SLICE_S = 0.01, 0.005  # of the time, for the sweep; how long one slice of it may hold the loop
HURRIED_SHARE, HURRIED_SWEEP_S = 0.1, 1.0  # while the node is short of disk space; the latter between two beginnings
RESERVED_BYTES_MAX = 1 << 20  # ahead of an open stream while publishes are refused; one with more is closed
TOGETHER_S = 0.005  # syncs that are due so soon are made with those that are due
UNREAD_REPLIES_S = 60.0  # after its last message, a stream of replies that nobody reads is emptied
PAUSE_S = 0.1  # of waiting for the disk, between two beats
CLEAN_MARK_S = 3.0  # of a stop: how long closed streams are marked as synced; the others are checked at opening


class SyncToken(NamedTuple):
    """A sync that is under way: of which stream, and up to which seq it will have been."""

    stream: OpenStream
    upto: int


class WholeSync:
    """Everything that was written, with one call: for the streams that were closed before their sync was due.

    If that fails, nobody knows for which of them: `marked` are those that were marked then.
    """

    __slots__ = ("_file_system", "_marks", "failure", "marked", "name")

    def __init__(self, file_system: FileSystem, marks: Callable[[], Iterator[bytes]]) -> None:
        """`marks` marks the streams that are not synced, one a step; it is called in the helper thread."""
        self._file_system = file_system
        self._marks = marks
        self.marked: list[bytes] = []
        self.failure: OSError | None = None
        self.name = "all that are closed"

    def sync(self) -> None:
        try:
            self._file_system.sync()
        except OSError as failure:
            self.failure = failure
            self.marked = list(self._marks())
            raise


class PunchJob:
    """Giving back a stream's trimmed space waits for the disk, so it is done where syncs are."""

    __slots__ = ("_log", "_sent", "name", "seq")

    def __init__(self, stream_log: StreamLog, seq: int, *, sent: bool) -> None:
        self._log = stream_log
        self.seq = seq
        self._sent = sent
        self.name = stream_log.name

    def sync(self) -> int:
        return self._log.punch(self.seq, sent=self._sent)


class Maintenance:
    """Sync schedule, retention, trimming's second half, the disk's account."""

    def __init__(
        self,
        owner: Owner,
        patrol: LagScanner,
        syncer: Syncer,
        clock: Callable[[], float],
        clock_us: Callable[[], int],
        *,
        spared_seq: Callable[[bytes], int | None],
        journal: JournalKeeper | None = None,
    ) -> None:
        """`spared_seq`: the first message that consumers of a stream still need, see `OwnerContext.spared_seq`."""
        self._journal = journal
        self.owner = owner
        self._syncs, self._catalog = owner.syncs, owner.catalog
        self.syncer = syncer
        self._clock = clock
        self._clock_us = clock_us
        self._file_system = FileSystem(
            owner.catalog.directory.path
        )  # from before anything was written: it knows of all errors
        self._syncing_whole = False
        self._urgent: list[SyncRequest] = []  # for the helper threads, together in `_hand_over`
        self._patient: list[SyncRequest] = []
        self._punches: deque[tuple[float, bytes, int]] = deque()  # due, stream, first seq; at most one a trim
        self._sweep: Iterator[bytes] = iter(())
        self._sweeping = False  # a round has begun and not ended
        self._swept_bytes = self._swept_tails = self._swept_memory_bytes = 0
        self._unread: dict[bytes, float] = {}  # streams in memory without subscribers: since when
        self._next_sweep_s = self._sliced_s = self._swept_s = clock()
        self._has_looked = self._looks_at_what_was_left = False  # in the first sweep as the owner
        self._patrol = patrol
        self._spared_seq = spared_seq

    # --- syncing ----------------------------------------------------------------------------------------------------

    def request_syncs(self) -> None:
        """Hand every log whose sync is due to the helper threads."""
        now_s = self._clock()
        for name, seq in self._syncs.take_lost_ends():
            self.owner.events.on_cut(name, seq)
        self._retry_failed(now_s)
        for stream in list(self._syncs.dirty.values()):
            if stream.sync_due_s <= now_s + TOGETHER_S:
                self._ask_for(stream)
        self._hand_over()
        self._syncs.find_next()
        if self._journal is not None:
            self._journal.tick(now_s, self._sync_failed)
        if self._syncs.unsynced_due_s <= now_s and not self._syncing_whole:
            self._syncing_whole = True
            self._syncs.whole_sync_begins(now_s)
            self.syncer.request(self._whole(), None)

    def sync_urgent(self) -> None:
        """At the end of a turn: publishers wait for these. One that is being synced has its turn again right after."""
        for stream in self._syncs.take_urgent():
            self._ask_for(stream)
        self._hand_over()

    def _ask_for(self, stream: OpenStream) -> None:
        """Have the stream synced, from the next `_hand_over` on."""
        if stream.syncing:
            return
        stream.sync_due_s = 0.0
        self._syncs.dirty.pop(stream.name, None)
        failed = self._syncs.failed
        if failed and not failed.begin(stream.name, self._clock()):
            return  # its next try will be for all of it
        stream.syncing = True
        is_sound = not failed or stream.name not in failed
        target = stream.log if is_sound or self._journal is None else self._journal.mending(stream.log)
        is_awaited = bool(stream.waiting)
        token = _new_tuple(SyncToken, (stream, stream.log.next_seq))
        request = _new_tuple(SyncRequest, (target, token, is_sound, is_awaited))
        is_urgent = is_sound and (is_awaited or stream.policy.durability is Durability.INTERVAL)
        (self._urgent if is_urgent else self._patient).append(request)

    def _hand_over(self) -> None:
        """All that were asked for since the last time: they are synced together, if that is quicker."""
        if self._urgent:
            requests, self._urgent = self._urgent, []
            self.syncer.request_all(requests, urgent=True)
        if self._patient:
            requests, self._patient = self._patient, []
            self.syncer.request_all(requests)

    def _retry_failed(self, now_s: float) -> None:
        """Streams whose sync has failed: if they were closed meanwhile, they are opened for it."""
        for name in self._syncs.failed.due(now_s):
            try:
                self._ask_for(self.owner.stream(name))
            except Refused as refused:
                log.error("cannot sync stream %r again: %s", name.decode(), refused)
                self._syncs.failed.failed(name, now_s)

    def _whole(self) -> WholeSync:
        names = list(self._catalog.names)
        return WholeSync(self._file_system, lambda: self._mark_unsynced(names))

    def _mark_unsynced(self, names: list[bytes]) -> Iterator[bytes]:
        """In the helper thread, after the whole file system could not be synced."""
        for name in names:
            try:
                if mark_unsynced_failed(self._catalog.shard_path(name), name.decode(), boot_id=self._catalog.boot_id):
                    yield name
            except OSError as error:
                log.error("stream %r may not be on the disk, and cannot be marked: %s", name.decode(), error)

    def take_outcomes(self) -> None:
        metrics = self.owner.metrics
        for outcome in self.syncer.outcomes():
            token = outcome.token
            if isinstance(token, SyncJob):
                token.done()
                continue
            if isinstance(token, JournaledGroup):
                self._journaled(token.requests, outcome.seconds)
                continue
            metrics.commit.observe(outcome.seconds)
            if outcome.error is not None:
                metrics.sync_failures += 1
            if isinstance(token, SyncToken):
                self._synced(token.stream, token.upto, outcome.error, self._clock())
            elif isinstance(outcome.log, WholeSync):
                self._syncing_whole = False
                for name in outcome.log.marked:
                    self._syncs.failed.found(name)
            elif isinstance(outcome.log, PunchJob):
                self._punched(outcome.log, outcome.error)
        self._hand_over()

    def _journaled(self, requests: Sequence[SyncRequest], seconds: float) -> None:
        self.owner.metrics.commit.observe(seconds, len(requests))
        now_s = self._clock()
        for request in requests:
            if isinstance(request.token, SyncToken):
                self._synced(*request.token, None, now_s)

    def _synced(self, stream: OpenStream, upto: int, error: OSError | StorageError | None, now_s: float) -> None:
        owner, syncs, name = self.owner, self._syncs, stream.name
        stream.syncing = False
        if error is not None:
            self._sync_failed(stream, error)
        else:
            if syncs.failed:
                syncs.failed.mended(name)
            if stream.log.sync_failed_seq is not None:  # it was marked meanwhile
                syncs.failed.found(name)
            elif stream.log.synced_seq < upto and not stream.sync_due_s:
                syncs.add_journaled(stream, now_s)
        if stream.waiting:
            owner.batches_synced(stream, upto, error)
        owner.events.on_held(name)
        if stream.waiting:
            self._ask_for(stream)
        elif name in syncs.dirty:  # it is in the journal, or was appended to meanwhile
            if stream.sync_due_s < syncs.due_s:
                syncs.due_s = stream.sync_due_s
        elif error is None and not stream.sync_due_s:
            syncs.unsynced.discard(name)

    def _sync_failed(self, stream: OpenStream, error: OSError | StorageError) -> None:
        failed = self._syncs.failed
        if isinstance(error, StorageError):  # some of its messages are unreadable: opening it anew cuts them off
            failed.mended(stream.name)
            failed.found(stream.name)
            self.owner.forget(stream)
        else:
            failed.failed(stream.name, self._clock())

    def finish_syncs(self, pause: Callable[[], None]) -> None:
        """Before the logs are closed: wait until every publisher that waits for the disk has its answer.

        The helper threads wait for the disk; `pause` is called meanwhile, every PAUSE_S at least.
        """
        for stream in list(self._catalog.open.values()):
            if stream.waiting:
                self._ask_for(stream)
        self._hand_over()
        while self._is_awaited():
            self._pause(pause)
        if self._journal is not None:
            self._journal.stop()

    def _is_awaited(self) -> bool:
        if any(stream.waiting and stream.syncing for stream in self._catalog.open.values()):
            return True
        return self._journal is not None and (self._journal.busy or self._syncs.failed.writes)

    def _pause(self, pause: Callable[[], None]) -> None:
        select.select([self.syncer.fileno()], [], [], PAUSE_S)
        self.take_outcomes()
        pause()

    # --- trimming ---------------------------------------------------------------------------------------------------

    def on_trim(self, stream: OpenStream, dropped: int) -> None:
        """See `OwnerEvents.on_trim`."""
        self.owner.metrics.trimmed_messages += dropped
        self._punch_later(stream.name, stream.log.first_seq)

    def _punch_later(self, name: bytes, seq: int, *, after_s: float = 0.0) -> None:
        delay_s = max(self.owner.settings.trim_grace_s, after_s)
        self._punches.append((self._clock() + delay_s, name, seq))

    def forget(self, name: bytes) -> None:
        """The stream is deleted: its trimmed ranges do not apply to a later stream of the same name."""
        self.owner.space.dropped(name)
        self._punches = deque(each for each in self._punches if each[1] != name)

    def punch_due(self) -> None:
        """Free the space of messages that were trimmed a grace period ago: no reader is in the middle of them any more.

        But their bytes may still be in the socket of a slow one. A stream is synced first. So one whose sync has failed
        waits until its messages were written again, which is only done while nothing is appended.
        """
        now_s = self._clock()
        while self._punches and self._punches[0][0] <= now_s:
            _due, name, seq = self._punches.popleft()
            if name in self._syncs.failed:
                self._punch_later(name, seq, after_s=RETRY_MIN_S)
                continue
            try:
                stream_log = self.owner.stream(name).log
                self.syncer.request(PunchJob(stream_log, seq, sent=self.owner.context.subscribers(name) > 0), None)
            except Refused as refused:
                log.warning("cannot give back the trimmed space of stream %r: %s", name, refused)

    def _punched(self, job: PunchJob, error: OSError | StorageError | None) -> None:
        name, failed = job.name.encode(), self._syncs.failed
        if error is not None:
            failed.found(name)
        if name in failed:
            self._punch_later(name, job.seq, after_s=RETRY_MIN_S)

    def sweep(self) -> None:
        """One slice of the walk over all streams: apply retention, add up the disk's bytes and the tails set aside."""
        began_s = self._clock()
        share = HURRIED_SHARE if self.owner.space.wants_sweep else SWEEP_SHARE
        end_s = began_s + min(share * (began_s - self._sliced_s), SWEEP_SLICE_S)
        self._sliced_s = began_s
        for name in self._sweep:
            self._visit(name)
            if self._clock() > end_s:
                return
        if self._sweeping:
            self._sweeping = False
            self.owner.metrics.disk_bytes, self.owner.metrics.diverged_tails = self._swept_bytes, self._swept_tails
            self.owner.metrics.memory_bytes = self._swept_memory_bytes
            self._patrol.finish(self.owner.metrics)
            self.owner.space.swept(self._swept_bytes)
        if self._clock() >= min(self._next_sweep_s, self._hurried_sweep_s()):
            self._swept_s = self._clock()
            self._next_sweep_s = self._swept_s + self.owner.settings.retention_interval_s
            self._swept_bytes = self._swept_tails = self._swept_memory_bytes = 0
            self._sweep = iter(list(self._catalog.names))
            self._sweeping = True
            self._looks_at_what_was_left = self._catalog.owning and not self._has_looked
            self._has_looked |= self._looks_at_what_was_left

    def _hurried_sweep_s(self) -> float:
        return self._swept_s + HURRIED_SWEEP_S if self.owner.space.wants_sweep else float("inf")

    def look_at_space(self) -> None:
        """Find out whether the disk has room, also while nothing is published."""
        if self.owner.space.is_watched:
            self.owner.space.look()

    def _measure(self, name: bytes, paths: StreamPaths) -> None:
        """The bytes of a stream on the disk. While publishes are refused, an open one frees its reserved space."""
        found = self.owner.catalog.open.get(name)
        used, ahead = used_bytes(paths, None if found is None else found.log.end_offset)
        self.owner.space.measured(name, used)
        if self.owner.space.is_met and ahead > RESERVED_BYTES_MAX and found is not None and found.idle:
            self.owner.forget(found)

    def _visit(self, name: bytes) -> None:
        if name not in self._catalog.names:  # deleted since the sweep began
            return
        text = name.decode()
        paths = stream_paths(self._catalog.shard_path(name), text)
        if self._looks_at_what_was_left:
            self._search_mark(name, text)
            self._search_trimmed(name, paths)
        nbytes = disk_bytes(paths)
        if self._catalog.directory.is_in_memory(name):
            self._visit_memory(name, nbytes)
            return
        self._swept_bytes += nbytes
        if self.owner.space.is_watched:
            self._measure(name, paths)
        self._swept_tails += tails_of(paths)[0]
        if name.startswith(CURSOR_PREFIX):
            self._patrol.visit(name, nbytes)
            return
        if name.startswith(REPLIES_PREFIX):
            self._trim_unread(name)
        policy = self.owner.settings.policy(text)
        if (policy.max_age_s or policy.max_bytes) and name not in self._catalog.damaged:
            self._retain(name, policy)

    def _visit_memory(self, name: bytes, nbytes: int) -> None:
        """One stream in memory: its age, and whether it still has subscribers."""
        self._swept_memory_bytes += nbytes
        policy, now_s = self.owner.settings.policy(name.decode()), self._clock()
        if self.owner.context.subscribers(name):
            self._unread.pop(name, None)
        elif policy.linger_s and now_s - self._unread.setdefault(name, now_s) >= policy.linger_s:
            self._trim_all(name)
        if policy.max_age_s:
            self._retain(name, policy)

    def _trim_all(self, name: bytes) -> None:
        try:
            found = self.owner.stream(name)
            if found.log.next_seq > found.log.first_seq:
                self.owner.trim(found, found.log.next_seq)
        except (Refused, StorageError, OSError) as error:
            log.warning("cannot drop the messages of stream %r: %s", name, error)

    def _search_mark(self, name: bytes, text: str) -> None:
        """A worker before this one may have left streams whose sync has failed, and nobody may ask for them."""
        try:
            if is_sync_failed(self._catalog.shard_path(name), text):
                self._syncs.failed.found(name)
        except OSError as error:
            log.warning("cannot see whether a sync of stream %r has failed: %s", text, error)

    def _search_trimmed(self, name: bytes, paths: StreamPaths) -> None:
        """A predecessor may have trimmed the stream, and ended before it gave the space back."""
        try:
            seq = unpunched_seq(paths)
        except OSError as error:
            log.warning("cannot see whether stream %r has trimmed space: %s", name, error)
            return
        if seq is not None:
            self._punch_later(name, seq)

    def _trim_unread(self, name: bytes) -> None:
        """A stream of replies whose client has left keeps nothing."""
        try:
            found = self.owner.stream(name)
            is_old = self._clock_us() - found.log.last_timestamp_us > UNREAD_REPLIES_S * 1_000_000
            has_some = found.log.next_seq > found.log.first_seq
            if has_some and is_old and not self.owner.context.subscribers(name):
                self.owner.trim(found, found.log.next_seq)
        except (Refused, StorageError, OSError) as error:
            log.warning("cannot trim the replies in stream %r: %s", name, error)

    def _retain(self, name: bytes, policy: StreamPolicy) -> None:
        try:
            stream = self.owner.stream(name)
            seq = retention_seq(stream.log, RetentionPolicy(policy.max_age_s, policy.max_bytes), self._clock_us())
            if seq > stream.log.first_seq and policy.spare_consumers:
                seq = spare(seq, self._spared_seq(name))
            if seq > stream.log.first_seq:
                self.owner.trim(stream, seq)
        except (Refused, StorageError, OSError) as error:
            log.warning("cannot apply retention to stream %r: %s", name, error)

    # --- stopping ---------------------------------------------------------------------------------------------------

    def close_clean(self, pause: Callable[[], None]) -> None:
        """Put everything on the disk, mark it so, and give the shards back. `pause` as for `finish_syncs`."""
        owner = self.owner
        if owner.catalog.owning:
            while any(stream.syncing for stream in owner.catalog.open.values()):
                self._pause(pause)
            owner.close_logs()
            failure = self._wait_for_whole(pause)
            if failure is None:
                self._mark_closed(pause)
                failure = self._wait_for_whole(pause)
            if failure is None:
                self._remove_journal(pause)
            else:
                log.error("the stop is not clean, the streams will be checked when they are opened: %s", failure)
            owner.release()

    def _remove_journal(self, pause: Callable[[], None]) -> None:
        """Its messages are in the streams' own files, if none of these is marked."""
        if self._journal is None or self._syncs.failed:
            return
        done: list[bool] = []
        self.syncer.request(self._journal.removal(), SyncJob(lambda: done.append(True)))
        while not done:
            self._pause(pause)

    def put_back(self, name: bytes) -> None:
        """See `OwnerContext.put_back`."""
        if self._journal is not None:
            self._journal.put_back(name.decode())

    def _wait_for_whole(self, pause: Callable[[], None]) -> OSError | None:
        """Sync the file system, in the helper thread; gives the error."""
        done: list[bool] = []
        whole = self._whole()
        self.syncer.request(whole, SyncJob(lambda: done.append(True)))
        while not done:
            self._pause(pause)
        return whole.failure

    def _mark_closed(self, pause: Callable[[], None]) -> None:
        """Mark the streams that were closed before they were synced: they are on the disk now."""
        end_s = time.monotonic() + CLEAN_MARK_S
        for name in self._syncs.unsynced:
            try:
                mark_closed_synced(self._catalog.shard_path(name), name.decode(), boot_id=self._catalog.boot_id)
            except OSError as error:
                log.error("stream %r will be checked when it is opened: %s", name.decode(), error)
            pause()
            if time.monotonic() > end_s:
                return
