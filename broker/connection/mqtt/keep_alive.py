"""Ends connections that have been silent for one and a half times their keep alive (3.1.2.10 of MQTT 5).

A read with a whole packet costs a connection a store (`packet_s`); the wheel looks at it when it would be due, as that
of the heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from tailrace.broker.connection.base import Pause
from tailrace.broker.connection.heartbeat import TimerWheel

TICK_S: Final = 0.25
SLOTS: Final = 256
"""Of the wheel: a keep alive that is longer than a round is looked at once a round."""
PATIENCE: Final = 1.5
"""Times the keep alive."""
TOUCHES_A_TICK: Final = 2_048


class KeepAlivePeer(Protocol):
    """The side of a connection that is used here. `keep_alive_s`: 0 without one; `packet_s`: when the last
    packet was whole.
    """

    keep_alive_s: int
    packet_s: float
    paused: Pause

    def drop_silent(self) -> None: ...


class KeepAlives:
    """The connections of one worker that have a keep alive."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._wheel: TimerWheel[KeepAlivePeer] = TimerWheel(TICK_S, SLOTS, clock())

    def __len__(self) -> int:
        return len(self._wheel)

    def add(self, peer: KeepAlivePeer) -> None:
        if peer.keep_alive_s:
            self._wheel.place(peer, peer.packet_s + PATIENCE * peer.keep_alive_s)

    def discard(self, peer: KeepAlivePeer) -> None:
        self._wheel.discard(peer)

    def tick(self, now_s: float) -> None:
        """End those that are overdue. One that this side does not read has a whole time again."""
        for touches, (peer, _due_s) in enumerate(self._wheel.come_up(now_s), start=1):
            if peer.paused:
                peer.packet_s = now_s
            due_s = peer.packet_s + PATIENCE * peer.keep_alive_s
            if due_s > now_s:
                self._wheel.place(peer, due_s)
            else:
                peer.drop_silent()
            if touches == TOUCHES_A_TICK:
                break
