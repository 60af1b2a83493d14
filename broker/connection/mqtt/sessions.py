"""Which connection holds a client identifier: the last one that came with it, on any worker of the node.

A worker knows the identifiers of its own connections only. A CONNECT is shown to all workers before it is answered, and
each ends the older connection that it has; of two that come at once the one with the later time stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.streams.refused import Refused

CLAIM: Final = "mqtt_claim"
"""The call with which a worker shows a CONNECT to the others."""
FREE, NEWER, OTHERS, WAIT = "", "newer", "other", "wait"
"""Answers: the identifier may be taken; a later connection has it; a connection of another user has it; its session is
not decided yet, so ask again.
"""

ClaimAnswer: TypeAlias = str | list[Any]
"""A list: the identifier may be taken, and with it the durable session of the connection that had it, a `Handed`."""


class SessionHolder(Protocol):
    """A connection with a client identifier. `claimed_ns`: when it came, on the clock of the machine."""

    client_id: bytes
    claimed_ns: int
    closed: bool

    @property
    def user(self) -> str: ...

    def hand_over_session(self) -> list[Any] | None:
        """Its durable session as a `Handed`, if it has one, which is the other connection's from now on. One that waits
        for the outcomes of messages is left instead.
        """

    def taken_over(self) -> None:
        """End: another connection has come with its identifier."""


class LeftSessions(Protocol):
    """Durable sessions whose connections have ended, and which may not be stored yet."""

    def take(self, client_id: bytes) -> Sequence[Any] | None:
        """A `Handed`, or None."""

    def is_deciding(self, client_id: bytes) -> bool:
        """Whether there is one that waits for the outcomes of its messages."""

    def give_back(self, client_id: bytes, handed: Sequence[Any]) -> None: ...


class MqttSessions:
    """The client identifiers of one worker's connections."""

    def __init__(self, calls: WorkerCalls, slots: int, left: LeftSessions) -> None:
        self._calls = calls
        self._slots = slots
        self._left = left
        self._holders: dict[bytes, SessionHolder] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def claim(self, holder: SessionHolder, done: Callable[[ClaimAnswer], None]) -> None:
        """Take the holder's identifier; `done` gets one of the answers, once all workers have given theirs."""
        args: list[Any] = [holder.client_id, holder.claimed_ns, holder.user]
        answers: list[ClaimAnswer] = [self.claimed(*args)]
        if answers[0] not in (NEWER, OTHERS):
            self._holders[holder.client_id] = holder

        def answered(value: Any) -> None:
            answers.append(FREE if isinstance(value, Refused) else value)  # a worker that is gone holds nothing
            if len(answers) > self._slots:
                done(self._chosen(holder.client_id, answers))

        for slot in range(self._slots):
            self._calls.call_slot(slot, CLAIM, args, answered)

    def _chosen(self, client_id: bytes, answers: list[ClaimAnswer]) -> ClaimAnswer:
        """What the answers of all workers mean together. A session that nobody takes goes back."""
        texts = [answer for answer in answers if isinstance(answer, str)]
        refusal = next((text for text in (OTHERS, NEWER, WAIT) if text in texts), FREE)
        handed = [answer for answer in answers if isinstance(answer, list)]
        for each in handed if refusal else handed[1:]:
            self._left.give_back(client_id, each)
        return handed[0] if handed and not refusal else refusal

    def claimed(self, client_id: bytes, claimed_ns: int, user: str) -> ClaimAnswer:
        """A connection has come with this identifier: end an older one that is here."""
        holder = self._holders.get(client_id)
        if holder is None or holder.claimed_ns == claimed_ns:
            return self._left_one(client_id)
        if holder.claimed_ns > claimed_ns:
            return NEWER
        if holder.user != user:
            return OTHERS
        del self._holders[client_id]
        handed = holder.hand_over_session()
        holder.taken_over()
        return self._left_one(client_id) if handed is None else handed

    def _left_one(self, client_id: bytes) -> ClaimAnswer:
        if self._left.is_deciding(client_id):
            return WAIT
        handed = self._left.take(client_id)
        return FREE if handed is None else list(handed)

    def adopt(self, holder: SessionHolder) -> None:
        """A connection has come from another worker. A later one with its identifier may have come meanwhile."""

        def answered(answer: ClaimAnswer) -> None:
            if answer in (NEWER, OTHERS):
                holder.taken_over()

        self.claim(holder, answered)

    def release(self, holder: SessionHolder) -> None:
        """The connection has ended, or left this worker."""
        if self._holders.get(holder.client_id) is holder:
            del self._holders[holder.client_id]
