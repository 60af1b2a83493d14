"""What a worker owns: the streams of its shards, and everything that is appended to them.

At most `max_open_streams` streams are open, the least recently used are closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from tailrace.broker.process.lease import (
    CLUSTER_CELL,
    LEASE_OVER_TEXT,
    LOGGED_WITHOUT_LEASE_TEXT,
    TOO_FEW_TEXT,
    Lease,
    boottime_ns,
)
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.process.settings import Durability, Settings
from tailrace.broker.replication.downstream.replicas import Replicas
from tailrace.broker.routing.batch import LonePart, StampableFrames, StreamBatch, UnsyncedBatch
from tailrace.broker.streams.catalog import StreamCatalog
from tailrace.broker.streams.collaborators import OwnerContext, OwnerEvents
from tailrace.broker.streams.deduplication import Admitted, Deduplication
from tailrace.broker.streams.disk_space import DiskSpace
from tailrace.broker.streams.growth_log import GrowthLog
from tailrace.broker.streams.open_stream import Grown as Grown
from tailrace.broker.streams.open_stream import Growth as Growth
from tailrace.broker.streams.open_stream import OpenStream as OpenStream
from tailrace.broker.streams.refused import Refused as Refused
from tailrace.broker.streams.roles import StreamRoles
from tailrace.broker.streams.sync_schedule import SyncSchedule
from tailrace.protocol.errors import Code
from tailrace.protocol.names import shown
from tailrace.protocol.topics import filter_fault, has_wildcards
from tailrace.shard.admission import StampBounds
from tailrace.shard.deletion import DeletedStream
from tailrace.shard.directory import DataDirectory
from tailrace.shard.epochs import EPOCH_LEAP_MAX, EpochStart
from tailrace.shard.errors import StorageError, StorageFull, peer_text
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.meta import Role
from tailrace.shard.names import base_of, group_key, is_never_copied, new_name_fault

if TYPE_CHECKING:
    from tailrace.broker.replication.roles.role_writer import RoleWriter
    from tailrace.broker.routing.route import Route

log = logging.getLogger(__name__)

REPLICAS_FULL_TEXT = "too many publishes to this stream wait for other nodes to hold them"
UNWRITTEN_TEXT = "what this node is to the stream is being written down; nothing of this was logged, try again"
DELETING_TEXT = "the stream is being deleted; nothing of this was logged, try again to make it anew"
UNKNOWN_TEXT = "no such stream here; the first publish makes it"
FILTER_TEXT = "no such stream here; {fault}"
TOPIC_TEXT = "no such stream here; {name} is a topic of the stream {stream}: give that name"
AHEAD_MAX_US = 3_600_000_000  # of this machine's clock, in the timestamps of a master
BATCHES_A_BEAT = 256  # a turn may make tens of thousands of streams, which takes longer than a silent worker may live
FRESH_BYTES_MAX = 64 << 10  # of frames from a master: readers that wait for more of them read the file

FILES_BYTES = 2 * HEADER_PAGE_BYTES  # of a stream without messages

_new_tuple = tuple.__new__  # without the Python function that a NamedTuple has


def require_memory_is_enough(batch: StreamBatch) -> None:
    """Raises Refused if a publish to a stream in memory is to be on a disk, or on other nodes."""
    if batch.sync or batch.replicas:
        raise Refused(Code.UNSUPPORTED, "this stream is in memory: its messages are on no disk and on no other node")


def require_new_name(name: bytes) -> None:
    """Raises Refused if no new stream may have this name; old ones and those of other nodes may."""
    if fault := new_name_fault(name.decode()):
        raise Refused(Code.NAME, f"no new stream may have a name {fault}; choose another")


class Owner:
    """One per worker. Appends to the streams of its shards, with the help of the other parts.

    `catalog`: locks, names, open streams. `roles`: the role of this node for each stream. `syncs`: which streams to
    sync, and when.
    space: the bounds on the disk space of the node, and on its streams in memory.
    replicas: what other nodes hold. numbered: publishes that their producers have numbered.
    uproutes: of slaved streams, the route of their publishes to the master.
    """

    def __init__(
        self,
        directory: DataDirectory,
        slot: int,
        slots: int,
        settings: Settings,
        boot_id: str,
        metrics: WorkerMetrics,
        *,
        total_streams: Callable[[], int],
        clock_us: Callable[[], int],
        events: OwnerEvents,
        context: OwnerContext,
        lease: Lease,
        role_writer: RoleWriter | None = None,
    ) -> None:
        """Without `role_writer` roles are on the disk before `set_meta` returns."""
        self.settings = settings
        self.metrics = metrics
        self.clock_us = clock_us
        self.events = events
        self.context = context
        self._total_streams = total_streams
        self.catalog = StreamCatalog(directory, slot, slots, boot_id, metrics)
        self.roles = StreamRoles(self.catalog, settings, events, role_writer)
        self.syncs = SyncSchedule(settings.async_sync_s)
        self.space = DiskSpace(settings, directory, metrics, context.share_bytes)
        self.replicas = Replicas(
            settings.replication_timeout_s,
            lambda name: context.subscribers(name),
            lambda name: events.on_held(name),
            self._on_awaited,
            lease,
            lambda: filter(self._is_copied, self.catalog.names),
            self._is_copied,
        )
        self.numbered = Deduplication(
            self.catalog.shard_path,
            settings.producer_expiry_s,
            settings.max_producer_bytes,
            lambda: events.on_pause(),
        )
        self.grown: Grown = {}  # since the last `take_grown`
        self.growth_log = GrowthLog(boot_id)
        self.uproutes: dict[bytes, Route] = {}

    # --- the shards -------------------------------------------------------------------------------------------------

    def take(self) -> None:
        """Lock the shards; read the names and roles of their streams, and the node's rules.

        Raises ShardLocked if another process does not let go, DirectoryError for a damaged file of rules.
        """
        self.roles.read_rules()
        self.catalog.lock()
        self.roles.read_metas()
        self.syncs.unsynced_due_s = 0.0  # what a predecessor left unsynced has nobody else to sync it

    def close_logs(self) -> None:
        for stream in self.catalog.open.values():
            self._close(stream)
        self.catalog.open.clear()

    def release(self) -> None:
        """Close every log and release the locks; a successor may take them at once."""
        self.replicas.refuse_all()
        self.close_logs()
        self.catalog.unlock()

    # --- publishing -------------------------------------------------------------------------------------------------

    def append(self, batch: StreamBatch, now_s: float) -> None:
        """Append one batch and answer its publishes; under `always` once it is synced."""
        try:
            stream = self.catalog.open.get(batch.name)
            if stream is None:
                stream = self._for_publish([batch])
            else:
                self.catalog.open.move_to_end(batch.name)
            if stream.epoch == 0 and not self._begins_now(stream):
                self._append_elsewhere(batch)
                return
            if self.replicas.lease.cells[CLUSTER_CELL]:
                self._require_lease(stream)
            if batch.replicas:
                self.require_replicas(batch.name, batch.replicas)
            if stream.in_memory:
                require_memory_is_enough(batch)
            if self.syncs.failed:
                self._require_sound(stream, batch.sync, now_s)
            if self.space.is_met:
                self.space.require(batch.name, batch.count)
            frames = batch.take_frames()
            first_seq = stream.log.append(frames, batch.count, self.clock_us(), stream.epoch)
        except Refused as refused:
            batch.refused(refused.code, refused.text)
            return
        except StorageFull as full:
            self.catalog.full_disk.note(full)
            batch.refused(Code.FULL, peer_text(full))
            return
        except OSError as error:
            log.error("cannot append to stream %r: %s", batch.name, error)
            batch.refused(Code.UNAVAILABLE, f"the disk refused this: {error.strerror}; nothing of it was logged")
            return
        self.grown[batch.name] = Growth(first_seq, first_seq + batch.count, stream.log.end_offset, frames)
        if self.space.is_watched:
            self.space.grew(batch.name, len(frames), batch.count)
        if not stream.sync_due_s:
            self.syncs.add(stream, now_s)
        if stream.producers is not None:
            self.numbered.grew(stream)
        if batch.sync or stream.policy.durability is Durability.ALWAYS:
            self._wait_for_sync(stream, batch, first_seq)
        elif batch.parts:
            self._logged(batch, first_seq)

    def _wait_for_sync(self, stream: OpenStream, batch: StreamBatch, first_seq: int) -> None:
        stream.waiting.append((UnsyncedBatch(batch, self._logged), 0, batch.count, first_seq))
        self.syncs.urgent.append(stream)

    def _require_lease(self, stream: OpenStream) -> None:
        """Raises Refused if the lease of this node is over. A stream in memory is each node's own, and needs none."""
        lease = self.replicas.lease
        if not stream.in_memory and lease.is_over(stream.group_key):
            raise Refused(Code.UNAVAILABLE, LEASE_OVER_TEXT)

    def append_parts(self, parts: Mapping[bytes, LonePart], now_s: float) -> list[bytes]:
        """Append each of these alone, if its stream is open and takes it as it is.

        The sinks are notified of the outcomes, under `always` once it is synced. Returns the streams of which nothing
        was done: `append` theirs as batches. With a stream for each publisher this is most of a turn.
        """
        if self.syncs.failed:
            return list(parts)
        lease = self.replicas.lease if self.replicas.lease.cells[CLUSTER_CELL] else None
        ends, groups = (lease.ends, lease.groups) if lease is not None else (None, 1)
        space, open_streams, uproutes, grown = self.space, self.catalog.open, self.uproutes, self.grown
        now_us, subscribers, metrics, syncs = self.clock_us(), self.context.subscribers, self.metrics, self.syncs
        lease_now_ns = boottime_ns() if lease is not None else 0
        left: list[bytes] = []
        for place, (name, (sink, key, messages, frames)) in enumerate(parts.items(), start=1):
            if not place % BATCHES_A_BEAT:
                self.events.on_pause()
                lease_now_ns = boottime_ns() if lease is not None else 0
            stream = open_streams.get(name)
            if stream is None or not stream.epoch or name in uproutes or space.is_met:
                left.append(name)
                continue
            if ends is not None and lease_now_ns >= ends[stream.group_key % groups] and not stream.in_memory:
                left.append(name)
                continue
            open_streams.move_to_end(name)
            stream_log = stream.log
            try:
                first_seq = stream_log.append(frames, messages, now_us, stream.epoch)
            except (StorageFull, OSError) as error:
                refused = self._append_failed(stream, error)
                sink.refused(key, refused.code, refused.text)
                continue
            grown[name] = _new_tuple(Growth, (first_seq, first_seq + messages, stream_log.end_offset, frames))
            metrics.appended_messages += messages
            metrics.appended_bytes += len(frames)
            if space.is_watched:
                space.grew(name, len(frames), messages)
            if stream.producers is not None:
                self.numbered.grew(stream)
            if stream.is_synced_always:
                stream.waiting.append((sink, key, messages, first_seq))
                syncs.urgent.append(stream)
                continue
            if not stream.sync_due_s:
                syncs.add(stream, now_s)
            sink.published(key, first_seq, subscribers(name) if sink.wants_subscribers else 0)
        return left

    def _append_failed(self, stream: OpenStream, error: StorageFull | OSError) -> Refused:
        if isinstance(error, StorageFull):
            self.catalog.full_disk.note(error)
            return Refused(Code.FULL, peer_text(error))
        log.error("cannot append to stream %r: %s", stream.name, error)
        return Refused(Code.UNAVAILABLE, f"the disk refused this: {error.strerror}; nothing of it was logged")

    def append_row(self, batches: list[StreamBatch], now_s: float) -> None:
        """Append batches of one stream, in their order, with one write; of numbered ones the messages that are not
        logged.

        Each is answered as by `append`. A batch that is logged already gets the answer that it would have had then.
        """
        stream = self._stream_here(batches)
        if stream is None:
            return
        start = seq = stream.log.next_seq
        now_us = max(self.clock_us(), stream.log.last_timestamp_us)
        row: list[tuple[StreamBatch, int]] = []
        pieces: list[StampableFrames] = []
        for batch in batches:
            for each, admitted in self._admit(stream, batch, seq, now_us, now_s):
                row.append((each, admitted.first_seq))
                seq += admitted.messages
                pieces += admitted.pieces
        failure = self._write(stream, pieces, seq - start, now_us, now_s) if pieces else None
        for batch, first_seq in row:
            if failure is not None and first_seq + batch.count > start:
                batch.refused(failure.code, failure.text)
            else:
                self._settle(stream, batch, first_seq)

    def _stream_here(self, batches: list[StreamBatch]) -> OpenStream | None:
        """The open stream that these batches go to; None if they were refused, or belong to another node."""
        name = batches[0].name
        try:
            stream = self.catalog.open.get(name)
            if stream is None:
                stream = self._for_publish(batches)
            else:
                self.catalog.open.move_to_end(name)
            if stream.epoch != 0 or self._begins_now(stream):
                if self.replicas.lease.cells[CLUSTER_CELL]:
                    self._require_lease(stream)
                return stream
            for batch in batches:
                for each in batch.apart() if batch.numbered else (batch,):
                    self._append_elsewhere(each)
        except Refused as refused:
            for batch in batches:
                batch.refused(refused.code, refused.text)
        return None

    def _admit(
        self, stream: OpenStream, batch: StreamBatch, seq: int, now_us: int, now_s: float
    ) -> Iterable[tuple[StreamBatch, Admitted]]:
        """The batches to append as message `seq` and on, with their new pieces; the others have their answers."""
        if self.syncs.failed or stream.in_memory or batch.replicas:
            try:
                if batch.replicas:
                    self.require_replicas(batch.name, batch.replicas)
                if stream.in_memory:
                    require_memory_is_enough(batch)
                self._require_sound(stream, batch.sync, now_s)
            except Refused as refused:
                batch.refused(refused.code, refused.text)
                return ()
        refusal = self._space_refusal(batch) if self.space.is_met else None
        if batch.numbered:
            return self.numbered.admit(stream, batch, seq, now_us, refusal)
        if refusal is not None:
            batch.refused(refusal.code, refusal.text)
            return ()
        return ((batch, Admitted(seq, batch.count, batch.take_pieces())),)

    def require_replicas(self, name: bytes, replicas: int) -> None:
        """Raises Refused if too few nodes are in sync, or too many batches of the stream wait for other nodes."""
        if self.replicas.full(name):
            raise Refused(Code.OVERLOADED, REPLICAS_FULL_TEXT)
        others = self.replicas.lease.others_for(name)
        if others is not None and len(others) < replicas:
            raise Refused(Code.UNAVAILABLE, TOO_FEW_TEXT.format(isr=len(others) + 1, asked=replicas))

    def _is_copied(self, name: bytes) -> bool:
        """Whether other nodes copy a stream."""
        return not is_never_copied(name) and not self.catalog.directory.is_in_memory(name)

    def _on_awaited(self, name: bytes) -> None:
        """Publishes begin or cease to wait for copies. No stream is opened for that: copies then report too often."""
        if name in self.catalog.open:
            self.events.on_path(name)

    def _space_refusal(self, batch: StreamBatch) -> Refused | None:
        try:
            self.space.require(batch.name, batch.count)
        except Refused as refused:
            return refused
        return None

    def _require_sound(self, stream: OpenStream, to_sync: bool, now_s: float) -> None:
        """Raises Refused if a failed sync of the stream keeps it from taking this."""
        to_sync = to_sync or stream.policy.durability is Durability.ALWAYS
        if text := self.syncs.failed.refusal(stream.name, to_sync, now_s):
            raise Refused(Code.UNAVAILABLE, text)

    def _write(
        self, stream: OpenStream, pieces: list[StampableFrames], messages: int, now_us: int, now_s: float
    ) -> Refused | None:
        """Append the frames; gives the error if none could be appended."""
        frames = pieces[0] if len(pieces) == 1 else bytearray(b"").join(pieces)
        try:
            first_seq = stream.log.append(frames, messages, now_us, stream.epoch)
        except (StorageFull, OSError) as error:
            self.numbered.forget(stream)  # they were taken for appended
            return self._append_failed(stream, error)
        self.grown[stream.name] = Growth(first_seq, first_seq + messages, stream.log.end_offset, frames)
        if self.space.is_watched:
            self.space.grew(stream.name, len(frames), messages)
        if not stream.sync_due_s:
            self.syncs.add(stream, now_s)
        self.numbered.grew(stream)
        return None

    def _settle(self, stream: OpenStream, batch: StreamBatch, first_seq: int) -> None:
        """A batch of a row is in the log: answer its parts now, or when it is on the disk."""
        to_sync = batch.sync or stream.policy.durability is Durability.ALWAYS
        if to_sync and first_seq + batch.count > stream.log.durable.seq:
            self._wait_for_sync(stream, batch, first_seq)
        elif batch.parts:
            self._logged(batch, first_seq)

    def _logged(self, batch: StreamBatch, first_seq: int) -> None:
        """The batch is logged here as well as it is to be."""
        if batch.replicas:
            meta = self.roles.metas.get(batch.name) if batch.numbered else None
            self.replicas.wait(batch, first_seq, begin_seq=meta.term_seq if meta else 0)
        else:
            batch.published(first_seq, self.context.subscribers(batch.name))

    def _begins_now(self, stream: OpenStream) -> bool:
        """Whether a stream that took no messages when it was opened takes them now. Raises Refused."""
        if stream.name in self.roles.reborn:
            self._begin(stream)
        return stream.epoch != 0

    def _append_elsewhere(self, batch: StreamBatch) -> None:
        """This node is not the stream's master, or not yet."""
        if batch.name in self.roles.unwritten:
            raise Refused(Code.UNAVAILABLE, UNWRITTEN_TEXT)
        if base_of(batch.name) in self.catalog.deleting:
            raise Refused(Code.UNAVAILABLE, DELETING_TEXT)
        if self.roles.role(batch.name) is not Role.SLAVE:
            raise Refused(Code.DISABLED, "this stream is disabled here; an administrator can make it a master")
        self.context.send_up(batch)

    def take_frames(self, name: bytes, pieces: Sequence[memoryview], now_s: float) -> OpenStream:
        """Append frames that the master of a slaved stream has stamped. Raises FramesRefused, Refused, StorageFull,
        OSError: `StreamLog.take` describes which frames are appended then.

        The frames are the caller's; a small run of them is kept for readers that wait for it in this turn.
        """
        stream = self.stream(name)
        if stream.unwritten and self.roles.role(name) is not Role.SLAVE:
            raise Refused(Code.UNAVAILABLE, UNWRITTEN_TEXT)
        if self.syncs.failed and (text := self.syncs.failed.refusal(name, False, now_s)):
            raise Refused(Code.UNAVAILABLE, text)
        self.space.require_for_copy(name)
        first_seq, start_offset = stream.log.next_seq, stream.log.end_offset
        found = stream.log
        latest_us = max(self.clock_us() + AHEAD_MAX_US, found.last_timestamp_us)
        bounds = StampBounds(latest_us, max(self.roles.epoch(name), found.last_epoch) + EPOCH_LEAP_MAX)
        try:
            found.take(*pieces, bounds=bounds)
        except StorageFull as full:
            self.catalog.full_disk.note(full)
            raise
        finally:
            if stream.log.next_seq > first_seq:
                self._took(stream, first_seq, start_offset, pieces, now_s)
        return stream

    def _took(
        self, stream: OpenStream, first_seq: int, start_offset: int, pieces: Sequence[memoryview], now_s: float
    ) -> None:
        """The log has taken these pieces, or some of them, the first ones."""
        next_seq, end_offset = stream.log.next_seq, stream.log.end_offset
        size, taken = end_offset - start_offset, list(pieces)
        while sum(map(len, taken)) > size:
            taken.pop()
        if size <= FRESH_BYTES_MAX:
            self.grown[stream.name] = Growth(first_seq, next_seq, end_offset, bytearray().join(taken))
        else:
            self.grown[stream.name] = Growth(next_seq, next_seq, end_offset, bytearray())
        if not stream.sync_due_s:
            self.syncs.add(stream, now_s)
        self.numbered.took(stream, taken, self.clock_us())
        self.numbered.grew(stream)
        if stream.policy.durability is Durability.ALWAYS:
            self.syncs.urgent.append(stream)
        self.metrics.appended_messages += next_seq - first_seq
        self.metrics.appended_bytes += size
        if self.space.is_watched:
            self.space.grew(stream.name, size, next_seq - first_seq)

    def open_for(self, batch: StreamBatch) -> bool:
        """Open the stream of a batch, or make it; if this is False, the batch was refused."""
        try:
            self._for_publish([batch])
        except Refused as refused:
            batch.refused(refused.code, refused.text)
            return False
        return True

    def _for_publish(self, batches: Sequence[StreamBatch]) -> OpenStream:
        """Raises Refused."""
        name = batches[0].name
        if name not in self.catalog.names:
            creator = next((creator for batch in batches if (creator := batch.creator()) is not None), None)
            if creator is None:
                raise batches[0].creation_refusal()
            require_new_name(name)
            in_memory = self.catalog.directory.is_in_memory(name)
            if not in_memory and self.replicas.lease.is_over_for(name) and self.roles.role(name) is Role.MASTER:
                raise Refused(Code.UNAVAILABLE, LEASE_OVER_TEXT)
            self.space.look_now()
            self.space.require(name, sum(batch.count for batch in batches))
            self.create(name)
            creator.count_created()
        return self.stream(name)

    # --- streams ----------------------------------------------------------------------------------------------------

    def create(self, name: bytes, *, by_command: bool = False, is_copy: bool = False) -> None:
        """Make a stream that is not known here, and the one whose companion it is. Raises Refused.

        Its name may be one that `require_new_name` refuses: another node has made it. `is_copy`: it is about to follow
        another node, and begins no term here, even after a deletion.
        """
        base = base_of(name)
        if base in self.catalog.deleting:
            raise Refused(Code.UNAVAILABLE, DELETING_TEXT)
        if base != name and base not in self.catalog.names:
            self.create(base, by_command=by_command)
        if not by_command and not self.settings.auto_master:
            raise Refused(Code.DISABLED, "no such stream, and this node makes none by itself; an administrator can")
        if self._total_streams() >= self.settings.max_streams:
            raise Refused(Code.NODESTREAMS, f"this node has {self.settings.max_streams} streams, which is its limit")
        self._open(name)
        if self.space.is_watched:
            self.space.grew(name, FILES_BYTES, 0)
        deleted = self.catalog.deleted.before(name)
        self.catalog.add(name)
        if deleted is not None and not is_copy:
            self._begin_after(name, deleted)
        term = self.replicas.lease.term(group_key(name))
        if term > 1 and base == name and not is_copy:
            self._begin_in(name, term)
        self.events.on_create()
        self.events.on_role(name)

    def _begin_after(self, name: bytes, deleted: DeletedStream) -> None:
        """A copy of this name was deleted here: a term that this node begins is later. Raises Refused."""
        meta = self.roles.meta(name)
        if deleted.epoch > meta.epoch and meta.role is Role.SLAVE:
            self.roles.set_meta(replace(meta, not_before=deleted.epoch))
        elif deleted.epoch > meta.epoch:
            history = deleted.next_history(self.catalog.directory.node_id)
            self.roles.set_meta(replace(meta, epoch=deleted.epoch, history=history))

    def _begin_in(self, name: bytes, epoch: int) -> None:
        """If this node makes a stream, its messages are of the term of the node's lease. Raises Refused."""
        meta = self.roles.meta(name)
        if epoch > meta.epoch and meta.role is Role.MASTER and not self.catalog.directory.is_in_memory(name):
            history = (EpochStart(epoch, 0, self.catalog.directory.node_id),)
            self.roles.set_meta(replace(meta, epoch=epoch, history=history))

    def stream(self, name: bytes) -> OpenStream:
        """The open stream, opened if need be. Raises Refused (`unknown`, `damaged`, `full`, `unavailable`)."""
        stream = self.catalog.open.get(name)
        if stream is not None:
            self.catalog.open.move_to_end(name)
            return stream
        if name not in self.catalog.names:
            raise self.unknown(name)
        return self._open(name)

    def unknown(self, name: bytes) -> Refused:
        """The refusal for a stream that does not exist; of a topic's name it says which stream was meant, and of a name
        that no new stream can have why it is not a topic filter either.
        """
        stream = self.context.home(name)
        text = UNKNOWN_TEXT if stream == name else TOPIC_TEXT.format(name=shown(name), stream=shown(stream))
        if has_wildcards(name) and (fault := filter_fault(name)):
            text = FILTER_TEXT.format(fault=fault)
        return Refused(Code.UNKNOWN, text)

    def _open(self, name: bytes) -> OpenStream:
        """Open or make. Raises Refused."""
        if name in self.syncs.failed:
            self._put_back(name)
        stream_log = self.catalog.open_log(name)
        stream = OpenStream(name, stream_log, self.roles.open_epoch(name), self.settings.policy(name.decode()))
        stream.unwritten = name in self.roles.unwritten
        self.catalog.open[name] = stream
        if stream.in_memory:
            self.space.rings.add(stream)
        if stream_log.new_boot:
            self.roles.reborn.add(name)
        if stream_log.sync_failed_seq is not None:
            self._opened_unsound(stream)
        if self.roles.role(name) is Role.MASTER and self.context.asks_first(name):
            self.roles.hold(name)
        elif name in self.roles.reborn and self.replicas.lease.is_over_for(name):
            stream.epoch = 0  # the next publish with a lease begins its term
        else:
            self._try_to_begin(stream)
        self._close_least_used()
        return stream

    def _put_back(self, name: bytes) -> None:
        try:
            self.context.put_back(name)
        except OSError as error:
            raise Refused(Code.UNAVAILABLE, f"this stream cannot be opened: {peer_text(error)}") from error

    def let_begin(self, name: bytes) -> None:
        """Other nodes were asked about a stream that `asks_first`: the role of this node is valid from now on."""
        self.roles.release(name)
        stream = self.catalog.open.get(name)
        if stream is not None:
            self._try_to_begin(stream)
        self.roles.announce(name)

    def _try_to_begin(self, stream: OpenStream) -> None:
        try:
            self._begin(stream)
        except Refused as refused:
            stream.epoch = 0  # it can be read, and trimmed; a publish tries again
            log.error("stream %r takes no messages now: %s", stream.name.decode(), refused.text)

    def _opened_unsound(self, stream: OpenStream) -> None:
        """A sync of it has failed, here or in a worker before this one."""
        self.syncs.failed.found(stream.name)
        if stream.log.lost_messages:
            text = (
                "stream %r lost %d messages from %d on: a failed sync left them unreadable, %d bytes are in its .torn"
            )
            log.error(text, stream.log.name, stream.log.lost_messages, stream.log.next_seq, stream.log.torn_bytes)
            self.syncs.lost_ends.append((stream.name, stream.log.next_seq))

    def _begin(self, stream: OpenStream) -> None:
        """See to what must be on the disk before a message is taken. Raises Refused."""
        try:
            self.events.on_open(stream)
        except (StorageError, OSError) as error:
            raise Refused(Code.UNAVAILABLE, f"this stream takes no messages: {peer_text(error)}") from error

    def forget(self, stream: OpenStream) -> None:
        """Have a stream opened anew when it is needed next."""
        if self.catalog.open.get(stream.name) is stream:
            del self.catalog.open[stream.name]
            self._close(stream)

    def drop(self, name: bytes) -> None:
        """A stream and its companions are deleted; their logs, if open, are idle. Their files may still be there."""
        for each in (*self.catalog.companions.of(name), name):
            stream = self.catalog.open.pop(each, None)
            if stream is not None:
                self.numbered.forget(stream)
                self._close(stream)
            self.syncs.unsynced.discard(each)
            self.syncs.failed.mended(each)
            self.grown.pop(each, None)
            self.replicas.drop(each, DELETING_TEXT)
            self.roles.drop(each)
        self.catalog.drop(name)

    def trim(self, stream: OpenStream, seq: int) -> None:
        """Drop the messages before `seq`. Raises Refused, StorageError, OSError."""
        if stream.busy:
            raise Refused(Code.UNAVAILABLE, "the end of this stream is being set aside; try again in a moment")
        self.context.require_kept(stream.name, seq)
        dropped = seq - stream.log.first_seq
        stream.log.trim(seq)
        self.events.on_trim(stream, dropped)

    def _close_least_used(self) -> None:
        excess = len(self.catalog.open) - self.settings.max_open_streams
        for name in list(islice(self.catalog.open, max(excess, 0))):
            stream = self.catalog.open[name]
            if stream.idle:
                del self.catalog.open[name]
                self._close(stream)

    def _close(self, stream: OpenStream) -> None:
        self.space.rings.remove(stream.name)
        self.syncs.remove(stream)
        self.numbered.save(stream)
        self.numbered.forget(stream)
        try:
            stream.log.close()
        except OSError as error:
            log.error("stream %r was not closed cleanly: %s", stream.name, error)

    def take_grown(self) -> Grown:
        grown, self.grown = self.grown, {}
        if self.space.rings.streams:
            self.space.rings.grew(grown, self.trim)
        if self.growth_log.begun_ns:
            self.growth_log.note(grown)
        return grown

    def note_cut(self, name: bytes) -> None:
        """The stream has lost its end."""
        self.replicas.cut(name)
        self.growth_log.note([name])

    def batches_synced(self, stream: OpenStream, upto: int, error: OSError | StorageError | None) -> None:
        """Answer all that ended before seq `upto` and waited for the disk."""
        waiting, stream.waiting = stream.waiting, []
        lease = self.replicas.lease
        text = LOGGED_WITHOUT_LEASE_TEXT if lease.cells[CLUSTER_CELL] and lease.is_over(stream.group_key) else ""
        if error is not None:
            text = f"logged, but the disk refused to sync it: {peer_text(error)}"
        subscribers = self.context.subscribers
        for each in waiting:
            sink, key, messages, first_seq = each
            if text:
                sink.refused(key, Code.UNAVAILABLE, text)
            elif first_seq + messages <= upto:
                sink.published(key, first_seq, subscribers(stream.name) if sink.wants_subscribers else 0)
            else:
                stream.waiting.append(each)
