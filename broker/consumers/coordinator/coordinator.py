"""The coordinator of durable consumers at the owner: decides each request, logs the decision, then answers.

The decisions of a turn about a stream are appended at the end of the turn with one write, and answered like a publish:
once they are appended, on the disk, or on N other nodes. If they cannot be appended, everybody who waits for them gets
the reason, the decisions are dropped and the log is read anew. One per worker; it costs nothing while nobody consumes.
"""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

from tailrace.broker.consumers.coordinator.dead_letters import DeadLetters
from tailrace.broker.consumers.coordinator.lag_counts import LagCounts
from tailrace.broker.consumers.coordinator.log_view import TURN_READ_BYTES, ReadBudget
from tailrace.broker.consumers.coordinator.stream_consumers import StreamConsumers
from tailrace.broker.consumers.coordinator.waiting_gets import WaitingGet, WaitingGets
from tailrace.broker.consumers.state import decide
from tailrace.broker.consumers.state.decide import Decision, GetResult
from tailrace.broker.consumers.state.decide_get import present
from tailrace.broker.routing.batch import LoggedAnswer, OutcomeSink
from tailrace.broker.streams.open_stream import Grown
from tailrace.broker.streams.owner import Owner
from tailrace.broker.streams.owner_calls import refusals
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.errors import Code
from tailrace.shard.errors import StorageError, peer_text
from tailrace.shard.meta import Role
from tailrace.shard.names import CURSOR_PREFIX, DEAD_SUFFIX

log = logging.getLogger(__name__)

T = TypeVar("T")

BOOKS_MAX: Final = 4_096
"""Streams whose consumers are held in memory; those asked for longest ago are read anew the next time."""
COUNTED_MAX: Final = 256
"""Streams whose consumers' members are counted each second."""
SERVED_A_TURN: Final = 256
"""Gets that have waited and are looked at in one turn."""
ELSEWHERE_TEXT: Final = "another node is the stream's master now; ask again"
DISABLED_TEXT: Final = "this stream is disabled here; an administrator can make it a master"


