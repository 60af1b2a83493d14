"""Subscriptions of more streams than a connection may have cursors in, such as `#` over a hundred thousand.

One has a cursor only in a stream that has grown since it began, from the first message of that growth until all is
sent. So a stream that does not grow costs it nothing. The owners notify this worker of the growth of all their streams
while it has such subscriptions; a stream that was made later is one that has grown from its first message on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from tailrace.broker.delivery.cursor import Cursor, Park
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.sibling import GrownRow

PENDING_MAX: Final = 4_096
"""Of one subscription: streams that have grown and wait for a cursor."""
_BEHIND_TEXT = "more than {limit} streams have messages that wait; subscribe again, and read faster or fewer streams"
_LOST_TEXT = "a worker was replaced, and its last messages may be missing; subscribe again"


class WideClient(Protocol):
    """What is needed of a connection. `joining`: how many cursors are being placed for its wide subscriptions."""

    closed: bool
    lingering_since_s: float
    joining: int

    @property
    def cursor_room(self) -> int: ...


class WideReader(ABC):
    """The side of a door: one subscription of one connection."""

    def __init__(self, client: WideClient) -> None:
        self.connection = client

    @property
    def is_gone(self) -> bool:
        """Whether the connection or the subscription has ended."""
        return self.connection.closed or bool(self.connection.lingering_since_s) or not self.is_open

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether the subscription is there."""

    @abstractmethod
    def is_wanted(self, name: bytes) -> bool:
        """Whether a stream is to be read in which it has no cursor."""

    @abstractmethod
    def place(self, name: bytes, seq: int, placed: Callable[[Cursor | None], None]) -> None:
        """Put a cursor there, and start it once `placed` has been called with it; with None if it cannot be."""

    @abstractmethod
    def drop(self, cursor: Cursor) -> None:
        """Take a cursor away that has nothing to send."""

    @abstractmethod
    def fail(self, code: Code, text: str) -> None:
        """The subscription cannot go on."""


class WideSubscription:
    """`live`: the slots that notify of growth for it; `pending`: by stream, the seq from which on it is to be read."""

    __slots__ = ("awake", "has_begun", "joining", "live", "pending", "reader")

    def __init__(self, reader: WideReader) -> None:
        self.reader = reader
        self.live: set[int] = set()
        self.pending: dict[bytes, int] = {}
        self.joining: set[bytes] = set()
        self.awake: dict[bytes, Cursor] = {}
        self.has_begun = False

    def note(self, rows: list[GrownRow]) -> None:
        for name, first_seq in rows:
            cursor = self.awake.get(name)
            if cursor is not None and cursor.done:
                del self.awake[name]
            elif cursor is not None:
                continue
            if name not in self.joining and name not in self.pending and self.reader.is_wanted(name):
                self.pending[name] = first_seq

    def idle(self) -> list[tuple[Cursor, int]]:
        """The cursors that have nothing to send, with their places."""
        for name in [name for name, cursor in self.awake.items() if cursor.done]:
            del self.awake[name]
        return [(cursor, cursor.settled_seq) for cursor in self.awake.values() if _is_idle(cursor)]


