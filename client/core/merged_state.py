"""Several subscriptions read as one: streams by name, and those of patterns, made later included.

Streams of patterns beyond what a connection may have subscriptions of are read in turn (`tailrace.core.wide_streams`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from tailrace.core import listing
from tailrace.core.session import Session
from tailrace.core.stream_watch import StreamWatch
from tailrace.core.subscribe_options import SubscribeOptions
from tailrace.core.subscription_state import Arrived, SubscriptionPhase, SubscriptionState
from tailrace.core.wide_streams import WideStreams, room_of
from tailrace.errors import ConnectionLost, StreamBehind, StreamDiverged, TailraceError, TooManySubscriptions


class MergedState:
    """As a `SubscriptionState` of all these streams, whose turns to be read alternate.

    options: of the subscription of one stream, and whether that was made after this began; patterns: names and
    patterns; follows: whether streams made later are read too.
    """

    def __init__(
        self,
        session: Session,
        patterns: tuple[str, ...],
        options: Callable[[str, bool], SubscribeOptions],
        *,
        follows: bool,
        timeout_s: float,
    ) -> None:
        self.stream = ", ".join(patterns)
        self.streams_max = room_of(session)  # of which each may have a subscription of its own
        self._patterns = patterns
        self.start_seq = self.next_seq = -1
        self.end_seq: int | None = None
        self.waiter: object = None
        self._names: set[str] = set()
        self.error: TailraceError | None = None
        self._session = session
        self._options = options
        self._watch = StreamWatch(session, patterns, timeout_s, partial(self.add, later=True))
        self._follows = follows and any(map(listing.is_pattern, patterns))
        self._has_pattern = any(map(listing.is_pattern, patterns))
        self._wide: WideStreams | None = None
        self._timeout_s = timeout_s
        self._states: deque[SubscriptionState] = deque()
        self._given_of: SubscriptionState | None = None  # whose messages the program has
        self._cancelled = False

    @property
    def names(self) -> set[str]:
        return self._names if self._wide is None else self._wide.names

    # --- the streams ------------------------------------------------------------------------------------------------

    def begin(self, names: Iterable[str], version: int, now_s: float) -> None:
        """Subscribe to the streams that are there. Raises ClientClosed, ConnectionLost.

        `names`: those of a pattern need not be complete if they are more than `streams_max`.
        """
        found = dict.fromkeys(filter(self._watch.matches, names))
        if self._has_pattern and len(found) > min(self.streams_max, room_of(self._session)):
            self._wide = self._make_wide()
            self._wide.begin([each for each in self._patterns if not listing.is_pattern(each)], now_s)
            return
        self.add(found, now_s, later=False)
        if self._follows:
            self._watch.begin(version, now_s)

    def add(self, names: Iterable[str], now_s: float, *, later: bool) -> None:
        for name in names:
            if name not in self._names and not self._cancelled and self._watch.matches(name):
                if later and room_of(self._session) <= 0:
                    self._widen(now_s)
                    return
                self._subscribe(self._options(name, later), now_s)

    def _make_wide(self) -> WideStreams:
        pattern = self._patterns[0] if len(self._patterns) == 1 else self._watch.common_prefix() + listing.WILDCARD
        wide = WideStreams(
            self._session,
            self._options,
            self._watch.matches,
            self._join,
            self._read_more,
            pattern,
            follows=self._follows,
            timeout_s=self._timeout_s,
        )
        wide.waiter = self.waiter
        return wide

    def _widen(self, now_s: float) -> None:
        """There are more streams than places now: read them in turn from here on."""
        self._watch.end()
        for state in list(self._states):
            if state.ready:
                self._session.leave(state)
            else:  # found again as a stream that was made later
                self._session.cancel(state)
                self._states.remove(state)
        self._names.clear()
        self._wide = self._make_wide()
        self._wide.go_on([state.stream for state in self._states], now_s)

    def _subscribe(self, options: SubscribeOptions, now_s: float) -> None:
        self._join(self._session.subscribe(options, now_s))

    def _join(self, state: SubscriptionState) -> None:
        if self._wide is None:
            self._names.add(state.stream)
        state.waiter = self.waiter
        self._states.append(state)

    def _read_more(self, now_s: float) -> None:
        """Subscribes to the streams that come next, as far as there is room."""
        wide = self._wide
        if wide is not None and wide.is_crowded_out:
            wide.wait_for_room(now_s)
            return
        while wide is not None and wide.has_next and self._session.is_asking:
            self._subscribe(wide.next_options(), now_s)

    def poll(self, now_s: float) -> None:
        """Looks for more streams, if that is due."""
        self._watch.poll(now_s)
        if self._wide is not None:
            self._wide.poll(now_s)
            self._read_more(now_s)

    @property
    def poll_s(self) -> float:
        """When to look for more streams."""
        return self._watch.poll_s if self._wide is None else self._wide.poll_s

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> SubscriptionPhase:
        return SubscriptionPhase.OVER if self.is_over else SubscriptionPhase.LIVE

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        waits = self._wide is not None and self._wide.waits
        return self._cancelled or not (self._states or self._follows or waits)

    @property
    def has_news(self) -> bool:
        failed = self._wide is not None and self._wide.error is not None
        return self.is_over or failed or any(state.has_news for state in self._states)

    def has_changed(self, poll_s: float) -> bool:
        """Whether there is something to read, or another time to look for more streams than `poll_s`."""
        return self.has_news or self.poll_s != poll_s

    @property
    def ready(self) -> bool:
        """Whether the broker has answered all that was asked first."""
        if self._wide is not None:
            return self._wide.ready
        return all(state.ready for state in self._states)

    def check(self) -> None:
        """Raises what went wrong with a stream before its first message."""
        if self._wide is not None:
            if self._wide.error is not None:
                raise self._wide.error
            return
        for state in list(self._states):
            if not state.ready and not self._has_left(state):
                state.first()

    def next_arrived(self, before: Arrived | None) -> Arrived | None:
        """As `Session.next_arrived`. A stream that has ended is left. One that has failed raises its error and is left,
        or is left silently if only a pattern has its name, and it was deleted."""
        session, given_of = self._session, self._given_of
        if before is not None and given_of is not None:
            session.done_with(given_of, before)
        for _ in range(len(self._states)):
            state = self._states[0]
            if not state.has_news:
                self._states.rotate(-1)
                continue
            if self._has_left(state):
                continue
            try:
                arrived = session.next_arrived(state, None)
            except ConnectionLost:
                raise
            except TooManySubscriptions:
                self._states.popleft()
                if self._wide is None:
                    raise
                self._wide.put_back(state)
                continue
            except (StreamBehind, StreamDiverged) as error:
                is_read_again = self._wide is not None and self._wide.is_changed(state, error)
                self._leave(state)
                if not is_read_again:
                    raise
                continue
            except TailraceError:
                self._leave(state)
                raise
            if arrived is not None:
                if self._wide is not None and (fault := self._wide.fault(arrived)) is not None:
                    self._session.cancel(state)
                    self._leave(state)
                    raise fault
                self._states.rotate(-1)
                self._given_of = state
                return arrived
            if state.phase is SubscriptionPhase.OVER:
                self._leave(state)
            else:
                self._states.rotate(-1)
        return None

    def _has_left(self, state: SubscriptionState) -> bool:
        """Whether it was deleted, all that came of it is read, and nobody asked for it by its name; then it is left."""
        error = state.error
        if error is None or state.holds_any or not self._watch.lacks(state.stream, error):
            return False
        self._leave(state)
        self._names.discard(state.stream)
        return True

    def _leave(self, state: SubscriptionState) -> None:
        self._states.remove(state)
        if self._wide is not None:
            self._wide.done(state)

    def cancel(self) -> None:
        self._cancelled = True
        self._watch.end()
        if self._wide is not None:
            self._wide.end()
        for state in self._states:
            self._session.cancel(state)
        self._states.clear()
