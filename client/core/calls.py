"""Requests that are answered one by one, and asked again until they are. Pure bookkeeping.

A call is sent again, with the same contents, on the connection after one that was lost, and after an answer that means
`not now`. The caller ensures that calls may be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from tailrace.core.backoff import Backoff, backoff_after
from tailrace.errors import BrokerError, OperationTimeout, TailraceError, Unsupported, broker_error
from tailrace.protocol.features import CONSUMERS, FILTERS, LAST, LISTING

RETRIED: Final = frozenset({"unavailable", "overloaded", "unreplicated"})
"""Codes of what may go well a moment later. What is logged and not replicated yet may be asked for again."""
RETRIED_ELSEWHERE: Final = RETRIED | {"disabled"}
"""The same where there is another node to ask."""
UNSUPPORTED: Final[Mapping[str, str]] = {
    CONSUMERS: "the present broker has no durable consumers",
    FILTERS: "the present broker has no durable consumers with a topic filter",
    LAST: "the present broker gives no last values",
    LISTING: "the present broker does not list its streams",
}
NUMBER_MAX: Final = (1 << 32) - 1


class PendingCall:
    """One request. Once `done` it has an `answer` or an `error`."""

    __slots__ = (
        "answer",
        "deadline_s",
        "done",
        "error",
        "feature",
        "is_repeated",
        "make",
        "name",
        "not_before_s",
        "number",
        "on_result",
        "patience_s",
        "quiet_s",
        "refusal",
        "sent_s",
        "stream",
        "timeout_s",
        "tries",
        "waiter",
    )

    def __init__(
        self,
        stream: str,
        name: str,
        make: Callable[[int], Any],
        *,
        timeout_s: float = math.inf,
        patience_s: float = math.inf,
        quiet_s: float = math.inf,
        feature: str = CONSUMERS,
        on_result: Callable[[PendingCall, Any, float], None] | None = None,
    ) -> None:
        """`make` builds the message from its number. `on_result` gets the call, its answer (None for an error), and the
        time.

        timeout_s: for the answer; patience_s: from the first refusal on; quiet_s: the connection counts as lost after
        this long without a byte.
        """
        self.stream = stream
        self.name = name  # the operation, for texts
        self.make = make
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self.quiet_s = quiet_s
        self.feature = feature  # of the protocol, which it needs
        self.on_result = on_result
        self.number = 0
        self.deadline_s = math.inf
        self.not_before_s = -math.inf
        self.sent_s = math.inf  # infinity while it is not in flight
        self.is_repeated = False  # it may have been done before
        self.tries: Backoff | None = None
        self.refusal: BrokerError | None = None  # the latest that was not taken for an answer
        self.done = False
        self.answer: Any = None
        self.error: TailraceError | None = None
        self.waiter: object = None  # for the shell's use

    @property
    def quiet_due_s(self) -> float:
        """When its connection counts as silent."""
        return self.sent_s + self.quiet_s

    def outcome(self) -> Any:
        """Returns its answer. Raises its error."""
        if self.error is not None:
            raise self.error
        return self.answer


class PendingCalls:
    """A client's unfinished calls. Few: each lookup walks all of them."""

    def __init__(self, random: Callable[[], float], retried: frozenset[str] = RETRIED) -> None:
        self._random = random
        self._retried = retried
        self.undone: dict[int, PendingCall] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self.undone)

    @property
    def in_flight(self) -> bool:
        """Whether any wait for their answers."""
        return any(each.sent_s != math.inf for each in self.undone.values())

    @property
    def due_s(self) -> float:
        """When `expire` may have something to do, or a connection counts as silent."""
        return min((min(each.deadline_s, each.quiet_due_s) for each in self.undone.values()), default=math.inf)

    @property
    def resume_s(self) -> float:
        """When `take_sendable` has something next, if it has not now."""
        waiting = (each.not_before_s for each in self.undone.values() if each.sent_s == math.inf)
        return min(waiting, default=math.inf)

    def add(self, call: PendingCall, now_s: float) -> None:
        self._numbers = self._numbers % NUMBER_MAX + 1
        call.number = self._numbers
        call.deadline_s = now_s + call.timeout_s
        self.undone[call.number] = call

    def holds(self, call: PendingCall | None) -> bool:
        """Whether it is registered and not done."""
        return call is not None and self.undone.get(call.number) is call

    def take_sendable(self, now_s: float) -> list[PendingCall]:
        """Returns the calls that may be sent now, in the order they were made. They are in flight from here on."""
        sendable = [each for each in self.undone.values() if each.sent_s == math.inf and each.not_before_s <= now_s]
        for call in sendable:
            call.sent_s = now_s
        return sendable

    def is_too_quiet(self, now_s: float) -> PendingCall | None:
        """Returns a call whose answer is overdue, if there is one."""
        return next((each for each in self.undone.values() if each.quiet_due_s <= now_s), None)

    def answered(self, number: int, answer: Any, now_s: float) -> PendingCall | None:
        """Returns the call that this answers; None if it is unknown."""
        call = self.undone.get(number)
        if call is None or call.sent_s == math.inf:
            return None
        if call.on_result is not None:
            call.on_result(call, answer, now_s)
        call.answer = answer
        self._done(call)
        return call

    def failed(self, number: int, code: str, text: str, now_s: float) -> PendingCall | None:
        """Returns the call that this error is about, which is retried or has failed; None if it is unknown."""
        call = self.undone.get(number)
        if call is None:
            return None
        error = broker_error(code, text, call.stream)
        if code not in self._retried:
            self._fail(call, error, now_s)
            return call
        if call.tries is None:
            call.tries = backoff_after(code, self._random)
            call.deadline_s = min(call.deadline_s, now_s + call.patience_s)
        call.refusal = error
        call.is_repeated = True
        call.not_before_s = now_s + call.tries.next_s()
        call.sent_s = math.inf
        return call

    def connection_lost(self) -> None:
        """Queues the calls in flight to be sent again."""
        for call in self.undone.values():
            call.is_repeated |= call.sent_s != math.inf
            call.sent_s = math.inf

    def recover(self) -> None:
        """A step was left in its middle, and the connection with it."""
        for call in list(self.undone.values()):
            if call.done or call.error is not None:
                self._done(call)
        self.connection_lost()

    def expire(self, now_s: float) -> list[PendingCall]:
        """Fails calls whose time is over; returns them."""
        late = [each for each in self.undone.values() if each.deadline_s <= now_s]
        for call in late:
            text = f"{call.stream}: no answer to {call.name} within {call.timeout_s:g} s; it may or may not be done"
            self._fail(call, call.refusal or OperationTimeout(text), now_s)
        return late

    def fail_unknown(self, features: Container[str], now_s: float) -> list[PendingCall]:
        """Fails calls that the broker does not know; returns them."""
        unknown = [each for each in self.undone.values() if each.feature not in features]
        for call in unknown:
            self._fail(call, Unsupported(UNSUPPORTED[call.feature]), now_s)
        return unknown

    def fail_all(self, error: TailraceError, now_s: float) -> list[PendingCall]:
        """Nothing will be answered any more; those that there were."""
        calls = list(self.undone.values())
        for call in calls:
            self._fail(call, error, now_s)
        return calls

    def _fail(self, call: PendingCall, error: TailraceError, now_s: float) -> None:
        call.error = error
        if call.on_result is not None:
            call.on_result(call, None, now_s)
        self._done(call)

    def _done(self, call: PendingCall) -> None:
        call.done = True
        self.undone.pop(call.number, None)
