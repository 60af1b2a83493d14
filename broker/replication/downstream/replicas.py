"""An owner's account of the nodes below this one: how far they hold its streams, and who waits for that.

Rows come from this worker's own followers and, as HELD and GONE, from those of its siblings. A row carries the line of
the stream in which it was true, so that rows under way while the end of the stream was set aside are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Set
from functools import partial
from itertools import count
from typing import Final

from tailrace.broker.process.lease import LOGGED_WITHOUT_LEASE_TEXT, Lease
from tailrace.broker.replication.downstream.in_sync import UNKNOWN, InSync, InSyncRow
from tailrace.broker.replication.downstream.replica_acks import ReplicaAcks, ReplicaPosition, ReplicaWait
from tailrace.broker.routing.batch import OutcomeSink, StreamBatch
from tailrace.protocol.errors import Code
from tailrace.protocol.sibling import HeldRow
from tailrace.shard.names import group_key

AWAITED_S: Final = 60.0
"""After the last publish to a stream that waited, its copies are still reported at once for this long."""

CUT_TEXT: Final = "logged here, and then set aside: another node is the stream's master"
LEFT_TEXT: Final = "logged, but the worker that waited for other nodes to hold it is being replaced"


class Replicas:
    """One per owner. `timeout_s`: how long a publish waits; `subscribers` of a stream, for the answers.

    Nothing is acknowledged without `lease`. `names`: the streams that other nodes copy.

    `on_held` is called with a stream's name when other nodes hold more, or less, of it; `on_awaited` when publishes
    begin to wait for that, and when they have not for AWAITED_S.
    """

    def __init__(
        self,
        timeout_s: float,
        subscribers: Callable[[bytes], int],
        on_held: Callable[[bytes], None],
        on_awaited: Callable[[bytes], None],
        lease: Lease,
        names: Callable[[], Iterable[bytes]],
        is_copied: Callable[[bytes], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.streams: dict[bytes, ReplicaAcks] = {}  # only those that were followed, or waited for
        self._timeout_s = timeout_s
        self._subscribers = subscribers
        self._on_held = on_held
        self._on_awaited = on_awaited
        self.lease = lease
        self._names = names
        self._is_copied = is_copied
        self._in_sync: dict[int, InSync] = {}  # by group, of a node that has in-sync replicas
        self._in_sync_version = 0
        self._clock = clock
        self._waiting: dict[bytes, ReplicaAcks] = {}
        self._awaited: dict[bytes, float] = {}  # until when reports come at once, in the order of the times
        self._lines = count(time.monotonic_ns())  # never the same twice, even if another process owns the stream next

    def holders(self, name: bytes) -> ReplicaAcks:
        """The account of a stream; kept from here on."""
        holders = self.streams.get(name)
        if holders is None:
            holders = self.streams[name] = ReplicaAcks(next(self._lines))
        return holders

    def held_below(self, name: bytes) -> dict[str, tuple[int, int]]:
        """By node below this one the next and the synced seq: how far it holds a stream."""
        holders = self.streams.get(name)
        return {node: held[:2] for node, held in holders.nodes.items()} if holders else {}

    # --- in-sync replicas -------------------------------------------------------------------------------------------

    def in_sync_rows(self) -> list[tuple[int, InSyncRow]]:
        """For each group and in-sync replica how far it is behind."""
        self._read_isr()
        now_s = self._clock()
        return [(group, row) for group, in_sync in self._in_sync.items() for row in in_sync.rows(now_s)]

    def _isr(self, name: bytes) -> frozenset[str] | None:
        if self.lease.version != self._in_sync_version:
            self._read_isr()
        return self.lease.others_for(name)

    def _read_isr(self) -> None:
        version = self.lease.version
        if version == self._in_sync_version:
            return
        self._in_sync_version = version
        wanted = {group: self.lease.others(group) or () for group in range(self.lease.groups)}
        before = {group: self._in_sync.setdefault(group, InSync()) for group, nodes in wanted.items() if nodes}
        added = {group for group, in_sync in before.items() if set(wanted[group]) - in_sync.nodes.keys()}
        names = self._names_of(added)
        for group, in_sync in list(self._in_sync.items()):
            lacking = partial(self._lacking, names.get(group, ()))
            in_sync.set_nodes(wanted.get(group, ()), lacking, self._clock())
            if not in_sync.nodes:
                del self._in_sync[group]
        for name, holders in list(self._waiting.items()):
            self._answer_due(name, holders)

    def _in_sync_of(self, name: bytes) -> InSync | None:
        """Those of the group that the stream is in; None if it has none."""
        return self._in_sync.get(self._group(name)) if self._in_sync else None

    def _names_of(self, groups: Set[int]) -> dict[int, list[bytes]]:
        """The streams of these groups that other nodes copy."""
        found: dict[int, list[bytes]] = {}
        for name in self._names() if groups else ():
            group = self._group(name)
            if group in groups:
                found.setdefault(group, []).append(name)
        return found

    def _group(self, name: bytes) -> int:
        groups = self.lease.groups
        return 0 if groups == 1 else group_key(name) % groups

    def _lacking(self, names: Iterable[bytes], node: str) -> dict[bytes, int]:
        """Those of these streams of which a node lacks messages, as far as is known, and their ends."""
        ends: dict[bytes, int] = {}
        for name in names:
            holders = self.streams.get(name)
            held = holders.nodes.get(node) if holders else None
            if holders is None or held is None or held.next_seq < holders.end_seq:
                ends[name] = holders.end_seq if holders else UNKNOWN
        return ends

    # --- reports of nodes ---------------------------------------------------------------------------------------------

    def held(self, slot: int, generation: int, rows: Iterable[HeldRow]) -> None:
        """The worker `generation` of `slot` passes on the reports of its followers."""
        for name, line, connection, node, next_seq, synced_seq in rows:
            holders = self.streams.get(name)
            if holders is None or holders.line != line:
                continue
            position = ReplicaPosition(next_seq, synced_seq, (slot, generation, connection))
            if holders.record(node, position, self._isr(name) if holders.is_full else None):
                if (in_sync := self._in_sync_of(name)) is not None:
                    in_sync.held(node, name, next_seq, holders.end_seq, self._clock())
                self._answer_due(name, holders)
                self._on_held(name)

    def gone(self, slot: int, generation: int, connection: int, rows: Iterable[tuple[bytes, str]]) -> None:
        """These nodes, reported by a connection before, are not below it any more. No rows: it is closed."""
        via = (slot, generation, connection)
        reported = list(rows)
        for name, node in reported:
            self._withdraw(name, node, via)
        for name in [] if reported else list(self.streams):
            self._withdraw(name, "", via)

    def worker_gone(self, slot: int, generation: int) -> None:
        for name in list(self.streams):
            self._withdraw(name, "", (slot, generation))

    def cut(self, name: bytes) -> None:
        """The end of a stream was set aside."""
        holders = self.streams.get(name)
        if holders is not None:
            holders.cut(next(self._lines))
            self.refuse(name, CUT_TEXT)
            self._on_held(name)

    def _withdraw(self, name: bytes, node: str, via: tuple[int, ...]) -> None:
        """Drop the reports of one node, or of all ("")."""
        holders = self.streams.get(name)
        lost = holders.withdraw(node, via) if holders is not None else []
        if holders is None or not lost:
            return
        if (in_sync := self._in_sync_of(name)) is not None:
            in_sync.gone(lost, name, holders.end_seq, self._clock())
            for each in holders.nodes.keys() & lost:
                in_sync.held(each, name, holders.nodes[each].next_seq, holders.end_seq, self._clock())
        self._answer_due(name, holders)  # a node may have been reported to hold more by another way
        self._on_held(name)

    def grew(self, name: bytes, next_seq: int) -> None:
        holders = self.streams.get(name)
        if holders is not None:
            holders.end_seq = next_seq
        if (in_sync := self._in_sync_of(name)) is not None and self._is_copied(name):
            in_sync.grew(name, next_seq, self._clock())

    # --- who waits --------------------------------------------------------------------------------------------------

    def is_awaited(self, name: bytes) -> bool:
        """Whether publishes to the stream wait for other nodes to hold it, or have lately."""
        return name in self._awaited

    def _note_awaited(self, name: bytes) -> None:
        is_new = self._awaited.pop(name, None) is None
        self._awaited[name] = self._clock() + AWAITED_S
        if is_new:
            self._on_awaited(name)

    def _forget_awaited(self, now_s: float) -> None:
        while self._awaited:
            name, until_s = next(iter(self._awaited.items()))
            if until_s > now_s:
                return
            del self._awaited[name]
            self._on_awaited(name)

    @property
    def waiting(self) -> int:
        """Batches that wait, of all streams."""
        return sum(holders.waiting for holders in self._waiting.values())

    def full(self, name: bytes) -> bool:
        """Whether the bound on waiting publishes to a stream is reached, so that no more may be logged to wait too."""
        holders = self._waiting.get(name)
        return holders is not None and holders.full

    def wait(self, batch: StreamBatch, first_seq: int, timeout_s: float | None = None, *, begin_seq: int = 0) -> None:
        """The batch is logged here from `first_seq` on: notify it when `batch.replicas` nodes hold it, or in time.

        `begin_seq`: where the present term begins. A repeat from an earlier one is held by nodes that have reached it.
        """
        self._note_awaited(batch.name)
        holders = self._waiting[batch.name] = self.holders(batch.name)
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        batch.waiting = True
        end_seq = max(first_seq + batch.count, begin_seq)
        holders.wait(ReplicaWait(end_seq, first_seq, self._clock() + timeout_s, timeout_s, batch))
        self._answer_due(batch.name, holders)

    def wait_for(self, name: bytes, end_seq: int, replicas: int, sink: OutcomeSink) -> None:
        """Notify the sink once this number of nodes hold the messages before `end_seq`, which are logged here."""
        batch = StreamBatch(name, 0, None, replicas)
        batch.parts.append((sink, 0, 0))
        self.wait(batch, end_seq)

    def expire(self) -> None:
        """From the timer: answer those that have waited too long, and all whose lease has ended."""
        now_s = self._clock()
        self._read_isr()
        for name, holders in list(self._waiting.items()):
            if self.lease.is_over_for(name):
                self.refuse(name, LOGGED_WITHOUT_LEASE_TEXT)
                continue
            isr = self._isr(name)
            for wait in holders.take_expired(now_s):
                held, asked = holders.count_holding(wait.end_seq), wait.batch.replicas
                if holders.acknowledged_seq(asked, isr) >= wait.end_seq:
                    # a repeat of early messages, which waited behind later ones
                    wait.batch.published(wait.first_seq, self._subscribers(name))
                    continue
                needed = asked if isr is None else len(isr)
                text = f"logged, but {held} of {needed} nodes hold it after {wait.timeout_s:g} s"
                wait.batch.unreplicated(wait.first_seq, text)
            self._note_waiting(name, holders)
        self._forget_awaited(now_s)

    def refuse(self, name: bytes, text: str) -> None:
        """Answer all that wait for nodes to hold this stream: they need not wait any more. In a cluster another node
        leads now, or soon, and may have them: clients that number their messages send them again there.
        """
        holders = self._waiting.pop(name, None)
        for wait in holders.take_all() if holders is not None else ():
            if self.lease.is_needed:
                wait.batch.refused(Code.UNAVAILABLE, text)
            else:
                wait.batch.unreplicated(wait.first_seq, text)

    def drop(self, name: bytes, text: str) -> None:
        """A stream is deleted. What nodes held of it says nothing of one that is made again."""
        self.refuse(name, text)
        if (holders := self.streams.get(name)) is not None:
            holders.cut(next(self._lines))
            holders.end_seq = 0
        for in_sync in self._in_sync.values():
            in_sync.dropped(name)

    def take_waits(self) -> list[ReplicaWait]:
        """Remove and return all waits; the caller must answer them from now on."""
        waiting, self._waiting = self._waiting, {}
        return [wait for holders in waiting.values() for wait in holders.take_all()]

    def refuse_all(self) -> None:
        """This worker gives its streams up."""
        for name in list(self._waiting):
            self.refuse(name, LEFT_TEXT)

    def _answer_due(self, name: bytes, holders: ReplicaAcks) -> None:
        if self.lease.is_over_for(name):
            return
        for wait in holders.take_due(self._isr(name)):
            wait.batch.published(wait.first_seq, self._subscribers(name))
        self._note_waiting(name, holders)

    def _note_waiting(self, name: bytes, holders: ReplicaAcks) -> None:
        if not holders.waiting:
            self._waiting.pop(name, None)
