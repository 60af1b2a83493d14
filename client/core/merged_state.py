"""Several subscriptions read as one: streams by name, and those of patterns, made later included."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from tailrace.core import listing
from tailrace.core.calls import PendingCall
from tailrace.core.session import Session
from tailrace.core.subscribe_options import SubscribeOptions
from tailrace.core.subscription_state import Arrived, SubscriptionPhase, SubscriptionState
from tailrace.errors import TailraceError
from tailrace.protocol.listing import Listed, ListedKind

POLL_S: Final = 1.0
"""Between two looks whether the node has more streams."""
RELIST_S: Final = 30.0
"""Between two lists of names while their number stays the same: one may have gone as another one came."""


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
        self.start_seq = self.next_seq = -1
        self.end_seq: int | None = None
        self.waiter: object = None
        self.names: set[str] = set()
        self.error: TailraceError | None = None
        self._session = session
        self._options = options
        self._timeout_s = timeout_s
        self._matchers = [(listing.prefix_of(each), listing.matcher(each)) for each in patterns]
        self._follows = follows and any(map(listing.is_pattern, patterns))
        self._states: deque[SubscriptionState] = deque()
        self._given_of: SubscriptionState | None = None  # whose messages the program has
        self._cancelled = False
        self._total = -1
        self._polling = False
        self._relist_s = -math.inf
        self.poll_s = math.inf  # when to look for more streams

    # --- the streams ------------------------------------------------------------------------------------------------

    def begin(self, names: Iterable[str], total: int, now_s: float) -> None:
        """Subscribe to the streams that are there. Raises ClientClosed, ConnectionLost."""
        self.add(names, now_s, later=False)
        self._total = total
        if self._follows:
            self.poll_s, self._relist_s = now_s + POLL_S, now_s + RELIST_S

    def add(self, names: Iterable[str], now_s: float, *, later: bool) -> None:
        for name in names:
            if name not in self.names and any(matches(name) for _prefix, matches in self._matchers):
                self.names.add(name)
                state = self._session.subscribe(self._options(name, later), now_s)
                state.waiter = self.waiter
                self._states.append(state)

    def poll(self, now_s: float) -> None:
        """Asks whether there are more streams, if that is due; later, for their names."""
        if now_s < self.poll_s or self._polling:
            return
        self.poll_s, self._polling = math.inf, True
        self._ask("total", "", "", now_s)

    def _ask(self, what: ListedKind, prefix: str, after: str, now_s: float) -> None:
        call = listing.list_call(what, prefix, after, self._timeout_s)
        call.on_result = self._on_total if what == "total" else self._on_names
        self._session.call(call, now_s)

    def _on_total(self, call: PendingCall, answer: Listed | None, now_s: float) -> None:
        if answer is None:
            self._on_failure(call, now_s)
        elif answer.total == self._total and now_s < self._relist_s:
            self._rest(now_s)
        else:
            self._total, self._relist_s = answer.total, now_s + RELIST_S
            self._ask("names", self._common_prefix(), "", now_s)

    def _on_names(self, call: PendingCall, answer: Listed | None, now_s: float) -> None:
        if self._cancelled:
            return
        if answer is None:
            self._on_failure(call, now_s)
            return
        self.add(answer.names, now_s, later=True)
        if answer.next:
            self._ask("names", self._common_prefix(), answer.next, now_s)
        else:
            self._rest(now_s)

    def _on_failure(self, _call: PendingCall, now_s: float) -> None:
        """Asked again later: a broker that is being replaced lists nothing for a moment."""
        self._total = -1
        self._rest(now_s)

    def _rest(self, now_s: float) -> None:
        self._polling = False
        self.poll_s = math.inf if self._cancelled else now_s + POLL_S

    def _common_prefix(self) -> str:
        """The longest prefix that all patterns share."""
        prefixes = [prefix for prefix, _matches in self._matchers]
        first, last = min(prefixes), max(prefixes)
        length = next((i for i, each in enumerate(first) if last[i : i + 1] != each), len(first))
        return first[:length]

    # --- reading ----------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> SubscriptionPhase:
        return SubscriptionPhase.OVER if self.is_over else SubscriptionPhase.LIVE

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return self._cancelled or (not self._states and not self._follows)

    @property
    def has_news(self) -> bool:
        return self.is_over or any(state.has_news for state in self._states)

    def has_changed(self, poll_s: float) -> bool:
        """Whether there is something to read, or another time to look for more streams than `poll_s`."""
        return self.has_news or self.poll_s != poll_s

    @property
    def ready(self) -> bool:
        """Whether the broker has answered all that was asked first."""
        return all(state.ready for state in self._states)

    def check(self) -> None:
        """Raises what went wrong with a stream before its first message."""
        for state in self._states:
            if not state.ready:
                state.first()

    def next_arrived(self, before: Arrived | None) -> Arrived | None:
        """As `Session.next_arrived`. A stream that has ended is left; one that is refused raises its error."""
        session, given_of = self._session, self._given_of
        if before is not None and given_of is not None:
            session.next_arrived(given_of, before)
        for _ in range(len(self._states)):
            state = self._states[0]
            arrived = session.next_arrived(state, None)
            if arrived is not None:
                self._states.rotate(-1)
                self._given_of = state
                return arrived
            if state.phase is SubscriptionPhase.OVER:
                self._states.popleft()
            else:
                self._states.rotate(-1)
        return None

    def cancel(self) -> None:
        self._cancelled = True
        self.poll_s = math.inf
        for state in self._states:
            self._session.cancel(state)
        self._states.clear()
