"""Which keys a consumer's messages have, and at which member each of them is in flight. Pure.

Known while a consumer has several members. Nothing of it is logged: it follows from the stream and from the messages in
flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from tailrace.broker.consumers.state.ranges import DeliveryRun, SeqRange

KeyBlocker: TypeAlias = Callable[[bytes, int], bool]
"""Whether a message of this key and seq must wait for an earlier one."""


class KeySource(Protocol):
    def keys(self, first_seq: int, last_seq: int) -> Sequence[bytes | None]:
        """The key of each of these messages; None for a message without a key, or that is not kept any more."""


class Keys:
    """`by_seq`: of messages that are not finished, in flight or looked at before."""

    __slots__ = ("_in_flight", "_member_of", "by_seq")

    def __init__(self) -> None:
        self.by_seq: dict[int, bytes | None] = {}
        self._member_of: dict[bytes, bytes] = {}
        self._in_flight: dict[bytes, int] = {}

    def learn(self, stream: KeySource, first: int, last: int) -> None:
        """Know the keys of these messages: ask for those that are not known yet."""
        by_seq, start = self.by_seq, first
        for seq in range(first, last + 2):
            if seq > last or seq in by_seq:
                if start < seq:
                    by_seq.update(zip(range(start, seq), stream.keys(start, seq - 1), strict=True))
                start = seq + 1

    def free(self, first: int, last: int, member: bytes, blocks: KeyBlocker | None = None) -> Iterator[SeqRange]:
        """Which of these messages, whose keys are known, the member may have: no other has one of the same key."""
        by_seq, member_of, start = self.by_seq, self._member_of, first
        for seq in range(first, last + 1):
            key = by_seq[seq]
            if key is not None and (member_of.get(key, member) != member or (blocks is not None and blocks(key, seq))):
                if start < seq:
                    yield start, seq - 1
                start = seq + 1
        if start <= last:
            yield start, last

    def took_off(self, run: DeliveryRun) -> None:
        """These messages, whose keys are known, are in flight at the run's member now."""
        for seq in range(run.first, run.last + 1):
            key = self.by_seq[seq]
            if key is not None:
                self._member_of[key] = run.member
                self._in_flight[key] = self._in_flight.get(key, 0) + 1

    def landed(self, run: DeliveryRun) -> None:
        """They are not any more."""
        for seq in range(run.first, run.last + 1):
            key = self.by_seq[seq]
            if key is not None:
                self._in_flight[key] -= 1
                if not self._in_flight[key]:
                    del self._in_flight[key], self._member_of[key]

    def forget(self, run: DeliveryRun) -> None:
        """They are finished."""
        for seq in range(run.first, run.last + 1):
            self.by_seq.pop(seq, None)
