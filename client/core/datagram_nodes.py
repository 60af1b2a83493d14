"""Which of several nodes a UDP client uses, and when it goes to the next one. Without clock or socket."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from math import inf
from typing import Final

from tailrace.core.address import Address
from tailrace.core.options import check_positive

PING_S: Final = 1.0
SILENT_PINGS: Final = 3
"""The time of so many pings without a datagram from the node ends its use."""


class NodeStep(Enum):
    WAIT = auto()
    PING = auto()
    GO_ON = auto()
    """Use the next node."""


class DatagramNodes:
    """The addresses of one client, which uses the `current` one. `due_s`: when `step` is due; never with one node.
    `has_answered`: whether anything has come from the current one.
    """

    def __init__(self, addresses: Sequence[Address], ping_s: float) -> None:
        """Raises InvalidArgument."""
        check_positive("ping_s", ping_s)
        self.due_s = inf
        self.has_answered = False
        self._addresses = addresses
        self._ping_s = ping_s
        self._index = 0
        self._moves = 0  # since a node answered
        self._began_s = -inf
        self._silent_since_s = inf  # of the first ping without an answer

    def __len__(self) -> int:
        return len(self._addresses)

    def __str__(self) -> str:
        return ", ".join(map(str, self._addresses))

    @property
    def current(self) -> Address:
        return self._addresses[self._index]

    def go_on(self) -> None:
        """To the next node; `begin` follows once there is a socket for it."""
        self._index = (self._index + 1) % len(self._addresses)

    def begin(self, now_s: float) -> None:
        """The current node is used from now on."""
        self.has_answered = False
        self._began_s, self._silent_since_s = now_s, inf
        if len(self._addresses) > 1:
            self.due_s = now_s

    def heard(self) -> None:
        """A datagram of the node has come."""
        self.has_answered = True
        self._silent_since_s = inf
        self._moves = 0

    def step(self, now_s: float) -> NodeStep:
        """The next step, which is due or not. Take the datagrams that have come before you call it."""
        if now_s < self.due_s:
            return NodeStep.WAIT
        self.due_s = now_s + self._ping_s
        if now_s - self._silent_since_s >= SILENT_PINGS * self._ping_s:
            self._moves += 1
            return NodeStep.GO_ON
        self._silent_since_s = min(self._silent_since_s, now_s)
        return NodeStep.PING

    def refused(self, now_s: float) -> bool:
        """Nobody listens at the node. Whether to go on: at once to each of the others, then once in the time of a
        ping.
        """
        if len(self._addresses) < 2 or (
            self._moves >= len(self._addresses) - 1 and now_s - self._began_s < self._ping_s
        ):
            return False
        self._moves += 1
        return True
