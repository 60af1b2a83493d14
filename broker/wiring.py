"""How an owner of streams reaches the other parts of its worker, most of which are built after it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.lag_scanner import LagScanner
from tailrace.broker.delivery.fanout import FanOut
from tailrace.broker.last.last_values import LastValues
from tailrace.broker.process.timers import now_us
from tailrace.broker.process.work import WorkQueue
from tailrace.broker.replication.downstream.registry import FollowerRegistry
from tailrace.broker.replication.roles.stream_roles import begin_after_boot
from tailrace.broker.replication.status.lag import stat_of_upstream
from tailrace.broker.replication.upstream.manager import UpstreamManager
from tailrace.broker.routing.batch import StreamBatch
from tailrace.broker.routing.worker_links import WorkerLinks
from tailrace.broker.sessions.store import SessionStore
from tailrace.broker.streams.deletion import Deletions
from tailrace.broker.streams.maintenance import Maintenance
from tailrace.broker.streams.open_stream import OpenStream
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.refused import Refused


class WorkerParts(Protocol):
    """What an owner needs of its worker."""

    owner: Owner
    desk: Coordinator
    last_values: LastValues
    sessions: SessionStore
    work: WorkQueue
    fanout: FanOut
    patrol: LagScanner
    upkeep: Maintenance
    uplinks: UpstreamManager
    siblings: WorkerLinks
    followers: FollowerRegistry
    deletions: Deletions

    def announce(self) -> None:
        """Notify subscribers, here and at the other workers, of the growth of streams."""

    def share_bytes(self, nbytes: int, is_whole: bool, /) -> int:
        """See `OwnerContext.share_bytes`."""

    def home(self, name: bytes, /) -> bytes:
        """See `OwnerContext.home`."""

    def pause(self) -> None:
        """In the middle of something long: the worker is not hung."""

    def count_streams(self) -> None:
        """The number of this worker's streams has changed; the others read it."""


def readers_of(worker: WorkerParts) -> tuple[Callable[[bytes], bool], Callable[[], bool]]:
    """Whether a stream that lives at a worker is read, here or at others; and whether all are watched."""

    def is_read(name: bytes) -> bool:
        return name in worker.fanout.feeds or name in worker.siblings.interest.streams

    return is_read, lambda: bool(worker.siblings.watch.watchers)


class OwnerWiring:
    """Connects an owner with the rest of its worker: implements `OwnerEvents` and `OwnerContext`.

    Most of that rest is built after the owner, and looked up in each call. A part that is missing is an AttributeError.
    """

    def __init__(self, worker: WorkerParts) -> None:
        self._worker = worker

    def on_create(self) -> None:
        self._worker.count_streams()

    def on_open(self, stream: OpenStream) -> None:
        begin_after_boot(self._worker.owner, stream)

    def on_role(self, name: bytes) -> None:
        self._worker.uplinks.reconcile(name)
        self._worker.followers.role_changed(name)
        self._worker.desk.role_changed(name)
        self._worker.last_values.role_changed(name)
        self._worker.sessions.role_changed(name)

    def on_rules(self) -> None:
        self._worker.uplinks.watch()

    def on_path(self, name: bytes) -> None:
        self._worker.followers.role_changed(name)

    def on_cut(self, name: bytes, seq: int) -> None:
        """What the stream grew by earlier in this turn is announced before the cut."""
        worker = self._worker
        if worker.owner.grown:
            worker.announce()
        worker.owner.note_cut(name)
        worker.siblings.announce_cut(name, seq)
        worker.fanout.cut(name, seq)
        worker.followers.role_changed(name)
        worker.desk.role_changed(name)
        worker.last_values.role_changed(name)
        worker.sessions.role_changed(name)

    def on_deleted(self, name: bytes) -> None:
        worker = self._worker
        worker.count_streams()
        worker.siblings.announce_cut(name, 0, is_deleted=True)
        worker.fanout.cut(name, 0, True)
        worker.uplinks.deleted(name)

    @cached_property
    def on_held(self) -> Callable[[bytes], None]:
        """Looked up once, since every stream that is synced needs it."""
        return self._worker.uplinks.note_held

    def on_trim(self, stream: OpenStream, dropped: int) -> None:
        self._worker.siblings.announce_trim(stream.name)
        self._worker.upkeep.on_trim(stream, dropped)

    def on_unwritten(self, name: bytes) -> None:
        self._worker.work.block(name)

    def on_written(self, name: bytes) -> None:
        self._worker.work.unblock(name)

    def on_pause(self) -> None:
        self._worker.pause()

    @cached_property
    def subscribers(self) -> Callable[[bytes], int]:
        """Looked up once, since every batch that is answered needs it."""
        return self._worker.siblings.subscribers

    def spared_seq(self, name: bytes) -> int | None:
        return self._worker.patrol.spared_seq(name)

    def require_kept(self, name: bytes, seq: int) -> None:
        self._worker.last_values.require_kept(name, seq)

    def home(self, name: bytes) -> bytes:
        return self._worker.home(name)

    def put_back(self, name: bytes) -> None:
        self._worker.upkeep.put_back(name)

    def asks_first(self, name: bytes) -> bool:
        return self._worker.uplinks.asks_first(name)

    def path_above(self, name: bytes) -> tuple[str, ...]:
        return self._worker.uplinks.path_above(name)

    def stat_upstream(self, stream: OpenStream) -> dict[str, int | str]:
        worker = self._worker
        return stat_of_upstream(worker.uplinks.copy_of(stream.name), worker.owner, stream, now_us())

    def consumer_lag(self, name: bytes) -> tuple[int, int]:
        return self._worker.patrol.consumer_lag(name)

    def share_bytes(self, nbytes: int, is_whole: bool) -> int:
        return self._worker.share_bytes(nbytes, is_whole)

    def delete(self, name: bytes, done: Callable[[Any | Refused], None], *, copy: bool = False) -> None:
        self._worker.deletions.begin(name, done, copy=copy)

    def send_up(self, batch: StreamBatch) -> None:
        self._worker.uplinks.send_up(batch)

    def await_copy(self, name: bytes, step: Callable[[], None], done: Callable[[Any | Refused], None]) -> bool:
        return self._worker.uplinks.on_demand.hold(name, step, done)

    def await_copies(self, step: Callable[[], None], done: Callable[[Any | Refused], None]) -> bool:
        return self._worker.uplinks.on_demand.hold_all(step, done)

    def call_up(self, name: bytes, verb: str, args: list[Any], done: Callable[[Any | Refused], None]) -> None:
        self._worker.uplinks.call_up(name, verb, args, done)
