"""What an owner's walk over its streams does about consumers: it keeps their logs short, and takes their measure.

It also says what a trim of their stream is to spare.
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from broker.consumers.consumer import Consumer
from broker.consumers.cursor_log import log_name, read_records
from broker.consumers.desk import Desk
from broker.consumers.housekeeping import Housekeeping
from broker.consumers.records import BadRecord
from broker.consumers.state import Consumers
from broker.metrics import WorkerMetrics
from broker.owner_calls import refusals
from broker.protocol.errors import Code
from broker.refused import Refused
from broker.settings import StreamPolicy
from shard.log import StreamLog
from shard.meta import Role
from shard.names import CURSOR_PREFIX

log = logging.getLogger(__name__)

MICROSECONDS: Final = 1_000_000
SOON: Final = 0.75
"""Of `consumer_max_age_s`: who was idle for so long is about to be abandoned."""


class Measures(NamedTuple):
    """Of some consumers: how many they are, how far the one furthest behind is, and what retention thinks of them.

    `soon`: how many have messages kept for them, and are about to be abandoned; `abandoned`: have been.
    """

    consumers: int = 0
    lag_messages: int = 0
    lag_us: int = 0
    soon: int = 0
    abandoned: int = 0

    def plus(self, other: Measures) -> Measures:
        return Measures(
            self.consumers + other.consumers,
            max(self.lag_messages, other.lag_messages),
            max(self.lag_us, other.lag_us),
            self.soon + other.soon,
            self.abandoned + other.abandoned,
        )


def idle_us(consumer: Consumer, now_us: int) -> int:
    """Since it was made, or a member of it asked last."""
    seen_us = max((member.seen_us for member in consumer.members.values()), default=0)
    return max(now_us - max(consumer.last_us, seen_us), 0)


def measure(consumers: Consumers, stream_log: StreamLog, policy: StreamPolicy, now_us: int) -> Measures:
    """Of all consumers of one stream. Raises StreamDamaged, OSError."""
    found = Measures()
    next_seq, max_us = stream_log.next_seq, policy.consumer_max_age_s * MICROSECONDS
    oldest = next_seq
    for consumer in consumers.by_name.values():
        lag = consumer.lag_messages(next_seq)
        oldest = min(oldest, consumer.floor_seq)
        idle = idle_us(consumer, now_us) if lag and policy.spare_consumers and max_us else 0
        found = found.plus(Measures(1, lag, 0, SOON * max_us < idle <= max_us, max_us < idle))
    oldest = max(oldest, stream_log.first_seq)
    lag_us = now_us - stream_log.entry(oldest).timestamp_us if oldest < next_seq else 0
    return found._replace(lag_us=max(lag_us, 0))


def spared_seq(consumers: Consumers, policy: StreamPolicy, now_us: int) -> int | None:
    """The first message that a consumer needs which is not abandoned; None where none needs any."""
    max_us = policy.consumer_max_age_s * MICROSECONDS
    needed = (each.spare_seq for each in consumers.by_name.values() if not max_us or idle_us(each, now_us) <= max_us)
    return min(needed, default=None)


class Patrol:
    """One an owner, which goes round with `broker.upkeep`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._owner = desk.owner
        self._logs = Housekeeping(desk.owner)
        self._found = Measures()
        self._owner.spared = self.spared

    def visit(self, name: bytes, nbytes: int) -> None:
        """A log of consumers whose files take so much."""
        self._logs.visit(name, nbytes)
        stream = name.removeprefix(CURSOR_PREFIX)
        if stream not in self._owner.names or self._owner.role(stream) is not Role.MASTER:
            return  # the master measures them
        try:
            with refusals("consume"):
                book = self._desk.book(stream)
                policy = self._owner.settings.policy(stream.decode())
                found = measure(book.consumers, book.current().log, policy, self._owner.clock_us())
        except Refused as refused:
            log.warning("the consumers of stream %s cannot be measured: %s", stream.decode(), refused.text)
        else:
            self._found = self._found.plus(found)

    def finish(self, metrics: WorkerMetrics) -> None:
        """It has been round: tell, and begin anew."""
        found, self._found = self._found, Measures()
        metrics.consumers = found.consumers
        metrics.consumer_lag_messages_max = found.lag_messages
        metrics.consumer_lag_s_max = found.lag_us / MICROSECONDS
        metrics.consumers_soon_abandoned = found.soon
        metrics.consumers_abandoned = found.abandoned

    def spared(self, name: bytes) -> int | None:
        """What a trim of the stream that spares its consumers leaves: see `spared_seq`. Raises Refused.

        On a slave as on its master: whoever is promoted serves the same consumers.
        """
        if name.startswith(CURSOR_PREFIX) or log_name(name) not in self._owner.names:
            return None
        policy = self._owner.settings.policy(name.decode())
        with refusals("trim"):
            return spared_seq(self._consumers(name), policy, self._owner.clock_us())

    def _consumers(self, name: bytes) -> Consumers:
        if self._owner.role(name) is Role.MASTER:
            return self._desk.book(name).consumers
        found, stream_log = Consumers(), self._owner.stream(log_name(name)).log
        try:
            for _seq, record in read_records(stream_log, stream_log.first_seq):
                found.apply(record)
        except BadRecord as error:
            raise Refused(Code.DAMAGED, f"the log of this stream's consumers: {error}") from error
        return found
