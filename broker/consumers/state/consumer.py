"""One durable consumer: the messages of its stream that it has not finished, and which members have them. Pure.

Of the messages before `next_seq` those that are not finished wait (`waiting`: they were returned, or passed over), are
in flight at a member (`flight`), or have failed and wait for their time (`delayed`). All others are finished; from
`next_seq` on none is. So finished messages cost nothing, and a consumer whose members finish their messages, in any
order, is a few runs.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from tailrace.broker.consumers.state.delayed import Delayed
from tailrace.broker.consumers.state.keys import Keys
from tailrace.broker.consumers.state.lookahead import Lookahead
from tailrace.broker.consumers.state.ranges import DeliveryRun, DeliveryRuns, SeqRange
from tailrace.broker.consumers.state.records import BadRecord
from tailrace.shard.epochs import NEVER_SEQ, History, epoch_at

FLIGHT_MAX: Final = 65_536
"""Messages of one consumer that are in flight at once: a get gives no more than are missing to it."""

DELAYED_MAX: Final = 4_096
"""Failed messages of one consumer that wait for their time. While there are so many, no new messages are delivered."""

JITTER: Final = 5
"""A failed message waits for up to a 5th longer than its consumer's settings say, so that many do not come at once."""

DYING_MAX: Final = 4_096
"""Dead letters of one consumer that are not published yet. While there are so many, messages go on being delivered."""

OVERDUE_WAIT_US: Final = 1_000_000
"""What a message waits at least that has failed too often, while it cannot become a dead letter for DYING_MAX."""


class DeadLetter(NamedTuple):
    """A message that is delivered no more. `deliveries`: how often it was. `number`: of this consumer's, from 0 on."""

    consumer: bytes
    era_us: int
    number: int
    seq: int
    epoch: int
    deliveries: int
    reason: str

    def producer_id(self, stream: bytes) -> bytes:
        """The id to publish it to X/$dead with, as message 0 of this producer: one for each letter.

        So it is published once however often that is tried, by whichever owner, and nothing is known wrongly where the
        record of a letter was lost with a machine.
        """
        told = repr((stream, self.consumer, self.era_us, self.seq, self.epoch))
        return hashlib.blake2b(told.encode(), digest_size=16).digest()


class Member:
    """`in_flight`: messages. The rest is not logged; `leaving_us` is when its flight is returned, 0 for never.

    `asked_us`: when its last get came; `seen_us`: when it was last decided about, which is later for one that waited.
    `session`: which program of this name it is, 0 if that is not known.
    """

    __slots__ = ("asked_us", "in_flight", "leaving_us", "seen_us", "session")

    def __init__(self) -> None:
        self.in_flight = 0
        self.seen_us = 0
        self.asked_us = 0
        self.leaving_us = 0
        self.session = 0


