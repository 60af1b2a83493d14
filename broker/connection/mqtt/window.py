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
LEAP: Final = 25_033
"""After a crash the identifiers go on elsewhere: the client may have messages with those that came next, and keeps
those with QoS 2 that were not released. The place follows from the time, since nothing of a connection may be stored
when it crashes. Each LEAP_US leads this much further, the golden section of IDS, so that no two places of a minute are
near each other."""
LEAP_US: Final = 100_000


def leap_place(turn: int) -> int:
    """The identifier with which a connection of a session goes on after a crash. `turn`: of it, about its time."""
    return turn // LEAP_US * LEAP % IDS + 1


class SendWindow:
    """`size`: how many messages may be under way. `received`: those with QoS 2 for which PUBREC has come. `unsent`: how
    many of them an earlier connection of the session has sent, and this one has not yet.
    """

    __slots__ = ("_acked", "_first_id", "_leaps_to", "_span", "received", "size", "unsent")

    def __init__(self, size: int) -> None:
        self.size = size
        self.received: set[int] = set()
        self.unsent = 0
        self._leaps_to = 0  # once all are acknowledged, the identifiers go on there
        self._first_id = 1
        self._span = 0
        self._acked: set[int] = set()  # within the span

    @property
    def room(self) -> int:
        """How many more may be sent."""
        if self._leaps_to:
            return 0
        room = self.size - self._span
        if self._acked:
            room = min(room + len(self._acked), SPAN_MAX - self._span)
        return room if room > 0 else 0

    @property
    def resend_room(self) -> int:
        """How many of those that this connection has not sent may be sent again."""
        return max(self.size - (self._span - len(self._acked) - self.unsent), 0)

    @property
    def first_id(self) -> int:
        """The identifier of the oldest message that is not acknowledged."""
        return self._first_id

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
        self.received.discard(packet_id)
        while self._first_id in self._acked:
            self._acked.remove(self._first_id)
            self._first_id = self._first_id % IDS + 1
            self._span -= 1
        self._leap()
        return True

    def acknowledge_run(self, first_id: int, count: int) -> None:
        """These identifiers, one after the other; those that are not under way count for nothing."""
        is_plain = not (self._acked or self.received or self._leaps_to)
        if first_id == self._first_id and count <= self._span and is_plain:
            self._first_id = (first_id + count - 1) % IDS + 1
            self._span -= count
            return
        for number in range(count):
            self.acknowledge((first_id + number - 1) % IDS + 1)

    # --- sessions that go on ----------------------------------------------------------------------------------------

    def resume(self, size: int, leaps_to: int) -> None:
        """Another connection goes on with these messages. leaps_to: 0 if this is exactly what the last one had under
        way, else the identifier with which further messages go on.
        """
        self.size = size
        self.unsent = self._span - len(self._acked)
        self._leaps_to = leaps_to or self._leaps_to
        self._leap()

    def drop_others(self, kept: set[int]) -> None:
        """All but these count as acknowledged: other clients of a shared subscription get their messages."""
        first_id, span = self._first_id, self._span
        for place in range(span):
            packet_id = (first_id + place - 1) % IDS + 1
            if packet_id not in kept:
                self.acknowledge(packet_id)

    def _leap(self) -> None:
        if self._leaps_to and not self._span:
            self._first_id, self._leaps_to = self._leaps_to, 0

    def export_state(self) -> list[Any]:
        own = [self.size, self._first_id, self._span, list(self._acked)]
        return [*own, list(self.received), self.unsent, self._leaps_to]

    def restore_state(self, state: list[Any]) -> None:
        self.size, self._first_id, self._span = state[:3]
        self._acked = set(state[3])
        if len(state) > 4:  # a worker of an earlier release does not send the rest
            self.received, self.unsent, self._leaps_to = set(state[4]), state[5], state[6]
