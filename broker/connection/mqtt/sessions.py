"""Which connection holds a client identifier: the last one that came with it, on any worker of the node.

A worker knows the identifiers of its own connections only. A CONNECT is shown to all workers before it is answered, and
each ends the older connection that it has; of two that come at once the one with the later time stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from tailrace.broker.routing.calls import WorkerCalls
from tailrace.broker.streams.refused import Refused

CLAIM: Final = "mqtt_claim"
"""The call with which a worker shows a CONNECT to the others."""
FREE, NEWER, OTHERS = "", "newer", "other"
"""Answers: the identifier may be taken; a later connection has it; a connection of another user has it."""


class SessionHolder(Protocol):
    """A connection with a client identifier. `claimed_ns`: when it came, on the clock of the machine."""

    client_id: bytes
    claimed_ns: int
    closed: bool

    @property
    def user(self) -> str: ...

    def taken_over(self) -> None:
        """End: another connection has come with its identifier."""


class MqttSessions:
    """The client identifiers of one worker's connections."""

    def __init__(self, calls: WorkerCalls, slots: int) -> None:
        self._calls = calls
        self._slots = slots
        self._holders: dict[bytes, SessionHolder] = {}

    def __len__(self) -> int:
        return len(self._holders)

    def claim(self, holder: SessionHolder, done: Callable[[str], None]) -> None:
        """Take the holder's identifier; `done` gets one of the answers, once all workers have given theirs."""
        args: list[Any] = [holder.client_id, holder.claimed_ns, holder.user]
        answers: list[Any] = [self.claimed(*args)]
        if answers[0] == FREE:
            self._holders[holder.client_id] = holder

        def answered(value: Any) -> None:
            answers.append(FREE if isinstance(value, Refused) else value)  # a worker that is gone holds nothing
            if len(answers) > self._slots:
                done(next(filter(None, answers), FREE))

        for slot in range(self._slots):
            self._calls.call_slot(slot, CLAIM, args, answered)

    def claimed(self, client_id: bytes, claimed_ns: int, user: str) -> str:
        """A connection has come with this identifier: end an older one that is here."""
        holder = self._holders.get(client_id)
        if holder is None or holder.claimed_ns == claimed_ns:
            return FREE
        if holder.claimed_ns > claimed_ns:
            return NEWER
        if holder.user != user:
            return OTHERS
        del self._holders[client_id]
        holder.taken_over()
        return FREE

    def adopt(self, holder: SessionHolder) -> None:
        """A connection has come from another worker. A later one with its identifier may have come meanwhile."""

        def answered(answer: str) -> None:
            if answer != FREE:
                holder.taken_over()

        self.claim(holder, answered)

    def release(self, holder: SessionHolder) -> None:
        """The connection has ended, or left this worker."""
        if self._holders.get(holder.client_id) is holder:
            del self._holders[holder.client_id]