class WideReading:
    """One per worker."""

    def __init__(
        self, call_slot: Callable[[int, str, list[Any], OnResult], None], slots: int, slot: int, generation: int
    ) -> None:
        """`call_slot`: how the owners are asked."""
        self.subscriptions: dict[WideSubscription, None] = {}
        self.waiting: dict[WideSubscription, None] = {}  # with streams that wait for a cursor
        self.own = slot, generation
        self._call_slot = call_slot
        self._slots = slots
        self._is_marking = False
        self._watches = False

    def begin(self, reader: WideReader, done: Callable[[WideSubscription | Refused], None]) -> None:
        """What grows from the answer of its owner on is sent, once `start` is called."""
        subscription, missing, refusals = WideSubscription(reader), self._slots, list[Refused]()
        self.subscriptions[subscription] = None
        self._watches = True

        def answered(slot: int, value: Any) -> None:
            nonlocal missing
            missing -= 1
            if isinstance(value, Refused):
                refusals.append(value)
            else:
                subscription.live.add(slot)
            if missing:
                return
            if refusals:
                self.end(subscription)
            done(refusals[0] if refusals else subscription)

        self._watch(answered)

    def start(self, subscription: WideSubscription) -> None:
        """Its client has the answer."""
        subscription.has_begun = True
        self._wake(subscription)

    def end(self, subscription: WideSubscription) -> None:
        """Its cursors are its reader's to take away."""
        self.subscriptions.pop(subscription, None)
        self.waiting.pop(subscription, None)

    def _watch(self, answered: Callable[[int, Any], None], *, is_wanted: bool = True) -> None:
        for slot in range(self._slots):
            self._call_slot(slot, "watch_growth", [*self.own, is_wanted], partial(answered, slot))

    # --- growth -----------------------------------------------------------------------------------------------------

    def grew(self, slot: int, rows: list[GrownRow]) -> None:
        """Streams that live at a slot have grown."""
        for subscription in list(self.subscriptions):
            if slot in subscription.live and not subscription.reader.is_gone:
                subscription.note(rows)
                self._wake(subscription)

    def cut(self, name: bytes, seq: int) -> None:
        """The messages of a stream from there on are gone, and others may come in their stead."""
        for subscription in self.subscriptions:
            if subscription.pending.get(name, seq) > seq:
                subscription.pending[name] = seq

    def _wake(self, subscription: WideSubscription) -> None:
        """Place cursors in streams that have grown, as far as there is room for them."""
        pending, reader, had_room = subscription.pending, subscription.reader, False
        while pending and subscription.has_begun and not reader.is_gone and reader.connection.cursor_room:
            name = next(iter(pending))
            seq, had_room = pending.pop(name), True
            subscription.joining.add(name)
            reader.connection.joining += 1
            reader.place(name, seq, partial(self._placed, subscription, name))
        if had_room or not pending:
            self.waiting.pop(subscription, None)  # the connection's others come first next time
        if len(pending) > PENDING_MAX:
            self._fail(subscription, Code.OVERLOADED, _BEHIND_TEXT.format(limit=PENDING_MAX))
        elif pending and subscription.has_begun:
            self.waiting[subscription] = None

    def _placed(self, subscription: WideSubscription, name: bytes, cursor: Cursor | None) -> None:
        subscription.joining.discard(name)
        subscription.reader.connection.joining -= 1
        if cursor is not None:
            subscription.awake[name] = cursor

    def _fail(self, subscription: WideSubscription, code: Code, text: str) -> None:
        self.end(subscription)
        if not subscription.reader.is_gone:
            subscription.reader.fail(code, text)

    def measure(self, metrics: WorkerMetrics) -> None:
        metrics.wide_subscriptions = len(self.subscriptions)
        metrics.wide_waiting = sum(len(each.pending) for each in self.waiting)

    # --- cursors that are not needed any more -------------------------------------------------------------------------

    def tick(self) -> None:
        """About once a second."""
        for subscription in [each for each in self.subscriptions if each.reader.is_gone]:
            self.end(subscription)
        if self.subscriptions:
            self.mark(self.subscriptions)
        elif self._watches:
            self._watches = False
            self._watch(lambda _slot, _value: None, is_wanted=False)

    def work(self, flush: Callable[[], None]) -> None:
        """In each turn while subscriptions wait: give them the cursors that their connections need no more. `flush`
        sends at once what the owners are asked.
        """
        for subscription in list(self.waiting):
            self._wake(subscription)
        if self.waiting and not self._is_marking:
            connections = {each.reader.connection for each in self.waiting}
            self.mark([each for each in self.subscriptions if each.reader.connection in connections])
            flush()

    def mark(self, subscriptions: Iterable[WideSubscription]) -> None:
        """Ask the owners, whose answers come behind all that they have announced.

        A cursor that was idle before, and has not moved then, can go: later announcements of its stream are behind its
        place.
        """
        if self._is_marking:
            return
        idle = [(each, *place) for each in subscriptions for place in each.idle()]
        if not idle:
            return
        self._is_marking, missing, has_all = True, self._slots, True

        def answered(_slot: int, value: Any) -> None:
            nonlocal missing, has_all
            missing -= 1
            has_all = has_all and not isinstance(value, Refused)
            if not missing:
                self._is_marking = False
                if has_all:
                    self._drop(idle)

        self._watch(answered)

    def _drop(self, idle: list[tuple[WideSubscription, Cursor, int]]) -> None:
        for subscription, cursor, seq in idle:
            name, knows_all = cursor.feed.name, len(subscription.live) == self._slots
            is_same = subscription.awake.get(name) is cursor and cursor.settled_seq == seq
            if knows_all and is_same and _is_idle(cursor):
                del subscription.awake[name]
                subscription.reader.drop(cursor)

    # --- owners that are replaced -------------------------------------------------------------------------------------

    def owner_is(self, slot: int) -> None:
        """A slot has another owner, whose answer has all growth since it began."""
        watching = [each for each in self.subscriptions if slot in each.live]
        for subscription in watching:
            subscription.live.discard(slot)
        if watching:
            self._call_slot(slot, "watch_growth", [*self.own, True], partial(self._owner_answered, slot, watching))

    def _owner_answered(self, slot: int, watching: list[WideSubscription], value: Any) -> None:
        for subscription in watching:
            if subscription not in self.subscriptions:
                continue
            if value is None or isinstance(value, Refused):
                self._fail(subscription, Code.UNAVAILABLE, _LOST_TEXT)
            else:
                subscription.live.add(slot)
                subscription.note([(bytes(name), seq) for name, seq in value])
                self._wake(subscription)


def _is_idle(cursor: Cursor) -> bool:
    """A cursor with a filter waits at the end while new messages there are still to be walked over."""
    is_at_end = cursor.park() is Park.CAUGHT_UP and cursor.settled_seq >= cursor.feed.end_seq
    return is_at_end and not cursor.done and cursor.client.current is not cursor
