"""An owner's walk over its streams, for consumers: keeps their logs short, and measures their lag.

It also returns which messages a trim of their stream is to spare. Consumers that are in memory are measured there; of
others it caches a snapshot, and reads their log when that may have changed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final, NamedTuple

from tailrace.broker.consumers.coordinator.compaction import Compactor
from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.cursor_log import log_name, read_records
from tailrace.broker.consumers.coordinator.log_view import LogView
from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.lag import MICROSECONDS, LagPolicy, LagSnapshot, survey
from tailrace.broker.consumers.state.records import BadRecord
from tailrace.broker.consumers.state.stream_state import ConsumerTable
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.replication.roles.stream_roles import history_of
from tailrace.broker.streams.owner_calls import refusals
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.errors import Code
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role
from tailrace.shard.names import CURSOR_PREFIX

log = logging.getLogger(__name__)

SURVEYS_MAX: Final = 262_144
"""Streams of which it is remembered how their consumers stand, so that their logs need not be read each round."""


class LagTotals(NamedTuple):
    """Totals of some consumers: how many they are, the lag of the one furthest behind, and how many are abandoned.

    `soon`: how many have messages kept for them, and are about to be abandoned; `abandoned`: have been.
    """

    consumers: int = 0
    lag_messages: int = 0
    lag_us: int = 0
    soon: int = 0
    abandoned: int = 0

    def plus(self, other: LagTotals) -> LagTotals:
        return LagTotals(
            self.consumers + other.consumers,
            max(self.lag_messages, other.lag_messages),
            max(self.lag_us, other.lag_us),
            self.soon + other.soon,
            self.abandoned + other.abandoned,
        )


def measure(found: LagSnapshot, stream_log: StreamLog, now_us: int) -> LagTotals:
    """The totals of all consumers of one stream, as the stream is now. Raises StreamDamaged, OSError."""
    next_seq, oldest = stream_log.next_seq, max(found.floor_seq, stream_log.first_seq)
    lag_us = now_us - stream_log.entry(oldest).timestamp_us if found.consumers and oldest < next_seq else 0
    return LagTotals(found.consumers, found.lag_at(next_seq), max(lag_us, 0), *found.idle_at(next_seq))


class CachedSnapshot(NamedTuple):
    """A survey; `place`: on a copy of the stream, generation and end of the consumers' log that it was made from."""

    place: tuple[int, int] | None
    survey: LagSnapshot


class LagScanner:
    """One per owner; `broker.streams.maintenance` calls it while it walks over the streams."""

    def __init__(self, desk: Coordinator) -> None:
        self._desk = desk
        self._owner = desk.owner
        self._logs = Compactor(desk.owner)
        self._found = LagTotals()
        self._memory: OrderedDict[bytes, CachedSnapshot] = OrderedDict()
        self.read = 0  # logs that were, for want of a survey that holds

    def visit(self, name: bytes, nbytes: int) -> None:
        """A log of consumers whose files take so much."""
        self._logs.visit(name, nbytes)
        stream = name.removeprefix(CURSOR_PREFIX)
        if stream not in self._owner.catalog.names or self._owner.roles.role(stream) is not Role.MASTER:
            return  # the master measures them
        try:
            with refusals("consume"):
                stream_log, now_us = self._owner.stream(stream).log, self._owner.clock_us()
                self._found = self._found.plus(measure(self._survey(stream, now_us), stream_log, now_us))
        except Refused as refused:
            log.warning("the consumers of stream %s cannot be measured: %s", stream.decode(), refused.text)

    def finish(self, metrics: WorkerMetrics) -> None:
        """The walk is complete: report the totals, and begin anew."""
        found, self._found = self._found, LagTotals()
        metrics.consumers = found.consumers
        metrics.consumer_lag_messages_max = found.lag_messages
        metrics.consumer_lag_s_max = found.lag_us / MICROSECONDS
        metrics.consumers_soon_abandoned = found.soon
        metrics.consumers_abandoned = found.abandoned

    def spared_seq(self, name: bytes) -> int | None:
        """The first message that consumers of the stream still need, None if they need none. Raises Refused.

        On a slave as on its master: a promoted slave serves the same consumers.
        """
        if name.startswith(CURSOR_PREFIX) or log_name(name) not in self._owner.catalog.names:
            return None
        with refusals("trim"):
            return self._survey(name, self._owner.clock_us()).spared_seq

    def consumer_lag(self, name: bytes) -> tuple[int, int]:
        """How many durable consumers a stream has, and the lag of the one furthest behind. Raises Refused."""
        if name.startswith(CURSOR_PREFIX) or log_name(name) not in self._owner.catalog.names:
            return 0, 0
        with refusals("list"):
            found = self._survey(name, self._owner.clock_us())
            return found.consumers, found.lag_at(self._owner.stream(name).log.next_seq)

    def _survey(self, name: bytes, now_us: int) -> LagSnapshot:
        """Their snapshot: from memory or the cache while that is valid. Raises Refused, StorageError, OSError."""
        owner, book = self._owner, self._desk.known(name)
        rules = LagPolicy.of(owner.settings.policy(name.decode()))
        if book is not None:
            next_seq = book.current().next_seq
            found = book.consumers.by_name.items()
            uncounted = [each for each, consumer in found if not consumer.is_counted(next_seq)]
            self._desk.lags.count(name, uncounted, next_seq)
            return survey(book.consumers, next_seq, rules, now_us)
        place = None
        if owner.roles.role(name) is not Role.MASTER:
            cursor_log = owner.stream(log_name(name)).log
            place = cursor_log.generation, cursor_log.next_seq
        known = self._memory.get(name)
        if known is None or known.place != place or not known.survey.holds(rules, now_us):
            self.read += 1
            known = CachedSnapshot(place, self._read(name, rules, now_us))
            if self._desk.known(name) is None:
                self._remember(name, known)
        return known.survey

    def _remember(self, name: bytes, known: CachedSnapshot) -> None:
        self._memory[name] = known
        if len(self._memory) > SURVEYS_MAX:
            self._memory.popitem(last=False)

    def forget(self, name: bytes) -> None:
        """Drop the snapshot: the stream's consumers are in memory and may change, or the stream is another now."""
        self._memory.pop(name, None)

    def _read(self, name: bytes, rules: LagPolicy, now_us: int) -> LagSnapshot:
        """From the log, without taking the place of consumers that somebody asks for; unless there is something to do
        for these.
        """
        owner = self._owner
        found, stream_log, cursor_log = ConsumerTable(), owner.stream(name).log, owner.stream(log_name(name)).log
        try:
            for _seq, record in read_records(cursor_log, cursor_log.first_seq):
                found.apply(record)
        except BadRecord as error:
            raise Refused(Code.DAMAGED, f"the log of this stream's consumers: {error}") from error
        if owner.roles.role(name) is Role.MASTER:
            decide.rewind(found, LogView(stream_log, history_of(owner, owner.stream(name))))
            due_us = found.next_alarm_us()
            if found.unburied() or (due_us is not None and due_us <= now_us):
                self._desk.book(name)
        return survey(found, stream_log.next_seq, rules, now_us)
