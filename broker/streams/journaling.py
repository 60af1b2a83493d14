"""The loop's side of a worker's journal (`shard.journal`): makes it, syncs the files of the streams that are in it, and
puts its frames back when a stream's own files fail or a worker has died.

A half of the journal is free again when every stream in it was synced to its own files, which begins JOURNAL_AGE_S
after the half was begun, in the helper thread that nobody waits for. While both halves are taken, or the journal could
not be made, publishers wait for the streams' own files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Protocol

from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused
from tailrace.broker.streams.syncer import GROUP_MAX, Syncable, SyncJob
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError
from tailrace.shard.files import FileSystem
from tailrace.shard.group_sync import SyncError, sync_together
from tailrace.shard.journal_replay import put_back, remove_journals
from tailrace.shard.journal_writer import JournalWriter
from tailrace.shard.log import StreamLog

log = logging.getLogger(__name__)

JOURNAL_AGE_S: Final = 0.5
RETRY_S: Final = 1.0  # after streams could not be synced
OPENING_RETRY_S: Final = 5.0  # after the journal could not be made
REOPENED_MAX: Final = 16  # closed streams that are opened at once to be synced


class JobQueue(Protocol):
    """A `Syncer`, or a stand-in."""

    def request(self, target: Syncable, token: object) -> None: ...


class JournalOpening:
    """Making the journal waits for the disk, so it is done where syncs are."""

    def __init__(self, journal: JournalWriter, file_system: FileSystem) -> None:
        self.name = journal.path.name
        self._journal, self._file_system = journal, file_system

    def sync(self) -> None:
        self._journal.open(self._file_system)


class JournalRemoval:
    """At a clean stop, when nothing is appended any more."""

    def __init__(self, journal: JournalWriter) -> None:
        self.name = journal.path.name
        self._path = journal.path

    def sync(self) -> None:
        if self._path.exists():
            remove_journals(self._path.parent, [self._path])


class JournaledSync:
    """The streams of a half, put on the disk in their own files. `errors`: of each, afterwards."""

    def __init__(self, streams: Sequence[OpenStream], file_system: FileSystem) -> None:
        self.name = "those of the journal"
        self.streams = streams
        self.errors: Sequence[SyncError] = ()
        self._file_system = file_system

    def sync(self) -> None:
        self.errors = sync_together([stream.log for stream in self.streams], self._file_system, mends=False)


class Mending:
    """The sync of a marked stream: its frames in the journal are written first, as they may have become unreadable."""

    def __init__(self, stream_log: StreamLog, keeper: JournalKeeper) -> None:
        self.name = stream_log.name
        self._log, self._keeper = stream_log, keeper

    def sync(self) -> None:
        with self._log.syncing:  # it is not cut meanwhile
            self._keeper.put_back(self.name)
            self._log.sync()


class JournalKeeper:
    """One per worker."""

    def __init__(self, owner: Owner, syncer: JobQueue, journal: JournalWriter, file_system: FileSystem) -> None:
        self._owner, self._syncer = owner, syncer
        self._journal, self._file_system = journal, file_system
        self._due_s = self._turn_s = 0.0
        self.busy = False  # a helper thread works for it

    def take(self) -> None:
        """The shards were taken: put back the frames in a predecessor's journal. Raises OSError."""
        if not self._journal.path.exists():
            return
        for each in put_back(self._journal.path, self._owner.catalog.directory.stream_directory):
            if each.is_marked:
                self._owner.syncs.failed.found(each.name.encode())
        self._journal.wanted = True  # it is made anew, once all that it holds is on the disk

    def put_back(self, name: str) -> None:
        """Write the frames of one stream in the journal again. In any thread; raises OSError."""
        if self._journal.path.exists():
            put_back(self._journal.path, self._owner.catalog.directory.stream_directory, name)

    def mending(self, stream_log: StreamLog) -> Mending:
        return Mending(stream_log, self)

    def tick(self, now_s: float, on_failed: Callable[[OpenStream, OSError | StorageError], None]) -> None:
        """Do the steps that are due. `on_failed` is called for each stream whose sync has failed."""
        if self.busy or now_s < self._due_s or not self._owner.catalog.owning:
            return
        if self._journal.wanted and not self._owner.syncs.failed:
            self._due_s = now_s + OPENING_RETRY_S
            self._request(JournalOpening(self._journal, self._file_system), self._opened)
            return
        if now_s >= self._turn_s:
            self._journal.turn_over()
            self._turn_s = now_s + JOURNAL_AGE_S
        pending = self._journal.pending()
        if pending and (streams := self._unsynced(pending)):
            self._due_s = now_s + RETRY_S
            job = JournaledSync(streams, self._file_system)
            self._request(job, lambda: self._synced(job, on_failed))

    def _opened(self) -> None:
        if self._journal.is_open:
            self._due_s = 0.0

    def _request(self, job: Syncable, done: Callable[[], None]) -> None:
        self.busy = True

        def finished() -> None:
            self.busy = False
            done()

        self._syncer.request(job, SyncJob(finished))

    def _unsynced(self, pending: dict[str, int]) -> list[OpenStream]:
        """The streams that keep a half from being free, GROUP_MAX at most."""
        streams: list[OpenStream] = []
        reopened = 0
        for name, seq in pending.items():
            stream = self._owner.catalog.open.get(name.encode())
            if stream is None:
                reopened += 1
                if reopened > REOPENED_MAX:
                    continue
                stream = self._reopened(name, seq)
            if stream is None:
                continue
            if stream.log.synced_seq >= min(seq, stream.log.next_seq):
                self._journal.synced(name, seq)
            elif stream.name not in self._owner.syncs.failed:
                streams.append(stream)
        return list(islice(streams, GROUP_MAX))

    def _reopened(self, name: str, seq: int) -> OpenStream | None:
        try:
            return self._owner.stream(name.encode())
        except Refused as refused:
            if refused.code == Code.UNKNOWN:  # it was deleted
                self._journal.synced(name, seq)
            else:
                log.warning("stream %r keeps its place in the journal: %s", name, refused.text)
        return None

    def _synced(self, job: JournaledSync, on_failed: Callable[[OpenStream, OSError | StorageError], None]) -> None:
        catalog, syncs = self._owner.catalog, self._owner.syncs
        for stream, error in zip(job.streams, job.errors, strict=True):
            if catalog.open.get(stream.name) is not stream:
                continue
            if error is not None:
                on_failed(stream, error)
            elif stream.log.synced_seq == stream.log.next_seq and not stream.syncing:
                syncs.settle(stream)
        if not any(job.errors):
            self._due_s = 0.0

    def stop(self) -> None:
        """No helper thread works for it or waits for a stream any more. The file stays."""
        self._journal.wanted = False
        self._journal.close()

    def removal(self) -> JournalRemoval:
        return JournalRemoval(self._journal)
