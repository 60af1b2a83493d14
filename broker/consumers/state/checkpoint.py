"""The whole state of a stream's consumers as records, in parts that fit into frames. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeVar

import msgpack

from tailrace.broker.consumers.state.consumer import DeadLetter, DurableConsumer
from tailrace.broker.consumers.state.ranges import DeliveryRun, SeqRange, flat, merged, unflat
from tailrace.broker.consumers.state.records import (
    BadRecord,
    CheckpointBegun,
    CheckpointEnded,
    ConsumerRow,
    ConsumerRows,
    Record,
    RemovedRows,
    UnfinishedRows,
)
from tailrace.shard.epochs import NEVER_SEQ, History

PART_REST_BYTES: Final = 128 + 8
"""What a part has beside its rows: its kind, a name, the heads of its arrays."""

T = TypeVar("T", bound=tuple[Any, ...])


def parts_of(
    history: History, consumers: Iterable[DurableConsumer], removed: Iterable[SeqRange], part_max_bytes: int
) -> list[Record]:
    """`CheckpointBegun`, the parts, `CheckpointEnded`. A part has a row at least."""
    each = sorted(consumers, key=lambda consumer: consumer.name)
    room = part_max_bytes - PART_REST_BYTES
    parts: list[Record] = [ConsumerRows(rows) for rows in _batches(map(_row, each), room)]
    for consumer in each:
        name, waiting = consumer.name, map(_waiting, consumer.unheld(0, NEVER_SEQ))
        parts += [UnfinishedRows(name, waiting=rows) for rows in _batches(waiting, room)]
        parts += [UnfinishedRows(name, flight=rows) for rows in _batches(map(_flight, consumer.flight), room)]
        parts += [UnfinishedRows(name, dying=rows) for rows in _batches(map(_dying, consumer.dying.values()), room)]
    parts += [RemovedRows(flat(rows)) for rows in _batches(removed, room)]
    return [CheckpointBegun(history), *parts, CheckpointEnded(len(parts))]


class CheckpointReader:
    """A checkpoint that is being read. Its records come one after the other; any other record ends it."""

    def __init__(self, begun: CheckpointBegun) -> None:
        self.history = begun.history
        self.by_name: dict[bytes, DurableConsumer] = {}
        self.removed: list[SeqRange] = []
        self.parts = 0

    def add(self, part: ConsumerRows | UnfinishedRows | RemovedRows) -> None:
        """Raises BadRecord."""
        self.parts += 1
        if isinstance(part, RemovedRows):
            self.removed = merged([*self.removed, *unflat(part.ranges)])
            return
        if isinstance(part, ConsumerRows):
            self.by_name.update((row.name, _made(row)) for row in part.rows)
            return
        consumer = self.by_name.get(part.name)
        if consumer is None:
            raise BadRecord(f"a checkpoint has messages of consumer {part.name!r}, but not that itself")
        consumer.restore(
            (DeliveryRun(first, first + count - 1, times, b"", due) for first, count, times, due in part.waiting),
            (
                DeliveryRun(first, first + count - 1, times, member, due)
                for first, count, times, member, due in part.flight
            ),
            (DeadLetter(part.name, consumer.era_us, *row) for row in part.dying),
        )


def _batches(rows: Iterable[T], room_bytes: int) -> Iterator[tuple[T, ...]]:
    """The rows in order, as many at once as fit into `room_bytes`, one at least."""
    batch: list[T] = []
    used = 0
    for row in rows:
        nbytes = len(msgpack.packb(row))
        if batch and used + nbytes > room_bytes:
            yield tuple(batch)
            batch, used = [], 0
        batch.append(row)
        used += nbytes
    if batch:
        yield tuple(batch)


def _row(consumer: DurableConsumer) -> ConsumerRow:
    return ConsumerRow(*[getattr(consumer, field) for field in ConsumerRow._fields])


def _made(row: ConsumerRow) -> DurableConsumer:
    consumer = DurableConsumer(row.name, row.created_us, row.next_seq, row.ack_wait_us, row.deliveries_max)
    for field, value in zip(ConsumerRow._fields, row, strict=True):
        setattr(consumer, field, value)
    return consumer


def _waiting(run: DeliveryRun) -> tuple[int, int, int, int]:
    return run.first, len(run), run.deliveries, run.deadline_us


def _flight(run: DeliveryRun) -> tuple[int, int, int, bytes, int]:
    return run.first, len(run), run.deliveries, run.member, run.deadline_us


def _dying(letter: DeadLetter) -> tuple[int, int, int, int, str]:
    return letter.number, letter.seq, letter.epoch, letter.deliveries, letter.reason
