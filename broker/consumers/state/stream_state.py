"""The durable consumers of one stream, built from the records of `$cursor/X`. Pure: no clock, no file.

The same records give the same state on every node, and the owner's decisions (`broker.consumers.state.decide`) are
applied by the same methods as their records. So a state that is read from the log is the one that was lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any, Final

from tailrace.broker.consumers.state.checkpoint import CheckpointReader, parts_of
from tailrace.broker.consumers.state.consumer import DeadLetter as DeadLetter
from tailrace.broker.consumers.state.consumer import DurableConsumer as DurableConsumer
from tailrace.broker.consumers.state.ranges import SeqRange, merged, unflat
from tailrace.broker.consumers.state.records import (
    BadRecord,
    CheckpointBegun,
    CheckpointEnded,
    ConsumerCreated,
    ConsumerDeleted,
    ConsumerReset,
    ConsumerRows,
    FlightReturned,
    HistoryChanged,
    LetterPublished,
    LettersCut,
    LettersRemoved,
    Progress,
    Record,
    RemovedRows,
    UnfinishedRows,
)
from tailrace.shard.epochs import NEVER_SEQ, History, parting_seq


class ConsumerTable:
    """All consumers of one stream. `history`: of stream X, as the records know it; `removed`: of its dead letters."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, DurableConsumer] = {}
        self.history: History = ()
        self.removed: list[SeqRange] = []
        self._alarms: list[tuple[int, bytes]] = []
        self._building: CheckpointReader | None = None

    def apply(self, record: Record) -> None:
        """Raises BadRecord if it contradicts the records applied before; this state is invalid then.

        A checkpoint takes effect with its last record, `CheckpointEnded`. One that was cut short does nothing.
        """
        if self._building is not None and not isinstance(record, _CHECKPOINT_PARTS):
            self._building = None
        _APPLIERS[type(record)](self, record)

    def checkpoint(self, part_max_bytes: int) -> list[Record]:
        """`CheckpointBegun`, parts, `CheckpointEnded`: applied to any state they give this one.

        Packed, each has about `part_max_bytes` at most; but `CheckpointBegun` up to 64 KiB, as the history needs.
        """
        return parts_of(self.history, self.by_name.values(), self.removed, part_max_bytes)

    @property
    def has_unburied(self) -> bool:
        """Whether `unburied` has any."""
        return any(consumer.dying for consumer in self.by_name.values())

    def unburied(self) -> list[DeadLetter]:
        """The letters that are to be published to X/$dead, or may be published: `decide.bury` is the end of each."""
        return [letter for consumer in self.by_name.values() for letter in consumer.dying.values()]

    def spare_seq(self, idle_since_us: int) -> int | None:
        """The first message that a consumer still needs which was not idle since then; None if they need none."""
        seqs = (each.spare_seq for each in self.by_name.values() if each.last_us >= idle_since_us)
        return min(seqs, default=None)

    # --- alarms: when to look at which consumer. They are not logged --------------------------------------------------

    def alarm(self, consumer: DurableConsumer, time_us: int) -> None:
        """Something of the consumer is due then."""
        if not consumer.alarm_us or time_us < consumer.alarm_us:
            consumer.alarm_us = time_us
            heapq.heappush(self._alarms, (time_us, consumer.name))

    def next_alarm_us(self) -> int | None:
        alarms = self._alarms
        while alarms:
            time_us, name = alarms[0]
            consumer = self.by_name.get(name)
            if consumer is not None and consumer.alarm_us == time_us:
                return time_us
            heapq.heappop(alarms)
        return None

    def take_alarm(self, now_us: int) -> DurableConsumer | None:
        """A consumer whose time has come; nothing of it is due then any more, until `alarm` is called again."""
        time_us = self.next_alarm_us()
        if time_us is None or time_us > now_us:
            return None
        consumer = self.by_name[heapq.heappop(self._alarms)[1]]
        consumer.alarm_us = 0
        return consumer

    # --- what each record does ----------------------------------------------------------------------------------------

    def _created(self, record: ConsumerCreated) -> None:
        if record.name in self.by_name:
            raise BadRecord(f"consumer {record.name!r} is made, and is there")
        self.by_name[record.name] = DurableConsumer(
            record.name,
            record.time_us,
            record.seq,
            record.ack_wait_us,
            record.deliveries_max,
            record.retry_us,
            record.retry_max_us,
            record.topics,
        )

    def _reset(self, record: ConsumerReset) -> None:
        self._consumer(record.name).go_to(record.seq, record.time_us)

    def _deleted(self, record: ConsumerDeleted) -> None:
        del self.by_name[self._consumer(record.name).name]

    def _progress(self, record: Progress) -> None:
        consumer = self._consumer(record.name)
        consumer.last_us = record.time_us
        consumer.finish(unflat(record.finished))
        self.fail(consumer, record)
        consumer.back(unflat(record.back))
        if record.kept_seq:
            consumer.keep(record.kept_seq)
        if record.given:
            self.give(consumer, record)

    def fail(self, consumer: DurableConsumer, record: Progress) -> None:
        """Apply the failures of the record, and nothing else of it."""
        delays = record.delays or (0,) * len(record.failed)
        for (first, count, reason), delay in zip(record.failed, delays, strict=True):
            due_us = consumer.fail([(first, first + count - 1)], reason, self.history, record.time_us, delay)
            if due_us:
                self.alarm(consumer, due_us)

    def give(self, consumer: DurableConsumer, record: Progress) -> None:
        """What the record gives its member, and nothing else of it."""
        deadline_us = record.time_us + consumer.ack_wait_us
        consumer.give(record.member, unflat(record.given), deadline_us)
        self.alarm(consumer, deadline_us)

    def _returned(self, record: FlightReturned) -> None:
        consumer = self._consumer(record.name)
        due_us = consumer.fail(unflat(record.counted), record.reason, self.history, record.time_us)
        if due_us:
            self.alarm(consumer, due_us)
        consumer.back(unflat(record.back))

    def _buried(self, record: LetterPublished) -> None:
        self._consumer(record.name).dying.pop(record.number, None)

    def _line(self, record: HistoryChanged) -> None:
        """`unsure_seq` of those that are behind: the last owner may have given out messages from before this term."""
        old = self.history
        cut_seq = min(record.end_seq, parting_seq(old, record.history) if old else NEVER_SEQ)
        begin_seq = record.history[-1].first_seq if old and record.history != old else 0
        for consumer in self.by_name.values():
            consumer.cut(cut_seq)
            consumer.keys = consumer.ahead = None
            if begin_seq:
                consumer.unsure_seq = begin_seq if begin_seq > consumer.next_seq else 0
        self.history = record.history

    def _begun(self, record: CheckpointBegun) -> None:
        self._building = CheckpointReader(record)

    def _letters_removed(self, record: LettersRemoved) -> None:
        self.removed = merged([*self.removed, *unflat(record.ranges)])

    def _letters_cut(self, record: LettersCut) -> None:
        end_seq = record.end_seq
        self.removed = [(first, min(last, end_seq - 1)) for first, last in self.removed if first < end_seq]

    def _part(self, record: ConsumerRows | UnfinishedRows | RemovedRows) -> None:
        if self._building is None:
            raise BadRecord("a part of a checkpoint without its beginning")
        self._building.add(record)

    def _ended(self, record: CheckpointEnded) -> None:
        building, self._building = self._building, None
        if building is None or building.parts != record.parts:
            raise BadRecord(f"a checkpoint of {record.parts} parts ends, of which others were there")
        self.by_name, self.history, self._alarms = building.by_name, building.history, []
        self.removed = building.removed
        for consumer in self.by_name.values():
            for run in (*consumer.flight, *consumer.delayed.runs):
                self.alarm(consumer, run.deadline_us)

    def _consumer(self, name: bytes) -> DurableConsumer:
        consumer = self.by_name.get(name)
        if consumer is None:
            raise BadRecord(f"there is no consumer {name!r}")
        return consumer


_CHECKPOINT_PARTS: Final = (ConsumerRows, UnfinishedRows, RemovedRows, CheckpointEnded)
_APPLIERS: Final[Mapping[type, Callable[[ConsumerTable, Any], None]]] = {
    ConsumerCreated: ConsumerTable._created,
    ConsumerReset: ConsumerTable._reset,
    ConsumerDeleted: ConsumerTable._deleted,
    Progress: ConsumerTable._progress,
    FlightReturned: ConsumerTable._returned,
    LetterPublished: ConsumerTable._buried,
    HistoryChanged: ConsumerTable._line,
    CheckpointBegun: ConsumerTable._begun,
    ConsumerRows: ConsumerTable._part,
    UnfinishedRows: ConsumerTable._part,
    CheckpointEnded: ConsumerTable._ended,
    LettersRemoved: ConsumerTable._letters_removed,
    LettersCut: ConsumerTable._letters_cut,
    RemovedRows: ConsumerTable._part,
}
