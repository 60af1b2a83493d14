"""Subscriptions of more streams than a connection may have cursors in, such as `#` over a hundred thousand.

One has a cursor only in a stream that has grown since it began, from the first message of that growth until all is
sent. So a stream that does not grow costs it nothing. The owners notify this worker of the growth of all their streams
while it has such subscriptions; a stream that was made later is one that has grown from its first message on.

One that begins in the past reads the streams that are there some at a time, each to its end, beside those that grow
(`broker.delivery.wide_history`). A cursor that has got there is like any other one then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from tailrace.broker.delivery.cursor import Cursor, Park
from tailrace.broker.delivery.growth_waiters import GrowthWaiters
from tailrace.broker.delivery.wide_history import WideHistory, WidePlace
from tailrace.broker.process.metrics import WorkerMetrics
from tailrace.broker.streams.refused import OnResult, Refused
from tailrace.protocol.errors import Code
from tailrace.protocol.listing import NAMES_MAX
from tailrace.protocol.places import From
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

    def __init__(self, client: WideClient, at_once: int = 0) -> None:
        """`at_once`: how many cursors it may have; 0 for as many as the connection may."""
        self.connection = client
        self.at_once = at_once

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
    def place(self, name: bytes, place: WidePlace, placed: Callable[[Cursor | None], None]) -> None:
        """Put a cursor there, and start it once `placed` has been called with it; with None if it cannot be."""

    @abstractmethod
    def drop(self, cursor: Cursor) -> None:
        """Take a cursor away that has nothing to send."""

    @abstractmethod
    def fail(self, code: Code, text: str) -> None:
        """The subscription cannot go on."""

    @abstractmethod
    def history_ended(self) -> None:
        """All streams that were there at the beginning have a cursor, or had one."""


class WideSubscription:
    """`live`: the slots that notify of growth for it; `pending`: by stream, the seq from which on it is to be read.

    `follows`: what grows is read; `history_max`: how many cursors the history may have.
    """

    __slots__ = (
        "awake",
        "follows",
        "has_begun",
        "history",
        "history_is_next",
        "history_max",
        "joining",
        "live",
        "pending",
        "reader",
    )

    def __init__(self, reader: WideReader, history: WideHistory | None, history_max: int, *, follows: bool) -> None:
        self.reader = reader
        self.history = history
        self.history_max = history_max
        self.history_is_next = True
        self.follows = follows
        self.live: set[int] = set()
        self.pending: dict[bytes, int] = {}
        self.joining: set[bytes] = set()
        self.awake: dict[bytes, Cursor] = {}
        self.has_begun = False

    @property
    def room(self) -> int:
        """How many more cursors it may have now."""
        reader, room = self.reader, self.reader.connection.cursor_room
        if not reader.at_once:
            return room
        if len(self.awake) + len(self.joining) >= reader.at_once:
            self._forget_done()
        return min(room, reader.at_once - len(self.awake) - len(self.joining))

    @property
    def waits(self) -> bool:
        """Whether there is a stream that needs a cursor, or may be."""
        return self.has_begun and (bool(self.pending) or self.history is not None)

    @property
    def unplaced(self) -> int:
        """How many streams have grown and wait for a cursor, or for the list of names that may have them."""
        return len(self.pending) + (len(self.history.unsure) if self.history is not None else 0)

    def note(self, rows: list[GrownRow]) -> None:
        history = self.history
        for name, first_seq in rows if self.follows else ():
            cursor = self.awake.get(name)
            if cursor is not None and cursor.done:
                del self.awake[name]
            elif cursor is not None:
                continue
            if name in self.joining or name in self.pending or not self.reader.is_wanted(name):
                continue
            if history is None or not history.has(name, first_seq):
                self.pending[name] = first_seq

    def next(self) -> tuple[bytes, WidePlace] | None:
        """The stream that gets the next cursor. The history takes turns with growth, and has at most half of them."""
        history, pending = self.history, self.pending
        has_history = history is not None and bool(history.queue) and len(history.reading) < self.history_max
        if history is not None and has_history and (self.history_is_next or not pending):
            self.history_is_next = False
            return history.take(), history.place
        if not pending:
            return None
        self.history_is_next = True
        name = next(iter(pending))
        return name, WidePlace(From("seq", pending.pop(name)), is_growth=True)

    def idle(self) -> list[tuple[Cursor, int]]:
        """The cursors that have nothing to send, with their places."""
        self._forget_done()
        idle = [(cursor, cursor.settled_seq) for cursor in self.awake.values() if _is_idle(cursor)]
        if self.history is not None:
            for cursor, _seq in idle:
                self.history.reading.pop(cursor.feed.name, None)
            for name in [each for each in self.history.reading if each not in self.awake and each not in self.joining]:
                del self.history.reading[name]
        return idle

    def _forget_done(self) -> None:
        for name in [name for name, cursor in self.awake.items() if cursor.done]:
            del self.awake[name]


class WideReading:
    """One per worker. The next turn has something to do at once if any of `waiters` is woken, or one of `waiting` may
    have a cursor now (`is_stirred`).
    """

    def __init__(
        self,
        call_slot: Callable[[int, str, list[Any], OnResult], None],
        slots: int,
        slot: int,
        generation: int,
        cursors_max: int,
    ) -> None:
        """`call_slot`: how the owners are asked; `cursors_max`: of a connection."""
        self.subscriptions: dict[WideSubscription, None] = {}
        self.waiting: dict[WideSubscription, None] = {}  # with streams that wait for a cursor
        self.own = slot, generation
        self._call_slot = call_slot
        self._slots = slots
        self._history_max = max(1, cursors_max // 2)
        self._is_marking = False
        self._watches = False
        self.is_stirred = False
        self.waiters = GrowthWaiters()
        self._watched: set[int] = set()  # slots that notify this worker

    def begin(
        self,
        reader: WideReader,
        done: Callable[[WideSubscription | Refused], None],
        history: WideHistory | None = None,
        cursors: Iterable[Cursor] = (),
        *,
        follows: bool = True,
    ) -> None:
        """What grows from the answer of its owner on is sent if it `follows`, and the history, once it is started.

        `cursors`: those that it has already.
        """
        history_max = min(self._history_max, max(1, reader.at_once // 2)) if reader.at_once else self._history_max
        subscription = WideSubscription(reader, history, history_max, follows=follows)
        subscription.awake = {cursor.feed.name: cursor for cursor in cursors}
        missing, refusals = self._slots, list[Refused]()
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
        def noted(slot: int, value: Any) -> None:
            if is_wanted and not isinstance(value, Refused):
                self._watched.add(slot)
            else:
                self._watched.discard(slot)
            answered(slot, value)

        for slot in range(self._slots):
            self._call_slot(slot, "watch_growth", [*self.own, is_wanted], partial(noted, slot))

    # --- those who wait for any growth --------------------------------------------------------------------------------

    def await_growth(self, prefix: bytes, ready: Callable[[], None], grew: Callable[[], None]) -> None:
        """Call `ready` once all growth is notified, or cannot be now; and `grew` once, when a stream whose name begins
        so has grown since, or may have.
        """
        self.waiters.add(prefix, grew)
        missing = self._slots

        def answered(_slot: int, _value: Any) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                ready()

        if len(self._watched) == self._slots:
            ready()
        else:
            self._watches = True
            self._watch(answered)

    def await_no_more(self, grew: Callable[[], None]) -> None:
        self.waiters.discard(grew)

    # --- growth -----------------------------------------------------------------------------------------------------

    def grew(self, slot: int, rows: list[GrownRow]) -> None:
        """Streams that live at a slot have grown."""
        for subscription in list(self.subscriptions):
            if slot in subscription.live and not subscription.reader.is_gone:
                subscription.note(rows)
                self._wake(subscription)
        if self.waiters:
            self.waiters.note(rows)

    def cut(self, name: bytes, seq: int) -> None:
        """The messages of a stream from there on are gone, and others may come in their stead."""
        for subscription in self.subscriptions:
            unsure = {} if subscription.history is None else subscription.history.unsure
            for firsts in (subscription.pending, unsure):
                if firsts.get(name, seq) > seq:
                    firsts[name] = seq

    def _wake(self, subscription: WideSubscription) -> None:
        """Place cursors in streams that have grown, or are to be read from the past, as far as there is room."""
        reader, had_room = subscription.reader, False
        history, is_open = subscription.history, subscription.has_begun and not reader.is_gone
        if is_open and history is not None and history.wants_page:
            self._list(subscription, history)
        while is_open and not reader.is_gone and subscription.room > 0 and (found := subscription.next()):
            name, place = found
            had_room = True
            subscription.joining.add(name)
            reader.connection.joining += 1
            reader.place(name, place, partial(self._placed, subscription, name))
        if is_open and history is not None and history.is_taken and not subscription.joining:
            self._end_history(subscription)
        if had_room or not subscription.waits:
            self.waiting.pop(subscription, None)  # the connection's others come first next time
        if subscription.unplaced > PENDING_MAX:
            self._fail(subscription, Code.OVERLOADED, _BEHIND_TEXT.format(limit=PENDING_MAX))
        elif subscription.waits and subscription in self.subscriptions:
            self.waiting[subscription] = None

    def _placed(self, subscription: WideSubscription, name: bytes, cursor: Cursor | None) -> None:
        subscription.joining.discard(name)
        subscription.reader.connection.joining -= 1
        if cursor is not None:
            subscription.awake[name] = cursor
        self.is_stirred = self.is_stirred or subscription.history is not None

    def _list(self, subscription: WideSubscription, history: WideHistory) -> None:
        """Ask the owners for the next names. The next turn goes on with them: the answer may come at once."""
        history.is_asking, missing, page = True, self._slots, list[bytes]()
        has_failed = False

        def answered(value: Any) -> None:
            nonlocal missing, has_failed
            missing -= 1
            has_failed = has_failed or isinstance(value, Refused)
            page.extend(() if isinstance(value, Refused) else map(bytes, value))
            if missing:
                return
            if has_failed:
                history.page_failed()  # an owner that is being replaced lists nothing for a moment
                return
            later = history.add_page(sorted(page)[:NAMES_MAX], subscription.reader.is_wanted)
            subscription.pending.update(row for row in later if subscription.reader.is_wanted(row[0]))
            self.is_stirred = True

        for slot in range(self._slots):
            self._call_slot(slot, "list_names", [history.prefix, history.after, NAMES_MAX], answered)

    def _end_history(self, subscription: WideSubscription) -> None:
        subscription.history = None
        if not subscription.follows:
            self.end(subscription)
        subscription.reader.history_ended()

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
        elif (self._watches or self._watched) and not self.waiters:  # an owner may have answered since they ended
            self._watches = False
            self._watched.clear()
            self._watch(lambda _slot, _value: None, is_wanted=False)

    def work(self, flush: Callable[[], None]) -> None:
        """In each turn while subscriptions wait, or growth was waited for: give subscriptions the cursors that their
        connections need no more. `flush` sends at once what the owners are asked.
        """
        if self.waiters.woken:
            self.waiters.call()
            flush()
        self.is_stirred = False
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
                self.is_stirred = bool(self.waiting)

    # --- owners that are replaced -------------------------------------------------------------------------------------

    def owner_is(self, slot: int) -> None:
        """A slot has another owner, whose answer has all growth since it began."""
        self._watched.discard(slot)
        self.waiters.note_any()
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