class DurableConsumer:
    """Read only, but for `broker.consumers`.

    `era_us`: when it was made or reset. `last_us`: when the last create, reset or get was logged. `unsure_seq`:
    messages before it may have been given by an owner whose records of that are lost (0: none). `retry_us`: how long a
    message waits after its first failed delivery, which doubles up to `retry_max_us`. Not logged: `alarm_us`, when
    `Consumers` is to look at it; `keys`, which is there while it has several members or delayed messages; and `ahead`,
    the next messages whose topics match `topics`, which is there once a member has asked. b"" is all topics.
    """

    __slots__ = (
        "ack_wait_us",
        "ahead",
        "alarm_us",
        "created_us",
        "dead",
        "delayed",
        "deliveries_max",
        "dying",
        "era_us",
        "flight",
        "keys",
        "last_us",
        "members",
        "name",
        "next_seq",
        "redelivered",
        "retry_max_us",
        "retry_us",
        "topics",
        "unsure_seq",
        "waiting",
    )

    def __init__(
        self,
        name: bytes,
        time_us: int,
        seq: int,
        ack_wait_us: int,
        deliveries_max: int,
        retry_us: int = 0,
        retry_max_us: int = 0,
        topics: bytes = b"",
    ) -> None:
        self.name = name
        self.created_us = self.era_us = self.last_us = time_us
        self.ack_wait_us = ack_wait_us
        self.deliveries_max = deliveries_max
        self.retry_us = retry_us
        self.retry_max_us = retry_max_us
        self.topics = topics
        self.next_seq = seq
        self.unsure_seq = 0
        self.waiting = DeliveryRuns()
        self.delayed = Delayed()
        self.flight = DeliveryRuns()
        self.dying: dict[int, DeadLetter] = {}
        self.dead = 0
        self.redelivered = 0
        self.members: OrderedDict[bytes, Member] = OrderedDict()
        self.alarm_us = 0
        self.keys: Keys | None = None
        self.ahead: Lookahead | None = None

    @property
    def floor_seq(self) -> int:
        """Every message before it is finished."""
        head_seq = self.next_seq if self.ahead is None else self.ahead.first_seq
        floor_seq = min(self.flight.first_seq(head_seq), self.waiting.first_seq(head_seq))
        return min(floor_seq, self.delayed.runs.first_seq(floor_seq)) if self.delayed.runs.count else floor_seq

    @property
    def spare_seq(self) -> int:
        """The first message that it still needs: its floor, or that of a dead letter which is not published yet.

        Also messages that it has passed over since its last record: after a crash they are read again.
        """
        return min(self.floor_seq, *(letter.seq for letter in self.dying.values()), self.next_seq)

    def lag_messages(self, next_seq: int) -> int:
        """How many messages of a stream with this next seq it has not finished.

        With a filter, messages whose topics nobody has looked at yet count as if they matched.
        """
        held = self.waiting.count + self.delayed.runs.count + self.flight.count
        if self.ahead is None:
            return held + max(0, next_seq - self.next_seq)
        return held + self.ahead.lag_messages(next_seq)

    def is_counted(self, next_seq: int) -> bool:
        """Whether `lag_messages` is exact; else it is more than that, or the same."""
        if not self.topics or self.next_seq >= next_seq:
            return True
        return self.ahead is not None and self.ahead.tail_end_seq >= next_seq

    def unseen(self, first_seq: int, end_seq: int) -> int:
        """How many messages from `next_seq` on it may need of these; as for `lag_messages`."""
        if self.ahead is None:
            return max(0, end_seq - first_seq)
        return self.ahead.matches_before(end_seq) + max(0, end_seq - self.ahead.end_seq)

    def look_ahead(self) -> Lookahead:
        """The matches of its filter that are known; it has a filter."""
        if self.ahead is None:
            self.ahead = Lookahead(self.next_seq)
        return self.ahead

    def first_unheld(self, default: int) -> int:
        """The first message that waits, for its time or not."""
        return min(self.waiting.first_seq(default), self.delayed.runs.first_seq(default))

    def unheld(self, first: int, last: int) -> list[DeliveryRun]:
        """Those of these messages that wait, in order."""
        found = self.waiting.overlap(first, last)
        if self.delayed.runs.count and (delayed := self.delayed.runs.overlap(first, last)):
            found = sorted([*found, *delayed], key=lambda run: run.first)
        return found

    # --- what happens to messages -------------------------------------------------------------------------------------

    def finish(self, ranges: Iterable[SeqRange]) -> None:
        """Finish those of these messages that are in flight or wait, and all from `next_seq` on."""
        for first, last in ranges:
            if last >= self.next_seq:
                if first > self.next_seq:
                    self.waiting.add(DeliveryRun(self.next_seq, first - 1, 0))
                self._go_on_to(last + 1)
            self._land(self.flight.cut(first, last), kept=False)
            if self.waiting.count or self.delayed.runs.count:
                self._drop_waiting(first, last)

    def fail(self, ranges: Iterable[SeqRange], reason: str, history: History, time_us: int = 0, delay: int = 0) -> int:
        """Those of these in flight have failed once more. Returns the earliest time of a next delivery, 0 for now.

        `time_us`: when, 0 if it does not wait; `delay`: as in `Progress.failed`.
        """
        earliest_us = 0
        for first, last in ranges:
            for run in self._land(self.flight.cut(first, last)):
                doomed = self.doomed(run)
                if doomed:
                    self._condemn(run.part(run.first, run.first + doomed - 1), reason, history)
                if doomed < len(run):
                    due_us = self._due_us(run, time_us, delay) if time_us else 0
                    if time_us and self._is_overdue(run):
                        due_us = max(due_us, time_us + OVERDUE_WAIT_US)
                    earliest_us = min(earliest_us, due_us) if earliest_us else due_us
                    self._lay(DeliveryRun(run.first + doomed, run.last, run.deliveries + 1, b"", due_us))
        return earliest_us

    def _due_us(self, run: DeliveryRun, time_us: int, delay: int) -> int:
        """When messages that fail now may be delivered again. Depends only on logged facts, its jitter included."""
        if delay:
            wait_us = delay - 1
        else:
            wait_us = min(self.retry_us << min(run.deliveries, 40), self.retry_max_us)
            wait_us += wait_us * (zlib.crc32(b"%d %d" % (run.first, run.deliveries)) & 0xFFFF) // (JITTER << 16)
        return time_us + wait_us if wait_us else 0

    def wake(self, now_us: int) -> None:
        """Messages that have failed and have waited long enough may be delivered again."""
        for run in self.delayed.take_due(now_us):
            self.waiting.add(run)  # with its time, as a state that is read from the log has it

    def back(self, ranges: Iterable[SeqRange]) -> None:
        """Those of these in flight wait again, as if they had not been delivered."""
        for first, last in ranges:
            for run in self._land(self.flight.cut(first, last)):
                self.waiting.add(DeliveryRun(run.first, run.last, run.deliveries))

    def keep(self, kept_seq: int) -> None:
        """Messages before this seq that wait and were never given are finished: they are not there any more."""
        self._drop_waiting(0, kept_seq - 1)
        if kept_seq > self.next_seq:
            self._go_on_to(kept_seq)
            self.keys = None  # it may know keys of messages that were passed over

    def give(self, member: bytes, ranges: Iterable[SeqRange], deadline_us: int) -> None:
        """These are in flight at the member. Raises BadRecord if one of them does not wait and is not new."""
        for first, last in ranges:
            old_last = min(last, self.next_seq - 1)
            found = self._take_up(first, old_last) if first <= old_last else []
            if sum(map(len, found)) != max(0, old_last - first + 1):
                raise BadRecord(f"consumer {self.name!r}: messages {first} to {last} are given, and do not wait")
            for run in found:
                self._take_off(DeliveryRun(run.first, run.last, run.deliveries, member, deadline_us))
                if run.deliveries:
                    self.redelivered += len(run)
            if last > old_last:
                new_first = max(first, self.next_seq)
                if new_first > self.next_seq:
                    self.waiting.add(DeliveryRun(self.next_seq, new_first - 1, 0))
                self.next_seq = last + 1
                if self.ahead is not None:
                    self.ahead.drop_before(last + 1)
                self._take_off(DeliveryRun(new_first, last, 0, member, deadline_us))

    def go_to(self, seq: int, time_us: int) -> None:
        """Begin anew at this message."""
        self._land(self.flight.cut(0, NEVER_SEQ))
        self.waiting, self.delayed = DeliveryRuns(), Delayed()
        self.keys = self.ahead = None
        self.next_seq = seq
        self.unsure_seq = 0
        self.era_us = self.last_us = time_us

    def cut(self, seq: int) -> bool:
        """Messages from this one on are others now, or not there; whether it had been given any."""
        self.ahead = None
        if self.next_seq <= seq:
            return False
        self._land(self.flight.cut(seq, NEVER_SEQ))
        self._take_up(seq, NEVER_SEQ)
        self.delayed.forget_keys()
        self.next_seq = seq
        self.dying = {number: letter for number, letter in self.dying.items() if letter.seq < seq}
        return True

    def doomed(self, run: DeliveryRun) -> int:
        """How many of these messages, from the first on, die if one delivery more has failed."""
        if not self._is_overdue(run):
            return 0
        return max(0, min(len(run), DYING_MAX - len(self.dying)))

    def _is_overdue(self, run: DeliveryRun) -> bool:
        """Whether these messages have had all their deliveries, with one more that has failed."""
        return 0 < self.deliveries_max <= run.deliveries + 1

    def restore(
        self, waiting: Iterable[DeliveryRun], flight: Iterable[DeliveryRun], dying: Iterable[DeadLetter]
    ) -> None:
        """Restore a part of it from a checkpoint."""
        for run in waiting:
            self._lay(run)
        for run in flight:
            self._take_off(run)
        for letter in dying:
            self.dying[letter.number] = letter

    def _go_on_to(self, seq: int) -> None:
        self.next_seq = seq
        if self.ahead is not None:
            self.ahead.drop_before(seq)

    def _lay(self, run: DeliveryRun) -> None:
        """It waits, for its time if it has one."""
        if run.deadline_us:
            self.delayed.add(run)
        else:
            self.waiting.add(run)

    def _take_up(self, first: int, last: int) -> list[DeliveryRun]:
        """Take out those of these messages that wait, for their time or not."""
        found = self.waiting.cut(first, last) if self.waiting.count else []
        return [*found, *self.delayed.runs.cut(first, last)] if self.delayed.runs.count else found

    def _take_off(self, run: DeliveryRun) -> None:
        """Into flight."""
        member = self.members.get(run.member)
        if member is None:
            member = self.members[run.member] = Member()
        member.in_flight += len(run)
        if self.keys is not None:
            self.keys.took_off(run)
        self.flight.add(run)  # at last: there it may become one with what follows it

    def _land(self, found: list[DeliveryRun], kept: bool = True) -> list[DeliveryRun]:
        """These were in flight; `kept`: and are not finished."""
        for run in found:
            member = self.members[run.member]
            member.in_flight -= len(run)
            if not member.in_flight and not member.seen_us:
                del self.members[run.member]
            if self.keys is not None:
                self.keys.landed(run)
                if not kept:
                    self.keys.forget(run)
        return found

    def _drop_waiting(self, first: int, last: int) -> None:
        for run in self._take_up(first, last):
            if self.keys is not None:
                self.keys.forget(run)

    def _condemn(self, run: DeliveryRun, reason: str, history: History) -> None:
        for seq in range(run.first, run.last + 1):
            letter = DeadLetter(
                self.name, self.era_us, self.dead, seq, epoch_at(history, seq), run.deliveries + 1, reason
            )
            self.dying[letter.number] = letter
            self.dead += 1
        if self.keys is not None:
            self.keys.forget(run)
