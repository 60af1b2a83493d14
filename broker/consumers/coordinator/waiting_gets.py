"""The gets of one worker's streams that wait for messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tailrace.broker.consumers.state.decide import GetResult
from tailrace.protocol.consuming import ACK_SYNCED, Get

TICK_S: Final = 0.05
"""How exactly their time is kept."""


class WaitingGet:
    """A get of one member, answered when there are messages for it, at `deadline_s` at the latest.

    `wanted`: the request without its acknowledgements, which are done already; `so_far`: the result of those.
    `asked_us`: when the request came.
    """

    __slots__ = ("_done", "asked_us", "deadline_s", "so_far", "wanted")

    def __init__(
        self, wanted: Get, so_far: GetResult, done: Callable[[Any], None], deadline_s: float, asked_us: int
    ) -> None:
        self.wanted = replace(wanted, finished=(), failed=(), delays=())
        self.so_far = so_far
        self._done: Callable[[Any], None] | None = done
        self.deadline_s = deadline_s
        self.asked_us = asked_us

    @property
    def name(self) -> bytes:
        """The stream's."""
        return self.wanted.stream

    @property
    def sync(self) -> bool:
        return self.wanted.ack == ACK_SYNCED

    def resolve(self, value: Any) -> None:
        """Its answer. Only the first one counts."""
        done, self._done = self._done, None
        if done is not None:
            done(value)


class WaitingGets:
    """By stream, consumer and member. A member has one at most. Who has waited longest comes first."""

    def __init__(self) -> None:
        self._of: dict[bytes, dict[bytes, dict[bytes, WaitingGet]]] = {}
        self._due: dict[int, dict[WaitingGet, None]] = {}
        self._looked_at = -1  # the tick up to which those that were due have been taken
        self.count = 0

    def __contains__(self, name: bytes) -> bool:
        return name in self._of

    def names(self) -> list[bytes]:
        """The streams that somebody waits for."""
        return list(self._of)

    def consumers(self, name: bytes) -> list[bytes]:
        """Those of a stream that somebody waits at."""
        return list(self._of.get(name, ()))

    def of(self, name: bytes, consumer: bytes) -> list[WaitingGet]:
        return list(self._of.get(name, {}).get(consumer, {}).values())

    def add(self, waiter: WaitingGet) -> None:
        """Add a get. The caller knows that no get of this member waits."""
        by_member = self._of.setdefault(waiter.name, {}).setdefault(waiter.wanted.name, {})
        by_member[waiter.wanted.member] = waiter
        self._due.setdefault(_tick(waiter), {})[waiter] = None
        self.count += 1

    def take(self, name: bytes, consumer: bytes, member: bytes) -> WaitingGet | None:
        """Remove and return the member's get, if it waits."""
        waiter = self._of.get(name, {}).get(consumer, {}).get(member)
        if waiter is not None:
            self.remove(waiter)
        return waiter

    def remove(self, waiter: WaitingGet) -> None:
        """Remove it; nothing happens if it does not wait."""
        if self._of.get(waiter.name, {}).get(waiter.wanted.name, {}).get(waiter.wanted.member) is not waiter:
            return
        by_consumer = self._of[waiter.name]
        by_member = by_consumer[waiter.wanted.name]
        del by_member[waiter.wanted.member]
        if not by_member:
            del by_consumer[waiter.wanted.name]
            if not by_consumer:
                del self._of[waiter.name]
        due = self._due[_tick(waiter)]
        del due[waiter]
        if not due:
            del self._due[_tick(waiter)]
        self.count -= 1

    def take_all(self, name: bytes | None = None) -> list[WaitingGet]:
        """All, or all of a stream; they wait no more."""
        names = self.names() if name is None else [name]
        taken = [each for stream in names for consumer in self.consumers(stream) for each in self.of(stream, consumer)]
        for waiter in taken:
            self.remove(waiter)
        return taken

    def take_due(self, now_s: float) -> list[WaitingGet]:
        """Those whose time is over; they wait no more."""
        tick = int(now_s / TICK_S)
        if tick == self._looked_at or not self._due:
            return []
        self._looked_at = tick
        taken = [waiter for due_tick, due in self._due.items() if due_tick <= tick for waiter in due]
        for waiter in taken:
            self.remove(waiter)
        return taken


def _tick(waiter: WaitingGet) -> int:
    """The first one at which its time is over."""
    return int(waiter.deadline_s / TICK_S) + 1
