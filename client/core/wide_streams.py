"""More streams than a connection may have subscriptions, as one. Pure: answers in, names out.

What grows is collected (`tailrace.core.collection`): the node subscribes to a stream when it grows, and ends that when
all is sent. All other reading is up to the present end of a stream, some streams at a time, by a subscription that
ends there: messages from before, and those that came without a connection. For the latter the node is asked which
streams have grown, or the ends of all are compared with the places up to which they were read.

A collected stream that does not begin at its place waits until it was read up to there. It may have been deleted and
made again meanwhile, and its messages may belong to the former stream or to the next. So it is only read on in two
cases: if it is the first that came since that reading began which ended at its beginning, and if a reading that began
later has ended behind it. All else is read anew up to the end, which shows whether it is the same stream. A stream of
which nothing has come yet, though new messages are wanted, has no place: it is read from the time on at which the
subscription began.

When a stream is read on after a lost connection, its last message comes again. If there is another one, or the stream
has become shorter, it was deleted and made again if its first message is of a later term: it is read from its beginning
then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from tailrace.core.calls import PendingCall
from tailrace.core.collection import Collection, MemberState
from tailrace.core.growth_survey import GrowthMark, GrowthSurvey, StepRunner, Steps, Take
from tailrace.core.places import START, start_of
from tailrace.core.session import Session
from tailrace.core.subscribe_options import SubscribeOptions
from tailrace.core.subscription_state import NO_LAST, Arrived, SubscriptionPhase, SubscriptionState
from tailrace.errors import StreamBehind, StreamDeleted, StreamDiverged, TailraceError, UnknownStream
from tailrace.protocol.fields import NUMBER_MAX
from tailrace.protocol.listing import EndRow
from tailrace.protocol.places import FROM_NEW, From

POLL_S: Final = 0.05
"""Between two looks for a place; before a question is asked again that failed."""
KEEP_MARK_S: Final = 300.0
"""Between two questions that only let the node go on noting which streams grow."""
AT_ONCE_MAX: Final = 256
"""Streams that are read up to their ends at one time, and that are collected."""
BACKLOG_AT_ONCE_MAX: Final = 64
"""Of the first, streams that are not known to have grown: growth is read behind them."""
PLACES_MIN: Final = 65_536
"""Places that are kept before those of streams that are gone are looked for."""


class Place(NamedTuple):
    """The next message to be read of a stream; seq, time and epoch of the last one that was read, or NO_LAST.
    `round`: the connection that has shown that these are the stream's."""

    next_seq: int
    last: tuple[int, int, int]
    round: int = 0

    @property
    def epoch(self) -> int:
        return self.last[2]


@dataclass(slots=True)
class Reading:
    """`round`: the connection on which it began; `has_grown`: it is to be read on behind its end; `gated`: the first
    member that had to wait for its end, or had to before it began if it `is_behind` that.
    """

    round: int
    has_grown: bool = False
    gated: MemberState | None = None
    is_behind: bool = False