class Coordinator:
    """`clock`: monotonic seconds."""

    def __init__(self, owner: Owner, clock: Callable[[], float], on_change: Callable[[bytes], None]) -> None:
        """`on_change` is called with a stream's name if its consumers may change from now on."""
        self.owner = owner
        self.clock = clock
        self.books: OrderedDict[bytes, StreamConsumers] = OrderedDict()
        self.members: dict[bytes, int] = {}  # of streams, how many members their consumers had a second ago
        self.waiters = WaitingGets()
        self.patient = True  # gets may wait for messages
        self.post = DeadLetters(self)
        self.lags = LagCounts(self.known)
        self._on_change = on_change
        self._reading = ReadBudget()
        self._staged: dict[bytes, StreamConsumers] = {}
        self._hungry: dict[tuple[bytes, bytes], None] = {}  # consumers at which some wait, and may be given something
        self._deadlines: list[tuple[int, bytes]] = []  # a heap

    # --- books ------------------------------------------------------------------------------------------------------

    def book(self, name: bytes) -> StreamConsumers:
        """The consumers of a stream of which this node is the master. Raises Refused."""
        book = self.known(name)
        if book is not None:
            self.books.move_to_end(name)
            return book
        with refusals("consume"):
            book = StreamConsumers(self.owner, name, self._reading)
        self.books[name] = book
        self._on_change(name)
        if book.log.staged:
            self._staged[name] = book
        self.post.reconcile(book)
        self.schedule(book)
        self._put_away()
        return book

    def _count_members(self) -> None:
        """Count the members per stream, for the COUNTED_MAX streams that were asked for last."""
        now_us = self.owner.clock_us()
        self.members.clear()
        for name, book in islice(reversed(self.books.items()), COUNTED_MAX):
            if count := sum([present(consumer, now_us) for consumer in book.consumers.by_name.values()]):
                self.members[name] = count

    def known(self, name: bytes) -> StreamConsumers | None:
        """The book, if there is one and its log has not failed."""
        book = self.books.get(name)
        if book is not None and book.log.failure is not None:
            self.discard(book, book.log.failure)
            return None
        return book

    def discard(self, book: StreamConsumers, refused: Refused) -> None:
        """Drop the decisions that are not logged yet; all who wait get the reason."""
        if self.books.get(book.name) is not book:
            return
        del self.books[book.name]
        self._staged.pop(book.name, None)
        book.log.refuse(refused)
        for waiter in self.waiters.take_all(book.name):
            waiter.resolve(refused)

    def deleted(self, name: bytes) -> None:
        """The stream, or its log of consumers, is about to be no more."""
        book = self.books.get(name.removeprefix(CURSOR_PREFIX))
        if book is not None:
            self.discard(book, Refused(Code.UNKNOWN, "the stream is deleted"))
        self._on_change(name.removeprefix(CURSOR_PREFIX))

    def answer_with(self, done: OnResult, value: Any) -> OutcomeSink:
        """For `stage`: answers with this value."""
        return LoggedAnswer(done, value)

    def _put_away(self) -> None:
        for name in list(islice(self.books, max(len(self.books) - BOOKS_MAX, 0))):
            book = self.books[name]
            if not book.log.staged and not book.posted and name not in self.waiters:
                del self.books[name]

    # --- decisions --------------------------------------------------------------------------------------------------

    def decided(self, book: StreamConsumers, decision: Callable[[], Decision[T]]) -> Decision[T]:
        """Make the decision. Raises Refused, and drops the unlogged decisions, if the stream cannot be read."""
        try:
            return decision()
        except (StorageError, OSError, ValueError) as error:
            log.error("the consumers of stream %r: %s", book.name, error)
            refused = Refused(Code.UNAVAILABLE, f"the owner of this stream cannot do this: {peer_text(error)}")
            self.discard(book, refused)
            raise refused from error

    def stage(
        self,
        book: StreamConsumers,
        decision: Decision[Any],
        answer: OutcomeSink | None = None,
        consumers: Iterable[bytes] = (),
        *,
        sync: bool = False,
        replicas: int = 0,
    ) -> None:
        """Write a decision about these consumers down in this turn, and answer when that is logged. Raises Refused."""
        try:
            book.log.stage(decision.records, answer, sync=sync, replicas=replicas)
        except Refused as refused:
            self.discard(book, refused)
            raise
        if book.log.staged:
            self._staged[book.name] = book
        if decision.records:
            for consumer in consumers:
                if self.waiters.of(book.name, consumer):
                    self._hungry[book.name, consumer] = None
        if decision.dead:
            self.post.reconcile(book)
        self.schedule(book)

    def answer_empty(self, waiter: WaitingGet) -> None:
        """A get that waits no more is given nothing: its client asks again."""
        book = self.known(waiter.name)
        nothing: Decision[None] = Decision((), None)
        if book is None:
            waiter.resolve(Refused(Code.UNAVAILABLE, "the consumers of this stream are read anew; ask again"))
            return
        answer = LoggedAnswer(waiter.resolve, waiter.so_far.to_wire())
        self.stage(book, nothing, answer, sync=waiter.sync, replicas=waiter.wanted.replicas)

    # --- the turn ---------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether there is something to do in this turn."""
        if self._staged or self._hungry or self.post.waiting or self.lags.wanted:
            return True
        return self._reading.left_bytes < TURN_READ_BYTES

    def read_on(self, name: bytes, consumer: bytes) -> None:
        """The consumer's filter is to see more of the stream in the next turn."""
        self._hungry[name, consumer] = None

    def grew(self, grown: Grown) -> None:
        """Streams have new messages."""
        for name in grown:
            if name in self.waiters:
                for consumer in self.waiters.consumers(name):
                    self._hungry[name, consumer] = None

    def work(self) -> None:
        """Serve the waiting gets, log the decisions, send dead letters, count the lag of filters."""
        self._serve()
        self.flush()
        self.post.send()
        if self.lags.wanted:
            self.lags.work()

    def flush(self) -> None:
        """Append the decisions: one write per stream."""
        staged, self._staged = self._staged, {}
        now_s = self.clock()
        for book in staged.values():
            if self.books.get(book.name) is book and book.log.staged:
                try:
                    book.log.flush(book.consumers, now_s)
                except Refused as refused:
                    self.discard(book, refused)
                self.known(book.name)

    def _serve(self) -> None:
        self._reading.left_bytes = TURN_READ_BYTES
        left = SERVED_A_TURN
        for name, consumer in list(islice(self._hungry, SERVED_A_TURN)):
            if left <= 0:
                return
            del self._hungry[name, consumer]
            left -= self._serve_consumer(name, consumer)

    def _serve_consumer(self, name: bytes, consumer: bytes) -> int:
        """Give the available messages to waiting gets; returns how many gets were looked at."""
        looked_at = 1
        nothing_for_idle = False
        for waiter in self.waiters.of(name, consumer):
            book = self.known(name)
            if book is None:
                break
            idle = not book.in_flight(consumer, waiter.wanted.member)
            if idle and nothing_for_idle:
                continue  # the rest goes by its keys to members that have messages in flight: an idle member gets none
            try:
                if not book.has_some(consumer):
                    break
                nothing_for_idle |= not self._serve_one(book, waiter) and idle
            except Refused as refused:
                self.waiters.remove(waiter)
                waiter.resolve(refused)
            looked_at += 1
        self._read_on_if_short(name, consumer)
        return looked_at

    def _read_on_if_short(self, name: bytes, consumer: bytes) -> None:
        """Look at it in the next turn too, if its filter has not seen all of the stream; answer who waits for that."""
        book, waiting = self.known(name), self.waiters.of(name, consumer)
        if book is None or not waiting:
            return
        if book.is_short(consumer):
            self.read_on(name, consumer)
            return
        for waiter in waiting:
            if not waiter.wanted.wait_ms:
                self.waiters.remove(waiter)
                self.answer_empty(waiter)

    def _serve_one(self, book: StreamConsumers, waiter: WaitingGet) -> bool:
        """Whether it was given something. Raises Refused."""
        log_view, now_us = book.current(), self.owner.clock_us()
        decision = self.decided(
            book, lambda: decide.get(book.consumers, waiter.wanted, log_view, now_us, waiter.asked_us)
        )
        if decision.value.runs:
            self.waiters.remove(waiter)
        self._give(book, waiter, decision)
        return bool(decision.value.runs)

    def _give(self, book: StreamConsumers, waiter: WaitingGet, decision: Decision[GetResult]) -> None:
        before, now = waiter.so_far, decision.value
        waiter.so_far = so_far = GetResult(now.runs, before.stale + now.stale, before.trimmed + now.trimmed)
        answer = LoggedAnswer(waiter.resolve, so_far.to_wire()) if now.runs else None
        self.stage(book, decision, answer, sync=waiter.sync, replicas=waiter.wanted.replicas)

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def watches_clock(self) -> bool:
        """Whether `tick` has anything to look for: gets that wait, deadlines of messages that are in flight."""
        return bool(self.waiters.count or self._deadlines)

    def tick(self) -> None:
        """From the coarse timer."""
        for waiter in self.waiters.take_due(self.clock()):
            self.answer_empty(waiter)
        now_us = self.owner.clock_us()
        due = []
        while self._deadlines and self._deadlines[0][0] <= now_us:
            due.append(heapq.heappop(self._deadlines))
        for due_us, name in due:
            book = self.known(name)
            if book is not None and book.scheduled_us == due_us:
                book.scheduled_us = None
                self._expire(book, now_us)

    def seldom(self) -> None:
        """From a slower timer."""
        self._count_members()
        self.post.try_again()
        for book in self.books.values():
            try:
                book.log.trim()
            except (Refused, StorageError, OSError) as error:
                log.warning("the log of the consumers of stream %r cannot be trimmed: %s", book.name, error)

    def _expire(self, book: StreamConsumers, now_us: int) -> None:
        try:
            log_view = book.current()
            decision = self.decided(book, lambda: decide.expire(book.consumers, log_view, now_us))
            self.stage(book, decision)
            for consumer in decision.value:
                if self.waiters.of(book.name, consumer):
                    self._hungry[book.name, consumer] = None
        except Refused as refused:
            log.warning("the deadlines of the consumers of stream %r: %s", book.name, refused.text)

    def schedule(self, book: StreamConsumers) -> None:
        """See to it that the deadlines are looked at in time."""
        due_us = decide.next_deadline_us(book.consumers)
        if due_us is not None and (book.scheduled_us is None or due_us < book.scheduled_us):
            book.scheduled_us = due_us
            heapq.heappush(self._deadlines, (due_us, book.name))

    # --- changes of the stream, or of the worker ----------------------------------------------------------------------

    def role_changed(self, name: bytes) -> None:
        """The role, the term or the end of a stream, or of its log of consumers, has changed."""
        if name.endswith(DEAD_SUFFIX):
            self.role_changed(name.removesuffix(DEAD_SUFFIX))
        self._on_change(name.removeprefix(CURSOR_PREFIX))
        book = self.known(name.removeprefix(CURSOR_PREFIX))
        if book is None:
            return
        role = self.owner.roles.role(book.name)
        if role is not Role.MASTER:
            here = (Code.UNAVAILABLE, ELSEWHERE_TEXT) if role is Role.SLAVE else (Code.DISABLED, DISABLED_TEXT)
            self.discard(book, Refused(*here))
            return
        try:
            with refusals("consume"):
                book.rewind()
        except Refused as refused:
            self.discard(book, refused)
        else:
            if book.log.staged:
                self._staged[book.name] = book

    def end_waits(self) -> None:
        """No get waits from now on: this worker, or the node, is about to stop."""
        self.patient = False
        for waiter in self.waiters.take_all():
            self.answer_empty(waiter)

    def retire(self) -> None:
        """Give the streams up. A successor answers all requests from here on."""
        self.end_waits()
        self.flush()
        self.books.clear()
        self._hungry.clear()
        self._deadlines.clear()
        self.post.waiting.clear()
