"""The shards of a worker on the disk: their locks, the names of their streams, and which of these are open or damaged.

All streams are known by name; only some are open. A stream that is not open is one dictionary entry. Opening is where
damage shows: that stream refuses with `damaged` from then on, the others work.
"""

from __future__ import annotations

import heapq
import logging
import time
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.replication.roles.internal_streams import InternalStreams
from tailrace.broker.streams.deleted_records import DeletedRecords, finish_deletions
from tailrace.broker.streams.full_disk import FullDiskLog
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.catalog import stream_names
from tailrace.shard.deletion import forget_deleted
from tailrace.shard.directory import DataDirectory
from tailrace.shard.errors import StorageError, StorageFull, StreamDamaged, peer_text
from tailrace.shard.lock import ShardLock, lock_shard
from tailrace.shard.log import StreamLog
from tailrace.shard.names import base_of, is_reserved, shard_of

log = logging.getLogger(__name__)

LOCK_PATIENCE_S = 5.0  # a predecessor that is leaving gives its locks back well within this


AFTER_RESERVED = b"%"  # the first byte after the `$` of the broker's own streams
END_OF_NAMES = b"\xff"  # in no UTF-8


class StreamCatalog:
    """One per owner: the shards `slot`, `slot + slots`, ... of the data directory.

    open: open streams, the least recently used first.
    deleted: streams that were deleted, with the term in which one of that name begins. deleting: those whose files are
    being removed, which takes a moment, and cannot be made again before that.
    incarnation: no other owner of these shards has the same while the node runs; another one after a deletion.
    """

    def __init__(self, directory: DataDirectory, slot: int, slots: int, boot_id: str, metrics: WorkerMetrics) -> None:
        self.directory = directory
        self.boot_id = boot_id
        self.shards = list(range(slot, directory.shards, slots))
        self.owning = False
        self.incarnation = time.monotonic_ns()
        self.names: dict[bytes, None] = {}
        self._sorted: dict[int, list[bytes]] = {}  # the same by shard, which keeps the cost of a new name small
        self.companions = InternalStreams()
        self.damaged: dict[bytes, StreamDamaged] = {}
        self.deleted = DeletedRecords(directory)
        self.deleting: set[bytes] = set()
        self.open: OrderedDict[bytes, OpenStream] = OrderedDict()
        self.full_disk = FullDiskLog(directory.path)
        self._metrics = metrics
        self._locks: list[ShardLock] = []

    def lock(self) -> None:
        """Lock the shards and read their streams' names. Raises ShardLocked if another process does not let go."""
        deadline_s = time.monotonic() + LOCK_PATIENCE_S
        for shard in self.shards:
            path = self.directory.shard_path(shard)
            self._locks.append(lock_shard(path, deadline_s))
            records = finish_deletions(path)
            self._sorted[shard] = sorted(name.encode() for name in self._names_in(shard, path))
            self.names.update(dict.fromkeys(self._sorted[shard]))
            self.deleted.keep(shard, [each for each in records if each.name.encode() not in self.names])
        self.companions.note(self.names)
        self.owning = True

    def _names_in(self, shard: int, path: Path) -> Iterator[str]:
        memory = self.directory.memory
        for name in stream_names(path):
            if memory is None or not memory.holds(name.encode()):
                yield name
            else:
                log.warning("stream %r is in memory by the configuration: its files in %s are not used", name, path)
        if memory is not None:
            yield from (name for name in stream_names(memory.shard_path(shard)) if memory.holds(name.encode()))

    def unlock(self) -> None:
        """Release the locks; a successor may take them at once."""
        self.owning = False
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def shard_path(self, name: bytes) -> Path:
        """The folder of the stream's files."""
        return self.directory.stream_path(name)

    def add(self, name: bytes) -> None:
        """There is a new stream."""
        if name not in self.names:
            insort(self._sorted.setdefault(shard_of(name, self.directory.shards), []), name)
        self.names[name] = None
        self.companions.note([name])
        if self.deleted.pop(name, None) is not None:
            forget_deleted(self.shard_path(name), name.decode())

    def drop(self, name: bytes) -> None:
        """A stream and its companions are no more."""
        for each in (*self.companions.of(name), name):
            if each in self.names:
                del self.names[each]
                found = self._sorted[shard_of(each, self.directory.shards)]
                del found[bisect_left(found, each)]
            self.damaged.pop(each, None)
        self.companions.drop(name)
        self.incarnation = time.monotonic_ns()  # who has read the names up to some place reads them again

    @property
    def names_version(self) -> int:
        """Another number after each stream that is made or deleted."""
        return self.incarnation + len(self.names)

    def names_after(self, prefix: bytes, after: bytes) -> Iterator[bytes]:
        """The names that begin with `prefix` and come after `after`, in the order of their bytes.

        The broker's own streams and companions are left out unless the prefix has a `$`. A name costs microseconds,
        however many there are before it.
        """
        own = b"$" in prefix
        ends = ((prefix, END_OF_NAMES),) if own else ((prefix, b"$"), (max(prefix, AFTER_RESERVED), END_OF_NAMES))
        for start, end in ends:
            for name in self._between(start, after, end):
                if not name.startswith(prefix):
                    break
                if own or base_of(name) == name:
                    yield name

    def is_listed(self, name: bytes, prefix: bytes) -> bool:
        """Whether `names_after` has this name of a stream for the prefix."""
        is_own = is_reserved(name) or base_of(name) != name
        return name.startswith(prefix) and (b"$" in prefix or not is_own)

    def _between(self, start: bytes, after: bytes, end: bytes) -> Iterator[bytes]:
        """The names from `start` on, after `after` and before `end`."""
        return heapq.merge(*[_slice(names, start, after, end) for names in self._sorted.values()])

    def open_log(self, name: bytes) -> StreamLog:
        """Open a stream's files, or make them: those of a known stream may be missing, if its making was interrupted.

        Raises Refused.
        """
        if not self.owning:
            raise Refused(Code.UNAVAILABLE, "this worker does not own the stream; nothing of this was logged")
        if name in self.damaged:
            raise Refused(Code.DAMAGED, peer_text(self.damaged[name]))
        text = name.decode()
        try:
            opened = StreamLog.open(self.shard_path(name), text, create=True, boot_id=self.boot_id)
        except StreamDamaged as damage:
            self.note_damage(name, damage)
            raise Refused(Code.DAMAGED, peer_text(damage)) from damage
        except StorageFull as full:
            self.full_disk.note(full)
            raise Refused(Code.FULL, peer_text(full)) from full
        except (OSError, StorageError) as error:
            log.error("cannot open stream %r: %s", text, error)
            raise Refused(Code.UNAVAILABLE, f"this stream cannot be opened: {peer_text(error)}") from error
        self._metrics.note_losses(text, opened.lost_messages, opened.torn_bytes)
        return opened

    def note_damage(self, name: bytes, damage: StreamDamaged) -> None:
        """Remember that a stream is damaged: it refuses until the node is restarted after a repair."""
        if name not in self.damaged:
            log.error("stream refused: %s", damage)
            self._metrics.damaged_streams += 1
            self.damaged[name] = damage


def _slice(names: list[bytes], start: bytes, after: bytes, end: bytes) -> Iterator[bytes]:
    begin = max(bisect_left(names, start), bisect_right(names, after))
    return (names[index] for index in range(begin, bisect_left(names, end)))
