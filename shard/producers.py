"""The producers of one stream: their ids, next numbers, and latest runs. Pure.

A producer gives each of its messages in a stream a number: 0, 1, 2, … without holes. So a publish that is sent again is
known by its numbers, and is answered with the seq it got the first time. All that is known here can be had from the log
(`shard.producer_file`).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import chain
from typing import Any, Final, NamedTuple

from tailrace.shard.numbering import require_numbering
from tailrace.shard.producer_memory import ProducerMemory

PRODUCERS_MAX: Final = 4_096
"""Of one stream. Those that were idle for the longest time are forgotten first."""
RUNS_MAX: Final = 1_024
"""Of one producer: as many publishes as a client has under way, all of which it may send again."""
RUNS_STREAM_MAX: Final = 65_536
"""Of all producers of a stream. Those that were idle for the longest time keep their last run only."""
RUN_BYTES: Final = 24
PRODUCER_BYTES: Final = 512
"""What a producer takes beside its runs, about."""


class ProducerRun(NamedTuple):
    """Messages `number` to `number + messages - 1` of a producer are messages `seq` and on of the stream."""

    number: int
    messages: int
    seq: int


class NumberVerdict(Enum):
    NEW = "new"  # to be appended
    REPEAT = "repeat"  # logged before, from `seq` on
    REST = "rest"  # of it, `expected - number` messages are logged, from `seq` on; the others are to be appended
    OLD = "old"  # logged before; where is not known any more
    GAP = "gap"  # messages before it are missing: `expected` is the number that comes next
    UNKNOWN = "unknown"  # messages before it may be missing, or it may be logged: nothing is known of the producer


class Judgement(NamedTuple):
    """`end_seq`: behind the last message of a repeat, whose messages need not lie together in the log."""

    kind: NumberVerdict
    seq: int = 0
    expected: int = 0
    end_seq: int = 0


class Producer:
    """`number`: the one that its next message has. `runs`: the numbers of each `ProducerRun`, one run behind another;
    the last one grows in place.
    """

    __slots__ = ("number", "runs", "timestamp_us")

    def __init__(self, number: int, timestamp_us: int, runs: Iterable[int] = ()) -> None:
        self.number = number
        self.timestamp_us = timestamp_us
        self.runs = array("Q", runs)


class Producers:
    """The producers of one stream, the longest idle first. Times are timestamps of the stream."""

    __slots__ = ("_by_id", "_last", "_memory", "_runs", "expiry_us")

    def __init__(self, expiry_us: int) -> None:
        self.expiry_us = expiry_us
        self._memory: ProducerMemory | None = None
        self._by_id: OrderedDict[bytes, Producer] = OrderedDict()
        self._runs = 0
        self._last: Producer | None = None  # whose run the stream's latest flagged message belongs to

    def __len__(self) -> int:
        return len(self._by_id)

    # --- how much of it is kept (see `shard.producer_memory`) -------------------------------------------------------

    def count_in(self, memory: ProducerMemory) -> None:
        """Includes this in the accounting from now on, until `release`."""
        self._memory = memory
        memory.hold(self)

    def release(self) -> None:
        if self._memory is not None:
            self._memory.release(self)
            self._memory = None

    @property
    def bytes_held(self) -> int:
        return len(self._by_id) * PRODUCER_BYTES + self._runs * RUN_BYTES

    @property
    def latest_us(self) -> int:
        return next((producer.timestamp_us for producer in reversed(self._by_id.values())), 0)

    @property
    def oldest_us(self) -> int:
        return next((producer.timestamp_us for producer in self._by_id.values()), 0)

    def keep_last_runs(self) -> None:
        if self._runs > len(self._by_id):
            for producer in self._by_id.values():
                producer.runs = producer.runs[-3:]
            self._runs = len(self._by_id)

    def forget_oldest(self) -> None:
        _producer_id, oldest = self._by_id.popitem(last=False)
        self._runs -= len(oldest.runs) // 3
        if self._last is oldest:
            self._last = None

    # --- publishes --------------------------------------------------------------------------------------------------

    def judge(self, producer_id: bytes, number: int, count: int, now_us: int) -> Judgement:
        """Decides about `count` messages from `number` on."""
        producer = self._by_id.get(producer_id)
        if producer is None or producer.timestamp_us + self.expiry_us < now_us:
            return Judgement(NumberVerdict.UNKNOWN if number else NumberVerdict.NEW)
        expected = producer.number
        if number == expected:
            return Judgement(NumberVerdict.NEW)
        if number > expected:
            return Judgement(NumberVerdict.GAP, expected=expected)
        last_number = min(number + count, expected) - 1
        end_seq = 0
        runs = producer.runs
        for place in range(len(runs) - 3, -1, -3):
            first, first_seq = runs[place], runs[place + 2]
            if not end_seq and first <= last_number:
                end_seq = first_seq + last_number - first + 1
            if first <= number:
                seq = first_seq + number - first
                return Judgement(
                    NumberVerdict.REPEAT if number + count <= expected else NumberVerdict.REST, seq, expected, end_seq
                )
        return Judgement(NumberVerdict.OLD, expected=expected)

    def advance(self, producer_id: bytes, number: int, count: int, seq: int, now_us: int) -> bool:
        """Returns whether these messages are the next ones of a known producer; then they are recorded as by `note`."""
        producer = self._by_id.get(producer_id)
        if producer is None or producer.number != number or producer.timestamp_us + self.expiry_us < now_us:
            return False
        producer.timestamp_us = now_us
        if self._last is not producer:
            self._last = producer
            self._by_id.move_to_end(producer_id)
        runs = producer.runs
        if runs[-1] + runs[-2] == seq:
            runs[-2] += count
            producer.number = number + count
        else:
            self._add(producer, ProducerRun(number, count, seq))
        return True

    def note(self, producer_id: bytes, run: ProducerRun, timestamp_us: int) -> None:
        """A run was appended."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            self._make_room(timestamp_us)
            producer = self._by_id[producer_id] = Producer(run.number, timestamp_us)
        elif producer.number != run.number:  # it was forgotten, and has begun anew
            self._runs -= len(producer.runs) // 3
            del producer.runs[:]
        self._by_id.move_to_end(producer_id)
        producer.timestamp_us = timestamp_us
        self._last = producer
        self._add(producer, run)

    def go_on(self, count: int, seq: int, timestamp_us: int) -> None:
        """The stream's latest run goes on with messages `seq` and on."""
        producer = self._last
        if producer is None or not producer.runs:
            return  # it began before all that was looked at
        runs = producer.runs
        if runs[-1] + runs[-2] == seq:
            runs[-2] += count
            producer.number += count
            producer.timestamp_us = timestamp_us

    def _add(self, producer: Producer, run: ProducerRun) -> None:
        runs = producer.runs
        producer.number = run.number + run.messages
        if runs and runs[-3] + runs[-2] == run.number and runs[-1] + runs[-2] == run.seq:
            runs[-2] += run.messages
            return
        runs.extend(run)
        self._runs += 1
        if len(runs) > 3 * RUNS_MAX:
            del runs[:3]
            self._runs -= 1
        if self._runs > RUNS_STREAM_MAX:
            self._shorten()
        if self._memory is not None:
            self._memory.hold(self)

    def _shorten(self) -> None:
        for producer in self._by_id.values():
            runs = producer.runs
            if len(runs) > 3:
                self._runs -= len(runs) // 3 - 1
                producer.runs = runs[-3:]
                return

    def _make_room(self, now_us: int) -> None:
        by_id = self._by_id
        while by_id:
            oldest = next(iter(by_id.values()))
            if len(by_id) < PRODUCERS_MAX and oldest.timestamp_us + self.expiry_us >= now_us:
                return
            self._runs -= len(oldest.runs) // 3
            by_id.popitem(last=False)

    # --- as bytes ---------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[list[Any]]:
        """One row per producer, the longest idle first: id, number, timestamp_us, and its runs one after the other."""
        for producer_id, producer in self._by_id.items():
            yield [producer_id, producer.number, producer.timestamp_us, producer.runs.tolist()]

    def restore(self, rows: Iterable[list[Any]]) -> None:
        """Restores `rows` into this empty object. Raises ValueError, TypeError for invalid rows."""
        for producer_id, number, timestamp_us, flat in rows:
            require_numbering(producer_id, number)
            numbers = iter(flat)
            runs = [ProducerRun(*each) for each in zip(numbers, numbers, numbers, strict=True)]
            if not runs or runs[-1].number + runs[-1].messages != number or len(runs) > RUNS_MAX:
                raise ValueError(f"producer {producer_id!r}: {len(runs)} runs, and the next number is {number}")
            try:
                producer = Producer(number, timestamp_us, chain.from_iterable(runs))
            except OverflowError as error:
                raise ValueError(f"producer {producer_id!r}: {error}") from error
            self._by_id[producer_id] = producer
            self._runs += len(runs)
            self._last = producer
