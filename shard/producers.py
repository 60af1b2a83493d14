"""The producers of one stream: who has published with numbers, how far, and where their latest runs are. Pure.

A producer gives each of its messages in a stream a number: 0, 1, 2, … without holes. So a publish that is sent again is
known by its numbers, and is answered with the seq it got the first time. All that is known here can be had from the log
(`shard.producer_file`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

from shard.numbering import require_numbering

PRODUCERS_MAX: Final = 4_096
"""Of one stream. Those that were idle for the longest time are forgotten first."""
RUNS_MAX: Final = 1_024
"""Of one producer: as many publishes as a client has under way, all of which it may send again."""
RUNS_STREAM_MAX: Final = 65_536
"""Of all producers of a stream. Those that were idle for the longest time keep their last run only."""


class Run(NamedTuple):
    """Messages `number` to `number + messages - 1` of a producer are messages `seq` and on of the stream."""

    number: int
    messages: int
    seq: int


class Kind(Enum):
    NEW = "new"  # to be appended
    REPEAT = "repeat"  # logged before, from `seq` on
    REST = "rest"  # of it, `expected - number` messages are logged, from `seq` on; the others are to be appended
    OLD = "old"  # logged before; where is not known any more
    GAP = "gap"  # messages before it are missing: `expected` is the number that comes next
    UNKNOWN = "unknown"  # messages before it may be missing, or it may be logged: nothing is known of the producer


class Judgement(NamedTuple):
    """`end_seq`: behind the last message of a repeat, whose messages need not lie together in the log."""

    kind: Kind
    seq: int = 0
    expected: int = 0
    end_seq: int = 0


class Producer:
    """`number`: the one that its next message has. `runs` are as `Run`, but lists: the last one grows in place."""

    __slots__ = ("number", "runs", "timestamp_us")

    def __init__(self, number: int, timestamp_us: int, runs: Iterable[Run] = ()) -> None:
        self.number = number
        self.timestamp_us = timestamp_us
        self.runs: deque[list[int]] = deque(map(list, runs))


class Producers:
    """Those of one stream, the longest idle first. Times are timestamps of the stream."""

    __slots__ = ("_by_id", "_last", "_runs", "expiry_us")

    def __init__(self, expiry_us: int) -> None:
        self.expiry_us = expiry_us
        self._by_id: OrderedDict[bytes, Producer] = OrderedDict()
        self._runs = 0
        self._last: Producer | None = None  # whose run the stream's latest flagged message belongs to

    def __len__(self) -> int:
        return len(self._by_id)

    def judge(self, producer_id: bytes, number: int, count: int, now_us: int) -> Judgement:
        """What to do with `count` messages from `number` on."""
        producer = self._by_id.get(producer_id)
        if producer is None or producer.timestamp_us + self.expiry_us < now_us:
            return Judgement(Kind.UNKNOWN if number else Kind.NEW)
        expected = producer.number
        if number == expected:
            return Judgement(Kind.NEW)
        if number > expected:
            return Judgement(Kind.GAP, expected=expected)
        last_number = min(number + count, expected) - 1
        end_seq = 0
        for first, _messages, first_seq in reversed(producer.runs):
            if not end_seq and first <= last_number:
                end_seq = first_seq + last_number - first + 1
            if first <= number:
                seq = first_seq + number - first
                return Judgement(Kind.REPEAT if number + count <= expected else Kind.REST, seq, expected, end_seq)
        return Judgement(Kind.OLD, expected=expected)

    def advance(self, producer_id: bytes, number: int, count: int, seq: int, now_us: int) -> bool:
        """Whether these messages are the next ones of a producer that is known; then they are noted as `note` does."""
        producer = self._by_id.get(producer_id)
        if producer is None or producer.number != number or producer.timestamp_us + self.expiry_us < now_us:
            return False
        last = producer.runs[-1]
        if last[2] + last[1] == seq:
            last[1] += count
            producer.number = number + count
        else:
            self._add(producer, Run(number, count, seq))
        producer.timestamp_us = now_us
        if self._last is not producer:
            self._last = producer
            self._by_id.move_to_end(producer_id)
        return True

    def note(self, producer_id: bytes, run: Run, timestamp_us: int) -> None:
        """A run was appended."""
        producer = self._by_id.get(producer_id)
        if producer is None:
            self._make_room(timestamp_us)
            producer = self._by_id[producer_id] = Producer(run.number, timestamp_us)
        elif producer.number != run.number:  # it was forgotten, and has begun anew
            self._runs -= len(producer.runs)
            producer.runs.clear()
        self._by_id.move_to_end(producer_id)
        self._add(producer, run)
        producer.timestamp_us = timestamp_us
        self._last = producer

    def go_on(self, count: int, seq: int, timestamp_us: int) -> None:
        """The stream's latest run goes on with messages `seq` and on."""
        producer = self._last
        if producer is None or not producer.runs:
            return  # it began before all that was looked at
        last = producer.runs[-1]
        if last[2] + last[1] == seq:
            last[1] += count
            producer.number += count
            producer.timestamp_us = timestamp_us

    def _add(self, producer: Producer, run: Run) -> None:
        runs = producer.runs
        producer.number = run.number + run.messages
        if runs:
            last = runs[-1]
            if last[0] + last[1] == run.number and last[2] + last[1] == run.seq:
                last[1] += run.messages
                return
        runs.append(list(run))
        self._runs += 1
        if len(runs) > RUNS_MAX:
            runs.popleft()
            self._runs -= 1
        if self._runs > RUNS_STREAM_MAX:
            self._shorten()

    def _shorten(self) -> None:
        for producer in self._by_id.values():
            runs = producer.runs
            if len(runs) > 1:
                self._runs -= len(runs) - 1
                producer.runs = deque((runs[-1],))
                return

    def _make_room(self, now_us: int) -> None:
        by_id = self._by_id
        while by_id:
            oldest = next(iter(by_id.values()))
            if len(by_id) < PRODUCERS_MAX and oldest.timestamp_us + self.expiry_us >= now_us:
                return
            self._runs -= len(oldest.runs)
            by_id.popitem(last=False)

    # --- as bytes ---------------------------------------------------------------------------------------------------

    def rows(self) -> Iterator[list[Any]]:
        """Of each producer, the longest idle first: id, number, timestamp_us, and its runs one after the other."""
        for producer_id, producer in self._by_id.items():
            runs = [number for run in producer.runs for number in run]
            yield [producer_id, producer.number, producer.timestamp_us, runs]

    def restore(self, rows: Iterable[list[Any]]) -> None:
        """Take what `rows` gave; this is empty. Raises ValueError, TypeError for what cannot be such rows."""
        for producer_id, number, timestamp_us, flat in rows:
            require_numbering(producer_id, number)
            numbers = iter(flat)
            runs = [Run(*each) for each in zip(numbers, numbers, numbers, strict=True)]
            if not runs or runs[-1].number + runs[-1].messages != number or len(runs) > RUNS_MAX:
                raise ValueError(f"producer {producer_id!r}: {len(runs)} runs, and the next number is {number}")
            producer = self._by_id[producer_id] = Producer(number, timestamp_us, runs)
            self._runs += len(runs)
            self._last = producer
