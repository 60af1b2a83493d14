"""More streams than a connection may have subscriptions, read in turn. Pure: answers in, names out.

Each stream is read up to its present end by a subscription that ends there, some at a time. The node is asked which
streams have grown, and answers when one has; those are read on from where that ended, before others that wait for their
turn. The first such questions come before the first reading, so nothing falls between the two; if streams were made
between the list of names and these questions, the names are listed once more. A node that does not
know later, as after a failover, means that each stream may have grown.

With each growth the last message that was read comes again. A stream that has another one there, or has become
shorter, was deleted and made again if its first message is of a later term: it is read from its beginning then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from tailrace.core.calls import PendingCall
from tailrace.core.listing import list_call
from tailrace.core.session import Session
from tailrace.core.subscribe_options import SubscribeOptions
from tailrace.core.subscription_state import NO_LAST, Arrived, SubscriptionState
from tailrace.errors import StreamBehind, StreamDiverged, TailraceError
from tailrace.protocol.fields import NUMBER_MAX
from tailrace.protocol.listing import ENDS_MAX, FEATURE, WAIT_MAX_MS, EndRow, List, Listed
from tailrace.protocol.places import FROM_NEW, From

POLL_S: Final = 0.05
"""Between two questions which streams have grown, if the node does not wait before it answers; between two looks for a
place."""
PAUSE_S: Final = 0.005
"""Before the next question, while streams grow."""
WAIT_MS: Final = WAIT_MAX_MS
"""How long the node waits before it answers that none has grown."""
RELIST_S: Final = 1.0
"""Between two looks which streams were deleted, if some were made or deleted."""
AT_ONCE_MAX: Final = 256
"""Streams that are read at one time."""
BACKLOG_AT_ONCE_MAX: Final = 64
"""Of these, streams that are not known to have grown: growth is read behind them."""
ENDS_PAGES_MAX: Final = 4
"""Requests for the ends of streams at one time, so that all workers look for them."""
ASKS_MAX: Final = 3
"""Questions which streams have grown before all are read because that is not known. A worker notes growth from the
first one on, and knows all since the mark of the second, for which the worker that was last to begin had begun."""


class Place(NamedTuple):
    """The next message to be read of a stream; seq, time and epoch of the last one that was read, or NO_LAST."""

    next_seq: int
    last: tuple[int, int, int]

    @property
    def epoch(self) -> int:
        return self.last[2]


class WideStreams:
    """`backlog`, `grown`: those to be read next; `reading`: those being read, and whether each has grown since. `ready`
    once all that is published from then on will be read; `error`: why it never will be. `poll_s`: when to call `poll`.
    `is_crowded_out`: the connection has no place left, so none is read before the next `poll`.
    """

    def __init__(
        self,
        session: Session,
        options: Callable[[str, bool], SubscribeOptions],
        matches: Callable[[str], bool],
        on_queued: Callable[[float], None],
        prefix: str,
        *,
        follows: bool,
        timeout_s: float,
    ) -> None:
        self.backlog: dict[str, None] = {}
        self.grown: dict[str, None] = {}
        self.reading: dict[str, bool] = {}
        self.ready = False
        self.error: TailraceError | None = None
        self.poll_s = math.inf
        self.is_crowded_out = False
        self.at_once = self._at_once_max = max(
            1, min(AT_ONCE_MAX, room_of(session) // 2)
        )  # the others are for the program's own
        self._session = session
        self._options = options
        self._matches = matches
        self._on_queued = on_queued
        self._prefix = prefix  # of all names
        self._of_backlog: set[str] = set()  # among those being read
        self._unknown_answers = 0  # one after the other
        self._knows_growth = True  # since the last reading of all
        self._knows_names = False  # of all streams whose making was not noted as growth
        self._has_begun = False
        self._has_subscribed = False  # to the first streams, without taking turns
        self._asked_s = -math.inf
        self._is_asking = False  # which streams have grown
        self._follows = follows
        self._timeout_s = timeout_s
        self._first: set[str] = set()  # the streams that were there at first
        self._places: dict[str, Place] = {}  # of those that were read
        self._changed: dict[str, tuple[StreamBehind | StreamDiverged, int]] = {}  # with the term that was read
        self._version = -1
        self._relist_s = math.inf
        self._pages_asked = 0  # of the ends, without an answer yet
        self._unplaced: set[str] = set()  # of which the ends are not known, where new messages begin
        self._mark = self._next_mark = ""
        self._is_over = False

    # --- the streams ------------------------------------------------------------------------------------------------

    def begin(self, names: Iterable[str], version: int, now_s: float) -> None:
        """`version`: that of the node's names when these were listed."""
        self._first, self._version = set(names), version
        if self._follows:
            self._ask_grown("", now_s)
        else:
            self._queue_all(now_s)

    def go_on(self, names: Iterable[str], now_s: float) -> None:
        """Each of these streams has a subscription of its own so far, which has ended, and may have messages to read.

        They are read on once growth is noted; all others are listed behind that.
        """
        self._first, self._has_subscribed = set(names), True
        self.reading = dict.fromkeys(self._first, False)
        self._ask_grown("", now_s)

    @property
    def waits(self) -> bool:
        """Whether a stream waits to be read."""
        return bool(self.backlog or self.grown)

    @property
    def has_next(self) -> bool:
        """Whether one may be read now."""
        return bool(self.grown) or (bool(self.backlog) and len(self._of_backlog) < BACKLOG_AT_ONCE_MAX)

    def next_options(self) -> SubscribeOptions:
        """For the stream that comes next, of those that wait."""
        waiting = self.grown or self.backlog
        name = next(iter(waiting))
        if waiting is self.backlog:
            self._of_backlog.add(name)
        del waiting[name]
        self.reading[name] = False
        options, place = self._options(name, name not in self._first), self._places.get(name)
        if place is not None:
            last = None if place.last == NO_LAST else place.last
            options = replace(options, start=From("seq", place.next_seq), skip=0, resumes=True, last=last)
        return replace(options, end=("now", 0), wait=False) if self._follows else options

    def done(self, state: SubscriptionState) -> None:
        """All of a stream was read up to the end that it had, or up to an error."""
        name, place = state.stream, self._places.pop(state.stream, Place(0, NO_LAST))
        has_grown = self.reading.pop(name, False)
        self._of_backlog.discard(name)
        if state.error is None:
            self.at_once = min(self.at_once + 1, self._at_once_max)
            last = place.last if state.last == NO_LAST else state.last
            self._places[name] = Place(max(state.next_seq, state.end_seq or 0), last)
        else:
            self._first.discard(name)  # if it comes again, it is another one
        if has_grown:
            self.grown[name] = None
        self._unplaced.discard(name)
        self._settle()

    def is_changed(self, state: SubscriptionState, error: StreamBehind | StreamDiverged) -> bool:
        """Whether to read a stream from its beginning that ends before its place, or has another message there."""
        name, place = state.stream, self._places.get(state.stream)
        if place is None:
            return False
        self._changed[name], self.reading[name] = (error, place.epoch), True
        return True

    def fault(self, arrived: Arrived) -> StreamBehind | StreamDiverged | None:
        """The error of a stream that has changed, and was not made again."""
        for message in arrived.messages[:1] if self._changed else ():
            error, epoch = self._changed.pop(message.stream, (None, 0))
            if message.epoch <= epoch:
                return error
        return None

    def put_back(self, state: SubscriptionState) -> None:
        """Its subscription found too many others."""
        has_grown = self.reading.pop(state.stream, False) or state.stream not in self._of_backlog
        self._of_backlog.discard(state.stream)
        (self.grown if has_grown else self.backlog)[state.stream] = None
        self.at_once = max(1, self.at_once - 1)
        self.is_crowded_out = True

    def end(self) -> None:
        self._is_over = True
        self.poll_s = math.inf
        self.backlog.clear()
        self.grown.clear()

    def _grew(self, names: Iterable[str], *, is_known: bool = True) -> None:
        """Unless it `is_known`, each may have grown."""
        for name in names:
            if name in self.reading:
                self.reading[name] = True
            elif self._matches(name) and is_known:
                self.backlog.pop(name, None)
                self.grown[name] = None
            elif self._matches(name) and name not in self.grown:
                self.backlog[name] = None

    def _queue_all(self, now_s: float) -> None:
        self.backlog = dict.fromkeys(sorted(self._first))
        self.ready = True
        self._rest(now_s)

    def _rest(self, now_s: float, *, is_quiet: bool = False) -> None:
        """`is_quiet`: the node has waited before it said that none has grown, or cannot do that."""
        self._is_asking = False
        if self._follows and not self._is_over:
            self.poll_s = max(now_s, self._asked_s + POLL_S) if is_quiet else now_s + PAUSE_S
        self._on_queued(now_s)

    # --- where new messages begin -----------------------------------------------------------------------------------

    def _place(self, now_s: float) -> None:
        """Ask for the ends of all streams, some pages at a time; those that are not known are found by subscribing."""
        names = [name.encode() for name in sorted(self._first)]
        pages = deque([tuple(names[at : at + ENDS_MAX]) for at in range(0, len(names), ENDS_MAX)])
        for _ in range(min(ENDS_PAGES_MAX, len(pages))):
            self._ask_ends(pages, now_s)

    def _ask_ends(self, pages: deque[tuple[bytes, ...]], now_s: float) -> None:
        page = pages.popleft()
        self._pages_asked += 1

        def make(number: int) -> List:
            return List(number, "ends", names=page)

        def answered(call: PendingCall, answer: Listed | None, now_s: float) -> None:
            self._pages_asked -= 1
            if self._is_over:
                return
            if answer is None:
                self._fail(call)
                return
            ends = zip(answer.names, answer.ends, strict=False)
            self._places.update((name, _place_at(end)) for name, end in ends)
            if pages:
                self._ask_ends(pages, now_s)
            elif not self._pages_asked:
                self._placed(now_s)

        call = PendingCall("the node", "the list of ends", make, timeout_s=self._timeout_s, feature=FEATURE)
        call.on_result = answered
        self._ask(call, now_s)

    def _placed(self, now_s: float) -> None:
        self.backlog = {name: None for name in sorted(self._first) if name not in self._places}
        self._unplaced = set(self.backlog)
        self._settle()
        self._rest(now_s)

    def _settle(self) -> None:
        """Whether all streams are placed."""
        self.ready = self.ready or not self._unplaced

    # --- growth -----------------------------------------------------------------------------------------------------

    def poll(self, now_s: float) -> None:
        """Asks which streams have grown, if that is due. `poll_s` is the next time to look for a place, too."""
        if now_s >= self.poll_s:
            self.poll_s, self.is_crowded_out = math.inf, False
            if self._follows and not self._is_asking:
                self._ask_grown("", now_s)

    def wait_for_room(self, now_s: float) -> None:
        """Look again a little later."""
        if not self._is_over:
            self.poll_s = min(self.poll_s, now_s + POLL_S)

    def _ask_grown(self, after: str, now_s: float) -> None:
        mark, prefix = self._mark, self._prefix.encode()
        rests = self.ready and self._knows_growth and self._knows_names and not after
        wait_ms = int(min(WAIT_MS, self._timeout_s * 500)) if rests else 0
        call = list_call("grown", self._prefix, after, self._timeout_s)
        call.make = lambda number: List(number, "grown", prefix, after.encode(), mark, wait_ms=wait_ms)
        self._asked_s, self._is_asking = now_s, True
        call.on_result = self._on_grown if self._has_begun else self._on_first
        if not after:
            self._next_mark = ""
        self._ask(call, now_s)

    def _on_first(self, call: PendingCall, answer: Listed | None, now_s: float) -> None:
        if self._is_over:
            return
        if answer is None:
            if self._has_subscribed:
                self._rest(now_s, is_quiet=True)
            else:
                self._fail(call)
            return
        self._mark, self._relist_s = answer.mark, now_s
        if self._asks_again(answer, now_s):
            return
        self._has_begun = True
        if self._has_subscribed:
            self.ready = True
            self._grew(self._first)
            self._rest(now_s)
            return
        sample = next(iter(self._first), None)
        if sample is not None and self._options(sample, False).start == FROM_NEW:
            self._place(now_s)
        else:
            self._queue_all(now_s)

    def _asks_again(self, answer: Listed, now_s: float) -> bool:
        """Whether the node is asked once more, for it may know what grows from now on."""
        self._unknown_answers = 0 if answer.known else (self._unknown_answers + 1) % ASKS_MAX
        if not self._unknown_answers:
            return False
        self._mark = answer.mark
        self._ask_grown("", now_s)
        return True

    def _on_grown(self, _call: PendingCall, answer: Listed | None, now_s: float) -> None:
        if self._is_over:
            return
        if answer is None:
            self._rest(now_s, is_quiet=True)  # a broker that is being replaced lists nothing for a moment
            return
        self._knows_growth = self._knows_growth and answer.known
        if self._asks_again(answer, now_s):
            return
        self._next_mark = self._next_mark or answer.mark
        if answer.known:
            self._grew(answer.names)
        if answer.known and answer.next:
            self._ask_grown(answer.next, now_s)
            return
        self._mark = self._next_mark
        self._knows_names = self._knows_names or answer.version == self._version
        if not self._knows_growth or (answer.version != self._version and now_s >= self._relist_s):
            self._version, self._relist_s = answer.version, now_s + RELIST_S
            self._relist(self._knows_growth, now_s)
        else:
            self._rest(now_s, is_quiet=not answer.names)

    def _relist(self, knows_growth: bool, now_s: float) -> None:
        """Look which streams were deleted; unless the node `knows_growth`, each of the others may have grown."""
        before, self._knows_growth = dict(self._places), True

        def ask(after: str, now_s: float) -> None:
            call = list_call("names", self._prefix, after, self._timeout_s)
            call.on_result = answered
            self._ask(call, now_s)

        def answered(_call: PendingCall, answer: Listed | None, now_s: float) -> None:
            if self._is_over:
                return
            if answer is None:
                self._mark = ""  # the next question finds out again
            elif answer.next:
                take(answer)
                ask(answer.next, now_s)
                return
            else:
                take(answer)
                self._forget(before)
                self._knows_names = True
            self._rest(now_s)

        def take(answer: Listed) -> None:
            for name in answer.names:
                before.pop(name, None)
            if not knows_growth:
                self._grew(answer.names, is_known=False)
            elif not self._knows_names:
                self._grew([name for name in answer.names if name not in self._first and name not in self._places])

        ask("", now_s)

    def _forget(self, gone: dict[str, Place]) -> None:
        """These streams were deleted, unless they were read meanwhile."""
        for name, place in gone.items():
            if self._places.get(name) == place and name not in self.reading:
                del self._places[name]
                self._first.discard(name)

    def _ask(self, call: PendingCall, now_s: float) -> None:
        if self._session.is_asking:  # an answer may come while the client is closed
            self._session.call(call, now_s)

    def _fail(self, call: PendingCall) -> None:
        self.error = call.error
        self.end()


def _place_at(end: EndRow) -> Place:
    return Place(end.next_seq, (end.next_seq - 1, end.timestamp_us, end.epoch) if end.epoch else NO_LAST)


def room_of(session: Session) -> int:
    """How many more subscriptions its connection may have; very many if the broker has not sent its limit."""
    return session.limits.get("max_subscriptions", NUMBER_MAX) - len(session.subscriptions)
