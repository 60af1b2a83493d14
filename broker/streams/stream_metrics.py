"""Measures the streams that `[metrics] streams` names, and their consumers, one by one.

At most MAX_STREAMS of a worker's streams and MAX_CONSUMERS of their consumers are measured; the rest are counted. A
round goes over all of them in slices of the coarse timer, so the figures are a second old, or a few seconds on a worker
that has very many names to go through. Streams that are measured are kept open.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Final

from tailrace.broker.consumers.coordinator.coordinator import Coordinator
from tailrace.broker.consumers.coordinator.cursor_log import log_name
from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.decide import Decision
from tailrace.broker.consumers.state.lag import MICROSECONDS
from tailrace.broker.process.metrics import (
    LABELS_SEPARATOR,
    MAX_CONSUMERS,
    MAX_STREAMS,
    UNMEASURED,
    ConsumerMeasures,
    StreamMeasures,
)
from tailrace.broker.streams.refused import Refused
from tailrace.shard.errors import StorageError
from tailrace.shard.header import HEADER_PAGE_BYTES
from tailrace.shard.log import StreamLog
from tailrace.shard.meta import Role
from tailrace.shard.names import is_reserved

log = logging.getLogger(__name__)

SLICE_S: Final = 0.005  # of a tick
NAMES_A_STEP: Final = 256


@dataclass(slots=True)
class _Measured:
    """The figures of one round."""

    streams: dict[str, StreamMeasures] = field(default_factory=dict)
    consumers: dict[str, ConsumerMeasures] = field(default_factory=dict)
    consumers_left_out: int = 0


class StreamMetrics:
    """One per worker. Call `tick` from the coarse timer."""

    def __init__(self, desk: Coordinator, clock: Callable[[], float] = time.monotonic) -> None:
        patterns = desk.owner.settings.metrics_streams
        self._desk = desk
        self._owner = desk.owner
        self._clock = clock
        self._matches = re.compile("|".join(map(translate, patterns))).match if patterns else None
        self._matching: list[bytes] = []
        self._searched: tuple[int, int] | None = None  # the names among which those were found
        self._rest: Iterator[None] = iter(())

    def tick(self) -> None:
        if self._matches is None or not self._owner.catalog.owning:
            return
        end_s = self._clock() + SLICE_S
        for _ in self._rest:
            if self._clock() > end_s:
                return
        self._rest = self._walk(self._matches)

    def _walk(self, matches: Callable[[str], object]) -> Iterator[None]:
        """A round: one stream a step, or some names; the figures are replaced at its end."""
        catalog = self._owner.catalog
        if self._searched != (catalog.incarnation, len(catalog.names)):
            yield from self._search(matches)
        found, now_us = _Measured(), self._owner.clock_us()
        for name in self._matching[:MAX_STREAMS]:
            if name in catalog.names and name not in catalog.damaged:
                self._measure(name, found, now_us)
            yield
        metrics = self._owner.metrics
        metrics.measured_streams, metrics.measured_consumers = found.streams, found.consumers
        left_out = max(len(self._matching) - MAX_STREAMS, 0), found.consumers_left_out
        metrics.unmeasured = dict(zip(UNMEASURED, left_out, strict=True))

    def _search(self, matches: Callable[[str], object]) -> Iterator[None]:
        """Find the streams that the patterns choose; the oldest of them are measured if they are too many."""
        catalog = self._owner.catalog
        searched, names, matching = (catalog.incarnation, len(catalog.names)), list(catalog.names), []
        for start in range(0, len(names), NAMES_A_STEP):
            some = names[start : start + NAMES_A_STEP]
            matching += [name for name in some if not is_reserved(name) and matches(name.decode())]
            yield
        self._matching, self._searched = matching, searched

    def _measure(self, name: bytes, found: _Measured, now_us: int) -> None:
        text = name.decode()
        try:
            stream_log = self._owner.stream(name).log
            found.streams[text] = self._measure_stream(name, stream_log)
            if log_name(name) in self._owner.catalog.names and self._owner.roles.role(name) is Role.MASTER:
                self._measure_consumers(name, stream_log, found, now_us)
        except (Refused, StorageError, OSError) as error:
            log.warning("stream %s cannot be measured: %s", text, error)

    def _measure_stream(self, name: bytes, stream_log: StreamLog) -> StreamMeasures:
        first_seq, next_seq, end = stream_log.first_seq, stream_log.next_seq, stream_log.end_offset
        first = stream_log.entry(first_seq) if first_seq < next_seq else None
        return StreamMeasures(
            messages=next_seq,
            log_bytes=end - HEADER_PAGE_BYTES,
            kept_messages=next_seq - first_seq,
            kept_bytes=end - first.offset if first is not None else 0,
            first_s=first.timestamp_us / MICROSECONDS if first is not None else 0.0,
            last_s=stream_log.last_timestamp_us / MICROSECONDS,
            subscribers=self._owner.context.subscribers(name),
        )

    def _measure_consumers(self, name: bytes, stream_log: StreamLog, found: _Measured, now_us: int) -> None:
        """Raises Refused, StorageError, OSError."""
        desk = self._desk
        book = desk.known(name) or desk.book(name)
        view = book.current()
        for each in desk.decided(book, lambda: Decision((), decide.listing(book.consumers, view, now_us))).value:
            if len(found.consumers) == MAX_CONSUMERS:
                found.consumers_left_out += 1
                continue
            is_behind = stream_log.first_seq <= each.next_seq < stream_log.next_seq
            lag_us = now_us - stream_log.entry(each.next_seq).timestamp_us if is_behind else 0
            found.consumers[LABELS_SEPARATOR.join((name.decode(), each.name.decode()))] = ConsumerMeasures(
                each.lag_messages,
                max(lag_us, 0) / MICROSECONDS,
                each.in_flight,
                each.members,
                each.redelivered,
                each.dead,
            )
