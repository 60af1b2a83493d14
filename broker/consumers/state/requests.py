"""Requests to a stream's consumers and their results; whether a request is valid at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tailrace.broker.consumers.state.ranges import SeqRange, merged
from tailrace.broker.consumers.state.records import Record
from tailrace.broker.consumers.state.stream_state import ConsumerTable, DeadLetter, DurableConsumer
from tailrace.broker.streams.refused import Refused
from tailrace.protocol.consuming import (
    ACK_WAIT_MAX_S,
    CONSUMER_FILTER_BYTES_MAX,
    DELIVERIES_MAX,
    DeliveredRun,
    FailedRow,
    FinishedRow,
)
from tailrace.protocol.errors import Code
from tailrace.protocol.names import CONSUMER_BYTES_MAX, shown
from tailrace.protocol.places import NUMBER_MAX
from tailrace.protocol.topics import filter_fault
from tailrace.shard.names import name_bytes_valid

ACK_WAIT_MIN_US: Final = 1_000
ACK_WAIT_MAX_US: Final = ACK_WAIT_MAX_S * 1_000_000

T = TypeVar("T")


class Decision(NamedTuple, Generic[T]):
    """`dead`: what these records condemn."""

    records: tuple[Record, ...]
    value: T
    dead: tuple[DeadLetter, ...] = ()


class ConsumeResult(NamedTuple):
    """`next_seq`: the first message that is not finished."""

    next_seq: int
    created: bool = False


class GetResult(NamedTuple):
    """`runs`: first seq, messages, how often they were delivered before, epoch (0 if it is not known any more).

    `stale`: first seq, last seq. `trimmed`: how many messages it lost since they are not kept any more.
    """

    runs: tuple[DeliveredRun, ...] = ()
    stale: tuple[SeqRange, ...] = ()
    trimmed: int = 0

    def to_wire(self) -> dict[str, Any]:
        """What goes to the worker of the member's connection."""
        return {"runs": self.runs, "stale": self.stale, "trimmed": self.trimmed}


class ConsumerStatus(NamedTuple):
    """As `protocol.consuming.Standing`, but for `lag_us`: the age of message `next_seq` is the caller's."""

    name: bytes
    next_seq: int
    lag_messages: int
    in_flight: int
    members: int
    redelivered: int
    dead: int
    idle_us: int
    ack_wait_us: int
    deliveries_max: int
    retry_us: int = 0
    retry_max_us: int = 0
    topics: bytes = b""
    lag_at_most: bool = False


def find(consumers: ConsumerTable, name: bytes) -> DurableConsumer:
    """Raises Refused with CONSUMER."""
    consumer = consumers.by_name.get(name)
    if consumer is None:
        raise Refused(Code.CONSUMER, f"there is no consumer {shown(name)} of this stream: create it")
    return consumer


def require_name(name: bytes, what: str) -> None:
    """Raises Refused with USAGE, as all below."""
    if type(name) is not bytes or len(name) > CONSUMER_BYTES_MAX or not name_bytes_valid(name):
        rule = f"1 to {CONSUMER_BYTES_MAX} bytes of UTF-8 without white space, control characters or |"
        raise Refused(Code.USAGE, f"{_shown(name)} is not the name of a {what}: {rule}")


def require_settings(
    ack_wait_us: int | None, deliveries_max: int | None, retry_us: int | None, retry_max_us: int | None
) -> None:
    for what, wait_us in (("retry_s", retry_us), ("retry_max_s", retry_max_us)):
        if wait_us is not None and not 0 <= wait_us <= ACK_WAIT_MAX_US:
            raise Refused(Code.USAGE, f"a {what} of {wait_us / 1e6}: it is 0 to {ACK_WAIT_MAX_S}")
    if retry_us is not None and retry_max_us is not None and retry_us > retry_max_us:
        shown_s = f"{retry_us / 1e6:g} and {retry_max_us / 1e6:g}"
        raise Refused(Code.USAGE, f"retry_s and retry_max_s are {shown_s}: the first may not be more than the second")
    if ack_wait_us is not None and not ACK_WAIT_MIN_US <= ack_wait_us <= ACK_WAIT_MAX_US:
        rule = f"{ACK_WAIT_MIN_US / 1e6} to {ACK_WAIT_MAX_S}"
        raise Refused(Code.USAGE, f"an ack_wait_s of {ack_wait_us / 1e6}: it is {rule}")
    if deliveries_max is not None and not 0 <= deliveries_max <= DELIVERIES_MAX:
        raise Refused(Code.USAGE, f"a deliveries_max of {deliveries_max}: it is 0 to {DELIVERIES_MAX}")


def require_filter(topics: bytes | None) -> None:
    """Raises Refused with TOPIC."""
    if topics is None:
        return
    fault = filter_fault(topics)
    if not fault and len(topics) > CONSUMER_FILTER_BYTES_MAX:
        fault = f"a consumer's topic filter has at most {CONSUMER_FILTER_BYTES_MAX} bytes, not {len(topics)}"
    if fault:
        raise Refused(Code.TOPIC, fault)


def require_seq(seq: int) -> None:
    if type(seq) is not int or not 0 <= seq <= NUMBER_MAX:
        raise Refused(Code.USAGE, f"{_shown(seq)} is not a seq: a number from 0 to {NUMBER_MAX}")


def finished_of(rows: Iterable[FinishedRow]) -> list[FinishedRow]:
    """The ranges of each epoch, in order and apart."""
    by_epoch: dict[int, list[SeqRange]] = {}
    for first, last, epoch in rows:
        by_epoch.setdefault(epoch, []).append((first, last))
    return [(*each, epoch) for epoch, ranges in sorted(by_epoch.items()) for each in merged(ranges)]


def failed_of(rows: Iterable[FailedRow]) -> list[FailedRow]:
    """In order, each once."""
    reasons = {(seq, epoch): reason for seq, epoch, reason in rows}
    return [(*each, reason) for each, reason in sorted(reasons.items())]


def _shown(value: object) -> str:
    return repr(value)[:80]
