"""The messages with QoS 1 or 2 that a client has been sent and has not acknowledged: a run, with holes.

Identifiers are given out one after the other, and clients acknowledge in that order, so the run is two numbers. Only an
acknowledgement out of order is remembered by itself, until those before it have come.
"""

from __future__ import annotations

from typing import Any, Final

IDS: Final = 0xFFFF
"""Packet identifiers are 1 to this."""
SPAN_MAX: Final = 4_096
"""Identifiers between the first that is not acknowledged and the last that was sent."""


class SendWindow:
    """`size`: how many messages may be under way."""

    __slots__ = ("_acked", "_first_id", "_span", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._first_id = 1
        self._span = 0
        self._acked: set[int] = set()  # within the span

    @property
    def room(self) -> int:
        """How many more may be sent."""
        return max(min(self.size - self._span + len(self._acked), SPAN_MAX - self._span), 0)

    @property
    def next_id(self) -> int:
        """The identifier of the next message."""
        return (self._first_id + self._span - 1) % IDS + 1

    def add(self, count: int) -> None:
        """This number of messages has been sent."""
        self._span += count

    def holds(self, packet_id: int) -> bool:
        """Whether this one is under way."""
        return (packet_id - self._first_id) % IDS < self._span and packet_id not in self._acked

    def acknowledge(self, packet_id: int) -> bool:
        """Returns whether this one was under way."""
        if not self.holds(packet_id):
            return False
        self._acked.add(packet_id)
        while self._first_id in self._acked:
            self._acked.remove(self._first_id)
            self._first_id = self._first_id % IDS + 1
            self._span -= 1
        return True

    def acknowledge_run(self, first_id: int, count: int) -> None:
        """These identifiers, one after the other; those that are not under way count for nothing."""
        if first_id == self._first_id and count <= self._span and not self._acked:
            self._first_id = (first_id + count - 1) % IDS + 1
            self._span -= count
            return
        for number in range(count):
            self.acknowledge((first_id + number - 1) % IDS + 1)

    # --- moving to another worker -----------------------------------------------------------------------------------

    def export_state(self) -> list[Any]:
        return [self.size, self._first_id, self._span, list(self._acked)]

    def restore_state(self, state: list[Any]) -> None:
        self.size, self._first_id, self._span = state[:3]
        self._acked = set(state[3])
