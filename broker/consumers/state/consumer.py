"""One durable consumer: what of its stream it has not finished, and who has that. Pure.

Of the messages before `next_seq` those that are not finished wait (`waiting`: they were returned, or passed over), or
are in flight at a member (`flight`). All others are finished; from `next_seq` on none is. So what is finished costs
nothing, and a consumer whose members finish what they get, in whatever order, is a few runs.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from tailrace.broker.consumers.state.keys import Keys
from tailrace.broker.consumers.state.ranges import DeliveryRun, DeliveryRuns, SeqRange
from tailrace.broker.consumers.state.records import BadRecord
from tailrace.shard.epochs import NEVER_SEQ, History, epoch_at

FLIGHT_MAX: Final = 65_536
"""Messages of one consumer that are in flight at once: a get gives no more than are missing to it."""

DYING_MAX: Final = 4_096
"""Dead letters of one consumer that are not published yet. While there are so many, messages go on being delivered."""


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
    `session`: which program of this name it is, 0 where that is not known.
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
    messages before it may have been given by an owner whose records of that are lost (0: none). Not logged:
    `alarm_us`, when `Consumers` is to look at it, and `keys`, which is there while it has several members.
    """

    __slots__ = (
        "ack_wait_us",
        "alarm_us",
        "created_us",
        "dead",
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
        "unsure_seq",
        "waiting",
    )

    def __init__(self, name: bytes, time_us: int, seq: int, ack_wait_us: int, deliveries_max: int) -> None:
        self.name = name
        self.created_us = self.era_us = self.last_us = time_us
        self.ack_wait_us = ack_wait_us
        self.deliveries_max = deliveries_max
        self.next_seq = seq
        self.unsure_seq = 0
        self.waiting = DeliveryRuns()
        self.flight = DeliveryRuns()
        self.dying: dict[int, DeadLetter] = {}
        self.dead = 0
        self.redelivered = 0
        self.members: OrderedDict[bytes, Member] = OrderedDict()
        self.alarm_us = 0
        self.keys: Keys | None = None

    @property
    def floor_seq(self) -> int:
        """Every message before it is finished."""
        return min(self.flight.first_seq(self.next_seq), self.waiting.first_seq(self.next_seq))

    @property
    def spare_seq(self) -> int:
        """The first message that it still needs: its floor, or that of a dead letter which is not published yet."""
        return min(self.floor_seq, *(letter.seq for letter in self.dying.values()), self.next_seq)

    def lag_messages(self, next_seq: int) -> int:
        """How many messages of a stream with this next seq it has not finished."""
        return self.waiting.count + self.flight.count + max(0, next_seq - self.next_seq)

    # --- what happens to messages -------------------------------------------------------------------------------------

    def finish(self, ranges: Iterable[SeqRange]) -> None:
        """What of these is in flight or waits is finished, and what comes from `next_seq` on."""
        for first, last in ranges:
            if last >= self.next_seq:
                if first > self.next_seq:
                    self.waiting.add(DeliveryRun(self.next_seq, first - 1, 0))
                self.next_seq = last + 1
            self._land(self.flight.cut(first, last), kept=False)
            if self.waiting.count:
                self._drop_waiting(first, last)

    def fail(self, ranges: Iterable[SeqRange], reason: str, history: History) -> None:
        """What of these is in flight has failed once more."""
        for first, last in ranges:
            for run in self._land(self.flight.cut(first, last)):
                doomed = self.doomed(run)
                if doomed:
                    self._condemn(run.part(run.first, run.first + doomed - 1), reason, history)
                if doomed < len(run):
                    self.waiting.add(DeliveryRun(run.first + doomed, run.last, run.deliveries + 1))

    def back(self, ranges: Iterable[SeqRange]) -> None:
        """What of these is in flight waits again, as if it had not been delivered."""
        for first, last in ranges:
            for run in self._land(self.flight.cut(first, last)):
                self.waiting.add(DeliveryRun(run.first, run.last, run.deliveries))

    def keep(self, kept_seq: int) -> None:
        """What waits and was never given is finished before this seq: it is not there any more."""
        if self.waiting.count:
            self._drop_waiting(0, kept_seq - 1)
        if kept_seq > self.next_seq:
            self.next_seq = kept_seq
            self.keys = None  # it may know keys of what was passed over

    def give(self, member: bytes, ranges: Iterable[SeqRange], deadline_us: int) -> None:
        """These are in flight at the member. Raises BadRecord where one of them does not wait and is not new."""
        for first, last in ranges:
            old_last = min(last, self.next_seq - 1)
            found = self.waiting.cut(first, old_last) if first <= old_last else []
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
                self._take_off(DeliveryRun(new_first, last, 0, member, deadline_us))

    def go_to(self, seq: int, time_us: int) -> None:
        """Begin anew at this message."""
        self._land(self.flight.cut(0, NEVER_SEQ))
        self.waiting = DeliveryRuns()
        self.keys = None
        self.next_seq = seq
        self.unsure_seq = 0
        self.era_us = self.last_us = time_us

    def cut(self, seq: int) -> bool:
        """Messages from this one on are others now, or not there; whether it had been given any."""
        if self.next_seq <= seq:
            return False
        self._land(self.flight.cut(seq, NEVER_SEQ))
        self.waiting.cut(seq, NEVER_SEQ)
        self.next_seq = seq
        self.dying = {number: letter for number, letter in self.dying.items() if letter.seq < seq}
        return True

    def doomed(self, run: DeliveryRun) -> int:
        """How many of these messages, from the first on, die where one delivery more has failed."""
        if not 0 < self.deliveries_max <= run.deliveries + 1:
            return 0
        return max(0, min(len(run), DYING_MAX - len(self.dying)))

    def restore(
        self, waiting: Iterable[DeliveryRun], flight: Iterable[DeliveryRun], dying: Iterable[DeadLetter]
    ) -> None:
        """A part of what a checkpoint says of it."""
        for run in waiting:
            self.waiting.add(run)
        for run in flight:
            self._take_off(run)
        for letter in dying:
            self.dying[letter.number] = letter

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
        for run in self.waiting.cut(first, last):
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
