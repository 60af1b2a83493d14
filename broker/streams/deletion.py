"""Deleting streams: an owner lets go of a stream, its companions and all that is known of them, then of their files.

asked for      the stream takes no more messages; syncs that are under way end
let go         nobody finds it here any more; a helper thread removes the files (`shard.deletion`)
deleted        its readers are notified, on all workers and on slaves, and the request is answered
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from tailrace.broker.replication.roles.stream_roles import history_of
from tailrace.broker.streams.owner import OpenStream, Owner
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.broker.streams.syncer import Syncable, SyncJob
from tailrace.protocol.errors import Code
from tailrace.shard.deletion import TERMS_KEPT, DeletedStream, delete_stream, deleted_path, forget_record, read_deleted
from tailrace.shard.epochs import EPOCH_MAX, History
from tailrace.shard.errors import MetaDamaged, StorageError
from tailrace.shard.meta import Role, StreamMeta
from tailrace.shard.names import base_of, file_stem, shard_of

log = logging.getLogger(__name__)

DELETIONS_MAX: Final = 1_024
"""Streams that one worker deletes at once; more are refused."""
SLAVE_TEXT: Final = "this node has a copy of the stream; delete it at its master"
FOLLOWED_TEXT: Final = "other nodes follow this disabled copy of the stream; let them follow another node first"
BUSY_TEXT: Final = "the stream is being changed; try again in a moment"


class JobSyncer(Protocol):
    def request(self, target: Syncable, token: object) -> None: ...


class DeletionJob:
    """Removes the files, in a helper thread. `failure`: why not all of it could be done."""

    __slots__ = ("_deleted", "_directory", "failure", "name")

    def __init__(self, owner: Owner, deleted: DeletedStream) -> None:
        self._directory = owner.catalog.shard_path(deleted.name.encode())
        self._deleted = deleted
        self.name = deleted.name
        self.failure: OSError | None = None

    def sync(self) -> None:
        try:
            delete_stream(self._directory, self._deleted)
        except OSError as failure:
            self.failure = failure
            raise

    @property
    def has_begun(self) -> bool:
        """Whether the stream is deleted, although its files may be there until the next start."""
        try:
            return bool(read_deleted(deleted_path(self._directory, self.name)))
        except (MetaDamaged, OSError):
            return False


class ForgettingJob:
    """Drops the files of a record, in a helper thread. If it fails they are there at the next start."""

    __slots__ = ("_deleted", "_directory", "name")

    def __init__(self, directory: Path, deleted: DeletedStream) -> None:
        self._directory = directory
        self._deleted = deleted
        self.name = deleted.name

    def sync(self) -> None:
        forget_record(self._directory, self._deleted)


class Deletion(NamedTuple):
    name: bytes
    done: OnResult
    copy: bool


class Deletions:
    """One per worker. `forget` is called with each deleted stream and companion while nobody can find it any more."""

    def __init__(self, owner: Owner, syncer: JobSyncer, forget: Callable[[bytes], None]) -> None:
        self._owner = owner
        self._syncer = syncer
        self._forget = forget
        self._waiting: list[Deletion] = []
        self._stopped = False
        self.removing = 0
        """Streams whose files are being removed: before that has ended, the shards cannot be given to another."""

    def begin(self, name: bytes, done: OnResult, *, copy: bool = False) -> None:
        """Delete the stream; `done` gets {} or Refused. `copy`: because its upstream has deleted it."""
        try:
            self._require(name, copy=copy)
        except Refused as refused:
            done(refused)
            return
        self._owner.catalog.deleting.add(name)
        self._waiting.append(Deletion(name, done, copy))
        for stream in self._open_logs(name):
            stream.busy, stream.epoch = True, 0
        self.tick()

    def tick(self) -> None:
        """Go on with those whose logs have nothing under way any more."""
        waiting, self._waiting = self._waiting, []
        for deletion in waiting:
            if any(stream.syncing or stream.waiting for stream in self._open_logs(deletion.name)):
                self._waiting.append(deletion)
            else:
                self._remove(deletion)

    def stop(self) -> None:
        """Refuse the deletions that have not begun. Wait for `removing` to be 0 before the shards are given up."""
        self._stopped = True
        waiting, self._waiting = self._waiting, []
        for deletion in waiting:
            self._owner.catalog.deleting.discard(deletion.name)
            deletion.done(Refused(Code.UNAVAILABLE, BUSY_TEXT))

    def _require(self, name: bytes, *, copy: bool) -> None:
        """Raises Refused if the stream cannot be deleted now."""
        catalog, roles = self._owner.catalog, self._owner.roles
        if base_of(name) != name:
            raise Refused(Code.USAGE, "a stream of the broker's own goes with its stream; delete that")
        if name in catalog.deleting or self._stopped:
            raise Refused(Code.UNAVAILABLE, BUSY_TEXT)
        if name not in catalog.names:
            raise self._owner.unknown(name)
        if roles.role(name) is Role.SLAVE and not copy:
            raise Refused(Code.DISABLED, SLAVE_TEXT)
        if roles.role(name) is Role.DISABLED and name in self._owner.replicas.streams:
            raise Refused(Code.USAGE, FOLLOWED_TEXT)
        if any(stream.busy for stream in self._open_logs(name)) or name in roles.unwritten:
            raise Refused(Code.UNAVAILABLE, BUSY_TEXT)
        if len(catalog.deleting) >= DELETIONS_MAX:
            raise Refused(Code.OVERLOADED, f"{DELETIONS_MAX} streams are being deleted; try again in a moment")

    def _open_logs(self, name: bytes) -> list[OpenStream]:
        found = self._owner.catalog.open
        return [found[each] for each in (name, *self._owner.catalog.companions.of(name)) if each in found]

    def _remove(self, deletion: Deletion) -> None:
        owner, name = self._owner, deletion.name
        names = (name, *owner.catalog.companions.of(name))
        leads = not deletion.copy and owner.roles.role(name) is Role.MASTER
        epoch = self._next_epoch(names) if leads or deletion.copy else 0
        master = owner.catalog.directory.node_id if leads else ""
        stems = tuple([file_stem(each.decode()) for each in names])
        deleted = DeletedStream(name.decode(), epoch, master, stems, self._last_terms(name, epoch))
        metas = {each: owner.roles.metas[each] for each in names if each in owner.roles.metas}
        for each in names:
            self._forget(each)
        owner.drop(name)
        job = DeletionJob(owner, deleted)
        self.removing += 1
        self._syncer.request(job, SyncJob(lambda: self._removed(deletion, names, metas, deleted, job)))

    def _next_epoch(self, names: tuple[bytes, ...]) -> int:
        """A term above those of all messages that were in the stream and its companions."""
        owner = self._owner
        known = [owner.roles.epoch(each) for each in names]
        for each in names:
            try:
                known.append(owner.stream(each).log.last_epoch)
            except (Refused, StorageError, OSError) as error:
                log.warning("stream %r: its last term cannot be read, and is deleted: %s", each.decode(), error)
        return min(max(known) + 1, EPOCH_MAX)

    def _last_terms(self, name: bytes, epoch: int) -> History:
        """The last terms of a stream, before `epoch`: as they are written down if its messages cannot be read."""
        owner = self._owner
        try:
            history = history_of(owner, owner.stream(name))
        except (Refused, StorageError, OSError):
            history = owner.roles.meta(name).history
        return tuple([start for start in history if start.epoch < epoch])[-TERMS_KEPT:]

    def _removed(
        self,
        deletion: Deletion,
        names: tuple[bytes, ...],
        metas: dict[bytes, StreamMeta],
        deleted: DeletedStream,
        job: DeletionJob,
    ) -> None:
        owner, name = self._owner, deletion.name
        self.removing -= 1
        if job.failure is not None and not job.has_begun:
            owner.roles.metas.update(metas)
            for each in names:
                owner.catalog.add(each)
            owner.catalog.deleting.discard(name)
            deletion.done(Refused(Code.UNAVAILABLE, f"the stream could not be deleted: {job.failure.strerror}"))
            return
        if deleted.epoch:
            owner.catalog.deleted[name] = deleted._replace(stems=())
            self._bound_records(name)
        if deleted.master:
            history = deleted.next_history(deleted.master)
            owner.roles.metas[name] = StreamMeta(deleted.name, epoch=deleted.epoch, history=history)
        for each in names:
            owner.events.on_deleted(each)
        if job.failure is not None:  # it cannot be made again before the next start has removed its files
            log.error("stream %r is deleted, but not all its files: %s", deleted.name, job.failure)
        else:
            owner.catalog.deleting.discard(name)
        value: dict[str, Any] = {}
        deletion.done(value)

    def _bound_records(self, name: bytes) -> None:
        """A deletion may leave one record too many in its shard. The same thread writes a later role of that name."""
        owner = self._owner
        catalog = owner.catalog
        oldest = catalog.deleted.forget_oldest(shard_of(name, catalog.directory.shards))
        if oldest is None:
            return
        if oldest.master:
            owner.roles.metas.pop(oldest.name.encode(), None)
        self.removing += 1
        self._syncer.request(ForgettingJob(catalog.shard_path(name), oldest), SyncJob(self._forgotten))

    def _forgotten(self) -> None:
        self.removing -= 1
