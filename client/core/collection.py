"""A COLLECT of one pattern, across the connections of a client. Pure: it is asked for again on each connection.

The node subscribes to a stream when that grows, and ends the subscription when all is sent: see `MemberState`. Growth
without a connection is not among its messages: `tailrace.core.wide_streams` looks for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from tailrace.core.backoff import Backoff
from tailrace.core.subscribe_options import SubscribeOptions
from tailrace.core.subscription_state import RESUMED, SubscriptionPhase, SubscriptionState
from tailrace.errors import OperationTimeout, TailraceError, broker_error
from tailrace.protocol.collecting import Added, Collect, Collected
from tailrace.protocol.messages import Ended
from tailrace.protocol.places import FROM_NEW

OVERLOADED: Final = "overloaded"
INTERRUPTED: Final = "unavailable"


class MemberState(SubscriptionState):
    """The subscription of one stream that a COLLECT began; it ends with the connection.

    `on_interrupted`: called if it ends in its middle, which the node does not make good by itself.
    """

    def __init__(
        self,
        added: Added,
        options: SubscribeOptions,
        random: Callable[[], float],
        now_s: float,
        on_interrupted: Callable[[str, str, float], None],
    ) -> None:
        super().__init__(added.subscription, options, random, now_s)
        self._on_interrupted = on_interrupted
        self.phase = SubscriptionPhase.LIVE
        self.ready = True
        self.start_seq = self._base_seq = added.next_seq
        self.deadline_s = math.inf

    def connection_lost(self) -> None:
        self.leave()

    def ended(self, answer: Ended, now_s: float, patience_s: float) -> None:
        super().ended(answer, now_s, patience_s)
        if self.phase is SubscriptionPhase.OVER and not answer.code:
            self.end_seq = answer.next_seq

    def _ask_again(self, refusal: TailraceError, now_s: float, patience_s: float) -> None:
        self.leave()
        self._on_interrupted(INTERRUPTED, str(refusal), now_s)


class Collector(Protocol):
    """Who reads the streams."""

    waiter: object

    def on_collected(self, time_us: int, now_s: float) -> None:
        """All that grows from now on comes. `time_us`: the node's clock."""

    def on_added(self, member: MemberState, now_s: float) -> None:
        """A stream has grown, and is subscribed to."""

    def on_interrupted(self, now_s: float) -> None:
        """What grows from now on does not come, until it is collected again."""

    def on_refused(self, error: TailraceError) -> None:
        """It never will be."""


class CollectionPhase(Enum):
    WANTED = 0
    ASKED = 1
    LIVE = 2
    OVER = 3


class Collection:
    """`id`: that of the present request. `not_before_s`: infinity while its collector is not ready for more."""

    def __init__(
        self, pattern: str, options: SubscribeOptions, at_once: int, collector: Collector, random: Callable[[], float]
    ) -> None:
        """`options`: as those of any of the streams."""
        self.id = 0
        self.phase = CollectionPhase.WANTED
        self.not_before_s = -math.inf
        self.deadline_s = math.inf
        self.collector = collector
        self.has_filter = bool(options.topics)
        self._pattern = pattern.encode()
        self._options = options
        self._at_once = at_once
        self._random = random
        self._backoff = Backoff(random)
        self._has_begun = False
        self._former_id = 0  # that the broker is to end

    @property
    def waiter(self) -> object:
        return self.collector.waiter

    @property
    def is_asked(self) -> bool:
        """Whether the broker has the present request."""
        return self.phase in (CollectionPhase.ASKED, CollectionPhase.LIVE)

    @property
    def is_live(self) -> bool:
        return self.phase is CollectionPhase.LIVE

    @property
    def waits_for_answer(self) -> bool:
        return self.phase is CollectionPhase.ASKED

    @property
    def is_over(self) -> bool:
        return self.phase is CollectionPhase.OVER

    @property
    def due_s(self) -> float:
        """When to ask, if there is a connection."""
        return self.not_before_s if self.phase is CollectionPhase.WANTED else math.inf

    def begin(self, now_s: float) -> None:
        self.deadline_s = now_s + self._options.timeout_s

    def is_due(self, now_s: float) -> bool:
        return self.phase is CollectionPhase.WANTED and self.not_before_s <= now_s

    def request(self, number: int) -> Collect:
        self.id, self.phase = number, CollectionPhase.ASKED
        options = self._options
        topics = options.topics.encode()
        return Collect(number, self._pattern, FROM_NEW, 0, None, options.window_bytes, topics, at_once=self._at_once)

    def take_former(self) -> int:
        """The id of an earlier request that is to be ended, or 0."""
        former, self._former_id = self._former_id, 0
        return former

    def collected(self, answer: Collected, now_s: float) -> None:
        if self.phase is CollectionPhase.ASKED:
            self.phase, self.deadline_s, self._has_begun = CollectionPhase.LIVE, math.inf, True
            self._backoff.reset()
            self.collector.on_collected(answer.time_us, now_s)

    def added(self, answer: Added, now_s: float) -> MemberState:
        options = self._options.of_stream(answer.stream)
        return MemberState(answer, options, self._random, now_s, self.refused)

    def connection_lost(self, now_s: float) -> None:
        was_live, self.phase, self._former_id = self.is_live, CollectionPhase.WANTED, 0
        if self.not_before_s != math.inf:
            self.not_before_s = -math.inf
        if was_live:
            self.collector.on_interrupted(now_s)

    def refused(self, code: str, text: str, now_s: float) -> None:
        """It is not begun, or has ended, or lacks a stream. It is asked for again after a refusal for the moment."""
        was_live = self.is_live
        if not (was_live or code in RESUMED):
            self.fail(broker_error(code, text))
            return
        self.phase, self._former_id = CollectionPhase.WANTED, self.id
        is_too_much = was_live and code == OVERLOADED
        self.not_before_s = math.inf if is_too_much else now_s + self._backoff.next_s()
        if was_live:
            self.collector.on_interrupted(now_s)

    def go_on(self, now_s: float) -> None:
        """Its collector has read all that it had, and is ready for more."""
        if self.not_before_s == math.inf:
            self.not_before_s = now_s + self._backoff.next_s()

    def expire(self, now_s: float) -> None:
        if self.deadline_s <= now_s and not self._has_begun:
            text = f"{self._pattern.decode()}: no answer to the subscription within {self._options.timeout_s:g} s"
            self.fail(OperationTimeout(text))

    def fail(self, error: TailraceError) -> None:
        self.phase = CollectionPhase.OVER
        self.collector.on_refused(error)