class WideStreams:
    """`backlog`, `grown`: those to be read next; `reading`: those being read; `gated`: collected ones that wait until
    theirs is over. `ready` once all that is published from then on will be read; `error`: why it never will be.
    `is_crowded_out`: the connection has no place left, so none is read before the next `poll`.
    """

    def __init__(
        self,
        session: Session,
        options: Callable[[str, bool], SubscribeOptions],
        matches: Callable[[str], bool],
        join: Callable[[MemberState], None],
        on_queued: Callable[[float], None],
        pattern: str,
        *,
        follows: bool,
        timeout_s: float,
    ) -> None:
        """`pattern`: one that has all names; `join`: reads a collected stream; `on_queued`: there is more to read."""
        self.waiter: object = None
        self.backlog: dict[str, None] = {}
        self.grown: dict[str, None] = {}
        self.reading: dict[str, Reading] = {}
        self.gated: dict[str, MemberState] = {}
        self.ready = False
        self.error: TailraceError | None = None
        self.is_crowded_out = False
        self.at_once = self._at_once_max = max(
            1, min(AT_ONCE_MAX, room_of(session) // 4)
        )  # as many are collected, and the others are for the program's own
        self._session = session
        self._options = options
        self._matches = matches
        self._join = join
        self._on_queued = on_queued
        self._prefix, any_options = pattern.partition("*")[0], options("any", False)
        self._follows = follows
        self._timeout_s = timeout_s
        self._is_new = any_options.start == FROM_NEW
        self._has_last = any_options.start.kind == "last"
        self._collection = Collection(pattern, any_options, self._at_once_max, self, session.random)
        self._runner = StepRunner(self._ask, on_queued, self._on_failed_question)
        self._look_s = self._mark_s = math.inf  # for a place or a survey; to keep the mark
        self._catching_up: set[str] = set()  # of those being read, all but the collected ones
        self._of_backlog: set[str] = set()  # of these
        self._first: set[str] = set()  # that were there at first, if it matters
        self._unplaced: set[str] = set()  # names that are asked for, and are not looked at yet
        self._places: dict[str, Place] = {}  # of those that were read
        self._places_max = PLACES_MIN  # then those that are gone are looked for
        self._changed: dict[str, tuple[StreamBehind | StreamDiverged, int]] = {}  # with the term that was read
        self._round = 0  # connections on which growth was collected
        self._began_us = 0
        self._has_listed = False  # the streams that were there at first
        self._begins_anew = False  # each stream that was not read was made later
        self._wants_survey = False
        self._mark: GrowthMark | None = None
        self._is_over = False

    # --- the streams ------------------------------------------------------------------------------------------------

    def begin(self, names: Iterable[str], now_s: float) -> None:
        """`names`: those that are asked for by name."""
        self._unplaced = set(names)
        self.backlog = dict.fromkeys(sorted(self._unplaced))
        if not self._follows:
            self.ready = True
            self._survey(now_s)
        elif self._is_new:
            self._has_listed = True
            self._runner.run(self._mark_and_collect(now_s), now_s)
        else:
            self._collect(now_s)

    def go_on(self, names: Iterable[str], now_s: float) -> None:
        """Each of these had a subscription of its own, which has ended, and may have messages to read."""
        self.reading = {name: Reading(0, has_grown=True) for name in names}
        self._has_listed = self._begins_anew = True
        self._collect(now_s)

    @property
    def names(self) -> set[str]:
        """The streams that were read, as far as they are known to be there."""
        return {*self.reading, *self._places}

    @property
    def waits(self) -> bool:
        """Whether a stream waits to be read, or may."""
        return bool(self.backlog or self.grown) or self._runner.is_running or self._wants_survey

    @property
    def has_next(self) -> bool:
        """Whether one may be read now."""
        if len(self._catching_up) >= self.at_once or (self._follows and not self._round):
            return False
        return bool(self.grown) or (bool(self.backlog) and len(self._of_backlog) < BACKLOG_AT_ONCE_MAX)

    def next_options(self) -> SubscribeOptions:
        """For the stream that comes next, of those that wait."""
        waiting = self.grown or self.backlog
        name = next(iter(waiting))
        if waiting is self.backlog:
            self._of_backlog.add(name)
        del waiting[name]
        self._catching_up.add(name)
        gated, place = self.gated.get(name), self._places.get(name)
        self.reading[name] = Reading(self._round, gated=gated, is_behind=gated is not None)
        if place is None:
            options = self._first_options(name)
        else:
            last = None if place.last == NO_LAST else place.last
            start = From("seq", place.next_seq)
            options = replace(self._options(name, False), start=start, skip=0, resumes=True, last=last)
        return replace(options, end=("now", 0), wait=False) if self._follows else options

    def _first_options(self, name: str) -> SubscribeOptions:
        """Returns the options for a stream that was not read yet."""
        if name in self._changed:
            return replace(self._options(name, True), start=start_of(START))
        if self._begins_anew or (self._has_last and self._has_listed and name not in self._first):
            return self._options(name, True)
        options = self._options(name, False)
        return replace(options, start=From("time", self._began_us)) if self._is_new and self._follows else options

    def done(self, state: SubscriptionState) -> None:
        """All of a stream was read up to the end that it had, or up to an error."""
        name, place = state.stream, self._places.pop(state.stream, Place(0, NO_LAST))
        reading = self.reading.pop(name, Reading(0))
        self._catching_up.discard(name)
        self._of_backlog.discard(name)
        self._unplaced.discard(name)
        if state.error is None:
            self.at_once = min(self.at_once + 1, self._at_once_max)
            last = place.last if state.last == NO_LAST else state.last
            self._places[name] = Place(max(state.next_seq, state.end_seq or 0), last, reading.round)
        is_gone = isinstance(state.error, StreamDeleted | UnknownStream)
        if is_gone:
            self._first.discard(name)  # if it comes again, it is another one
        comes_again = name in self._changed or is_gone
        if reading.has_grown and (state.error is None or comes_again):
            self.grown[name] = None
        self.ready = self.ready or (self._round > 0 and not self._unplaced)
        member = self.gated.pop(name, None)
        if member is None:
            return
        if state.error is None or comes_again:
            self._open_gate(member, reading)
        else:
            self._session.cancel(member)

    def put_back(self, state: SubscriptionState) -> None:
        """Its subscription found too many others."""
        name, reading = state.stream, self.reading.pop(state.stream, Reading(0))
        has_grown = reading.has_grown or name in self.gated or name not in self._of_backlog
        self._catching_up.discard(name)
        self._of_backlog.discard(name)
        (self.grown if has_grown else self.backlog)[name] = None
        self.at_once = max(1, self.at_once - 1)
        self.is_crowded_out = True

    def is_changed(self, state: SubscriptionState, error: StreamBehind | StreamDiverged) -> bool:
        """Whether to read a stream from its beginning that ends before its place, or has another message there."""
        name, place = state.stream, self._places.get(state.stream)
        epochs = [each[2] for each in (state.last, place.last if place else NO_LAST) if each != NO_LAST]
        if place is None and not epochs:
            return False
        self._changed[name] = error, max(epochs, default=0)
        self.reading.setdefault(name, Reading(self._round)).has_grown = True
        return True

    def fault(self, arrived: Arrived) -> StreamBehind | StreamDiverged | None:
        """The error of a stream that has changed, and was not made again."""
        for message in arrived.messages[:1] if self._changed else ():
            error, epoch = self._changed.pop(message.stream, (None, 0))
            if message.epoch <= epoch:
                return error
        return None

    def end(self) -> None:
        self._is_over = True
        self._look_s = self._mark_s = math.inf
        self._wants_survey = False
        self._runner.stop()
        self._session.stop_collecting(self._collection)
        for member in self.gated.values():
            self._session.cancel(member)
        for names in (self.backlog, self.grown, self.gated):
            names.clear()

    # --- growth -----------------------------------------------------------------------------------------------------

    def on_collected(self, time_us: int, now_s: float) -> None:
        self._round += 1
        self._began_us = self._began_us or time_us
        self.ready = self.ready or not self._unplaced
        for reading in self.reading.values():
            reading.has_grown = True
        if self._round > 1 or self._begins_anew or not self._has_listed:
            self._survey(now_s)
        self._mark_s = now_s + KEEP_MARK_S
        self._on_queued(now_s)

    def on_added(self, member: MemberState, now_s: float) -> None:
        name = member.stream
        if self._is_over or not self._matches(name):
            self._session.cancel(member)
        elif name in self.reading:
            self.gated[name] = member
            self.reading[name].gated = self.reading[name].gated or member
        elif self._is_next(member):
            self._begin(member)
        else:
            self.gated[name] = member
            self._queue_grown(name)
            self._on_queued(now_s)
        if len(self._places) >= self._places_max and not self._runner.is_running:
            self._runner.run(self._look_for_gone(), now_s)

    def on_interrupted(self, now_s: float) -> None:
        """Growth of the streams that are read now may have been lost."""
        for name in self.gated:
            self._queue_grown(name)
        self.gated.clear()
        self._runner.stop()
        self._wants_survey = True

    def on_refused(self, error: TailraceError) -> None:
        if self._session.is_asking or not self.ready:
            self.error = error

    def _is_next(self, member: MemberState) -> bool:
        """Whether all before it was read."""
        name, place = member.stream, self._places.get(member.stream)
        if name in self.gated or name in self.grown:
            return False
        if place is not None:
            return place.round == self._round and place.next_seq == member.start_seq
        if not member.start_seq:
            return True
        is_behind = name in self.backlog or self._wants_survey or self._runner.is_running
        return self._is_new and not self._begins_anew and not is_behind

    def _begin(self, member: MemberState) -> None:
        self.backlog.pop(member.stream, None)
        self.grown.pop(member.stream, None)
        self.reading[member.stream] = Reading(self._round)
        self._join(member)

    def _open_gate(self, member: MemberState, reading: Reading) -> None:
        """Its stream was read to an end."""
        name = member.stream
        place = self._places.get(name, Place(0, NO_LAST, self._round))
        is_known = place.round == self._round and reading.gated is member and name not in self.grown
        is_over = member.phase is SubscriptionPhase.OVER
        if is_known and (
            member.start_seq <= place.next_seq and not is_over
            if reading.is_behind
            else member.start_seq == place.next_seq
        ):
            self._session.skip_to(member, place.next_seq, place.last)
            self._begin(member)
            return
        if not is_over:
            self.gated[name] = member
        elif is_known and reading.is_behind and member.next_seq <= place.next_seq:
            return
        self._queue_grown(name)

    def _queue_grown(self, name: str) -> None:
        if name in self.reading:
            self.reading[name].has_grown = True
        else:
            self.backlog.pop(name, None)
            self.grown[name] = None

    # --- questions --------------------------------------------------------------------------------------------------

    def _mark_and_collect(self, now_s: float) -> Steps[None]:
        """Nothing that is to be read comes before the mark."""
        self._mark = yield from self._questions().mark()
        self._collect(now_s)

    def _collect(self, now_s: float) -> None:
        if self._session.is_asking:
            self._session.collect(self._collection, now_s)

    def _survey(self, now_s: float) -> None:
        self._wants_survey = False
        self._runner.run(self._look(), now_s)

    def _questions(self) -> GrowthSurvey:
        session = self._session
        node = (session.address, session.welcome.node) if session.welcome is not None else None
        return GrowthSurvey(self._prefix, self._timeout_s, node)

    def _look(self) -> Steps[None]:
        """Queues the streams that may have something to be read."""
        questions = self._questions()
        if not self._has_listed:
            self._mark = yield from questions.names(self._queue_all)
            self._has_listed = True
            return
        mark = yield from questions.grown(self._mark, self._compare)
        if mark is None:
            mark = yield from self._all_names(self._compare)
        self._mark = mark

    def _look_for_gone(self) -> Steps[None]:
        """The mark stays: what has grown since may not be read yet."""
        yield from self._all_names(self._pass_over)

    def _all_names(self, take: Take) -> Steps[GrowthMark]:
        """Goes through the names of all streams, and forgets those that are gone."""
        gone = dict(self._places)

        def take_there(names: Sequence[str]) -> Steps[None]:
            for name in names:
                gone.pop(name, None)
            return take(names)

        mark = yield from self._questions().names(take_there)
        self._forget(gone)
        self._places_max = max(PLACES_MIN, 2 * len(self._places))
        return mark

    def _queue_all(self, names: Sequence[str]) -> Steps[None]:
        for name in filter(self._matches, names):
            if self._has_last:
                self._first.add(name)
            if name not in self.reading and name not in self.grown:
                self.backlog[name] = None
        yield from ()

    def _pass_over(self, _names: Sequence[str]) -> Steps[None]:
        yield from ()

    def _compare(self, names: Sequence[str]) -> Steps[None]:
        wanted = [name for name in names if self._matches(name) and name not in self.reading]
        ends = yield from self._questions().ends(wanted)
        for name in wanted:
            end = ends.get(name)
            if name in self.reading or name in self.grown:
                continue
            if end is None:
                self.backlog[name] = None
            elif not self._has_all(name, end):
                self._queue_grown(name)

    def _has_all(self, name: str, end: EndRow) -> bool:
        """Whether a stream was read up to its end."""
        place = self._places.get(name)
        if place is None:
            is_old = self._is_new and not self._begins_anew and end.timestamp_us < self._began_us
            return is_old or end.next_seq == end.first_seq
        is_last = place.last[0] == end.next_seq - 1
        if place.next_seq != end.next_seq or (is_last and place.last[1:] != (end.timestamp_us, end.epoch)):
            return False
        self._places[name] = place._replace(round=self._round)
        return True

    def _forget(self, gone: dict[str, Place]) -> None:
        """These streams were deleted, unless they were read meanwhile."""
        for name, place in gone.items():
            if self._places.get(name) == place and name not in self.reading:
                del self._places[name]
                self._first.discard(name)

    def _ask(self, call: PendingCall, now_s: float) -> None:
        if self._session.is_asking:  # an answer may come while the client is closed
            self._session.call(call, now_s)

    def _on_failed_question(self, error: TailraceError, now_s: float) -> None:
        """A broker that is being replaced lists nothing for a moment."""
        if not self.ready:
            self.error = error
        elif self._session.is_asking:
            self._wants_survey, self._look_s = True, min(self._look_s, now_s + POLL_S)
        self._on_queued(now_s)

    # --- time -------------------------------------------------------------------------------------------------------

    @property
    def poll_s(self) -> float:
        """When to call `poll`."""
        return min(self._look_s, self._mark_s)

    def poll(self, now_s: float) -> None:
        """Handles everything that is due. The program has all that has come."""
        if not (self.reading or self.grown or self.backlog):
            self._collection.go_on(now_s)
        if now_s >= self._look_s:
            self._look_s, self.is_crowded_out = math.inf, False
            if self._wants_survey and not self._runner.is_running and (self._collection.is_live or not self._follows):
                self._survey(now_s)
        if now_s >= self._mark_s:
            self._mark_s = now_s + KEEP_MARK_S
            if not self._runner.is_running:
                self._runner.run(self._keep_mark(), now_s)

    def _keep_mark(self) -> Steps[None]:
        yield from self._questions().mark()

    def wait_for_room(self, now_s: float) -> None:
        """Look again a little later."""
        if not self._is_over:
            self._look_s = min(self._look_s, now_s + POLL_S)


def room_of(session: Session) -> int:
    """How many more subscriptions its connection may have; very many if the broker has not sent its limit."""
    return session.limits.get("max_subscriptions", NUMBER_MAX) - len(session.subscriptions)
