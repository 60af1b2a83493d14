"""One member of the durable consumers of several streams: by name, and by patterns, those made later included."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from tailrace.core import listing
from tailrace.core.calls import PendingCall
from tailrace.core.consumed_message import ConsumedMessage
from tailrace.core.consumer_state import ConsumerOptions, ConsumerState
from tailrace.core.session import Session
from tailrace.core.stream_watch import StreamWatch
from tailrace.errors import InvalidArgument, NoSuchConsumer, TailraceError, UnknownStream
from tailrace.protocol.fields import NUMBER_MAX
from tailrace.protocol.listing import FEATURE, EndRow, List, Listed

STREAMS_MAX: Final = 256
"""Of one member: as many as a connection may have requests that wait for messages."""
LOOKS: Final = 3
"""For another stream of a name whose consumer is gone: a slave may learn of the deletion after its master said that."""
LOOK_S: Final = 0.5
"""Between two of them."""


class MergedConsumerState:
    """`on_member` is called with each stream's `ConsumerState` when its consumer exists, `on_left` when the stream is
    seen to be deleted.

    options: those of one stream; create: the request that makes a stream's consumer, which begins at the stream's first
    message if the stream was made later; None: it must exist.
    """

    def __init__(
        self,
        session: Session,
        patterns: tuple[str, ...],
        options: Callable[[str], ConsumerOptions],
        create: Callable[[str, bool], PendingCall] | None,
        timeout_s: float,
    ) -> None:
        self.options = replace(options("x"), stream=", ".join(patterns))
        self.names: set[str] = set()
        self.on_member: Callable[[ConsumerState], None] = lambda state: None
        self.on_left: Callable[[ConsumerState], None] = lambda state: None
        self._session = session
        self._options_of = options
        self._create = create
        self._states: deque[ConsumerState] = deque()
        self._errors: deque[TailraceError] = deque()
        self._creating = 0  # consumers that are asked for, or may have to be
        self._epochs: dict[str, int] = {}  # that the streams have reached
        self._ended = False
        self._timeout_s = timeout_s
        self._follows = any(map(listing.is_pattern, patterns))
        self.watch = StreamWatch(session, patterns, timeout_s, self._add_later)

    def begin(self, names: Iterable[str], version: int, now_s: float) -> None:
        """Join the consumers of the streams that are there. Raises ClientClosed, ConnectionLost, InvalidArgument."""
        for name in dict.fromkeys(filter(self.watch.matches, names)):
            self._join(name, now_s, later=False)
        if self._follows:
            self.watch.begin(version, now_s)

    def _add_later(self, names: Iterable[str], now_s: float) -> None:
        for name in names:
            if name not in self.names and not self._ended:
                try:
                    self._join(name, now_s, later=True)
                except InvalidArgument as error:
                    self._errors.append(error)
                    self.watch.end()
                    return

    def _join(self, name: str, now_s: float, *, later: bool) -> None:
        if len(self.names) >= STREAMS_MAX:
            text = f"one member reads at most {STREAMS_MAX} streams; let another client read some of them"
            raise InvalidArgument(f"{self.options.stream}: {text}")
        self.names.add(name)
        if self._create is None:
            self._consume(name, now_s)
            return

        def created(call: PendingCall, answer: Any, now_s: float) -> None:
            self._creating -= 1
            if answer is None and call.error is not None:
                if self.watch.lacks(name, call.error):
                    self.names.discard(name)
                else:
                    self._errors.append(call.error)
            elif not self._ended:
                self._consume(name, now_s)

        self._creating += 1
        call = self._create(name, later)
        call.on_result = created
        self._session.call(call, now_s)

    def _consume(self, name: str, now_s: float) -> None:
        state = self._session.consume(self._options_of(name), now_s)
        self._states.append(state)
        self.on_member(state)
        if self._may_come_again(name):
            self._ask_epoch(name, now_s, lambda epoch, _now_s: self._epochs.update({name: epoch or 0}))

    # --- streams that are made again --------------------------------------------------------------------------------

    def _may_come_again(self, name: str) -> bool:
        """Whether a stream of this name is joined that is made when this one was deleted."""
        return self._follows and self._create is not None and self.watch.is_of_pattern_only(name)

    def _ask_epoch(
        self, name: str, now_s: float, then: Callable[[int | None, float], None], not_before_s: float = -math.inf
    ) -> None:
        """`then` is given the epoch of its last message: 0 without any, or without an answer; None for an unknown
        stream."""

        def answered(_call: PendingCall, answer: Listed | None, now_s: float) -> None:
            ends = (EndRow(0, 0, 0, 0),) if answer is None else answer.ends
            then(ends[0].epoch if ends else None, now_s)

        def make(number: int) -> List:
            return List(number, "ends", names=(name.encode(),))

        call = PendingCall(name, "its end", make, timeout_s=self._timeout_s, feature=FEATURE, on_result=answered)
        call.not_before_s = not_before_s
        self._session.call(call, now_s)

    def _look_again(self, state: ConsumerState, error: TailraceError, now_s: float) -> None:
        """Its consumer went with the stream, if that is another one now, which is joined; or was deleted alone."""
        name, looks = state.options.stream, 0

        def found(epoch: int | None, now_s: float) -> None:
            nonlocal looks
            looks += 1
            reached = max(state.epoch, self._epochs.get(name, 0)) or NUMBER_MAX  # if it is not known
            is_same = epoch is not None and epoch <= reached
            if is_same and looks < LOOKS and not self._ended and self._session.is_asking:
                self._ask_epoch(name, now_s, found, now_s + LOOK_S)
                return
            self._creating -= 1
            if is_same:
                self._errors.append(error)
                return
            self.watch.note_deleted(name)
            self.names.discard(name)
            if epoch is not None:
                self._add_later((name,), now_s)

        self._creating += 1
        self._ask_epoch(name, now_s, found)

    # --- taking messages --------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the consumers that were asked for exist."""
        return not self._creating

    def check(self) -> None:
        """Raises what went wrong with a consumer."""
        if self._errors:
            raise self._errors.popleft()

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more."""
        return self._ended or (not self._creating and not self._follows and not self._states) or self._is_closed

    @property
    def _is_closed(self) -> bool:
        return bool(self._states) and all(state.is_over for state in self._states)

    @property
    def has_news(self) -> bool:
        """Whether `take` has something to return, to raise or to ask for."""
        return bool(self._errors) or self.is_over or any(each.has_news or not each.is_asking for each in self._states)

    def has_changed(self, poll_s: float) -> bool:
        """Whether there is something to take, or another time to look for more streams than `poll_s`."""
        return self.has_news or self.watch.poll_s != poll_s

    def take(self, now_s: float) -> ConsumedMessage | None:
        """As `ConsumerState.take`, of each stream in turn. One that has failed raises its error and is left; silently,
        if only a pattern has its name, and it was deleted. If it was made again it is joined as one made later."""
        self.check()
        for _ in range(len(self._states)):
            state = self._states[0]
            self._states.rotate(-1)
            try:
                message = state.take(now_s)
            except TailraceError as error:
                if error is not state.error or not self._leave(state, error, now_s):
                    raise
                continue
            if message is not None:
                return message
        return None

    def _leave(self, state: ConsumerState, error: TailraceError, now_s: float) -> bool:
        """A stream whose consumer has failed. Returns False if the program must know of it."""
        name = state.options.stream
        may_come_again = isinstance(error, NoSuchConsumer) and self._may_come_again(name)
        self._states.remove(state)
        if may_come_again or isinstance(error, UnknownStream):
            self.on_left(state)
        if may_come_again:
            self._look_again(state, error, now_s)
        elif self.watch.lacks(name, error):
            self.names.discard(name)
        else:
            return False
        return True

    def take_rest(self, now_s: float) -> list[ConsumedMessage]:
        """All that is here."""
        return [message for state in self._states for message in state.take_rest(now_s)]

    def end(self) -> None:
        """Nothing more is asked for."""
        self._ended = True
        self.watch.end()
        for state in self._states:
            state.end()
