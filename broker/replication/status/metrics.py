"""The figures of replication for `/metrics`: every stream that follows or is followed is looked at, a slice a tick.

With 100,000 streams a round takes some seconds, during which the numbers of the last one stand. They are kept by node,
not by stream: the streams are too many.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailrace.broker.process.metrics import MAX_NODES, OTHER, SlaveMeasures, WorkerMetrics
from tailrace.broker.process.timers import now_us
from tailrace.broker.replication.downstream.replica_acks import ReplicaAcks
from tailrace.broker.replication.status.lag import NO_LAG, Lag, lag_of
from tailrace.broker.replication.upstream.connection import UpstreamPhase
from tailrace.broker.replication.upstream.manager import UpstreamManager
from tailrace.broker.streams.owner import Owner
from tailrace.shard.errors import StorageError

SLICE_S = 0.005  # of a tick


@dataclass(slots=True)
class _Round:
    """The counts so far."""

    slaves: dict[str, SlaveMeasures]
    states: Counter[str]
    copies_lag_messages: int = 0


class ReplicationMetrics:
    """One per worker. Call `tick` from the coarse timer."""

    def __init__(
        self,
        owner: Owner,
        uplinks: UpstreamManager,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = owner
        self._uplinks = uplinks
        self._metrics = metrics
        self._clock = clock
        self._rest: Iterator[None] = iter(())

    def tick(self) -> None:
        end_s = self._clock() + SLICE_S
        for _ in self._rest:
            if self._clock() > end_s:
                return
        self._rest = self._walk()
        self._measure_links()

    def _walk(self) -> Iterator[None]:
        """Each step looks at one stream; the last one adds up the round."""
        found = _Round({}, Counter())
        for name, holders in list(self._owner.replicas.streams.items()):
            self._measure_slaves(name, holders, found.slaves)
            yield
        for uplink in list(self._uplinks):
            for copy in list(uplink.copies.by_name.values()):
                found.states[copy.state.value] += 1
                found.copies_lag_messages += max(copy.end_seq - copy.next_seq, 0)
                yield
        metrics = self._metrics
        metrics.slaves = found.slaves
        metrics.copies = dict(found.states)
        metrics.copies_lag_messages = found.copies_lag_messages

    def _measure_slaves(self, name: bytes, holders: ReplicaAcks, slaves: dict[str, SlaveMeasures]) -> None:
        for node, held in holders.nodes.items():
            measures = slaves.get(node)
            if measures is None:
                label = node if len(slaves) < MAX_NODES else OTHER
                measures = slaves.setdefault(label, SlaveMeasures())
            measures.streams += 1
            lag = NO_LAG
            if held.next_seq < holders.end_seq:
                lag = self._lag(name, held.next_seq, holders.end_seq)
            measures.caught_up += lag.messages == 0
            measures.lag_messages += lag.messages
            measures.lag_bytes += lag.nbytes
            measures.lag_s = max(measures.lag_s, lag.age_us / 1e6)

    def _lag(self, name: bytes, held_seq: int, end_seq: int) -> Lag:
        """A stream that is not open is not opened for this; it has not grown lately."""
        stream = self._owner.catalog.open.get(name)
        try:
            if stream is not None:
                return lag_of(stream.log, held_seq, now_us())
        except (StorageError, OSError):
            pass  # a publish or read meets the same error, and reports it
        return Lag(end_seq - held_seq, 0, 0)

    def _measure_links(self) -> None:
        links: Counter[str] = Counter()
        links_up: Counter[str] = Counter()
        for uplink in self._uplinks:
            label = uplink.address if uplink.address in links or len(links) < MAX_NODES else OTHER
            links[label] += 1
            links_up[label] += uplink.phase is UpstreamPhase.UP
        metrics = self._metrics
        metrics.upstream_links, metrics.upstream_links_up = dict(links), dict(links_up)
        metrics.replication_waits = self._owner.replicas.waiting
