"""The lazy heartbeat: a peer is pinged only after it was silent for long, and dropped when it answers none of several.

The peers stand on a wheel of buckets, each under the tick at which it would have been silent for long enough. Traffic
costs a connection one store (`life_s`) and never touches the wheel: a peer whose bucket comes up is looked at, and put
further on by its age if it was alive meanwhile. So a peer is touched about once an interval, with any traffic, and a
tick costs as much as its bucket has peers, not as there are connections.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import ceil, floor
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from tailrace.broker.services import Services

TICKS_AN_INTERVAL = 30  # few: pings that are sent together are answered together, and read in few turns
TOUCHES_A_TICK = 2_048  # the others of a full bucket follow at the next, so that a loop never stands still for them

PONG_PAUSE_S, PONG_PAUSES_MAX = 0.0005, 64  # the longest pause after answers to pings


class HeartbeatPeer(Protocol):
    """What a heartbeat needs of a connection."""

    life_s: float  # when it last received anything, or sent anything but our ping; the connection writes it
    pings: int  # since then; 0 at first, and the heartbeat alone writes it

    def send_ping(self) -> None: ...

    def drop_silent(self) -> None: ...


_Peer = TypeVar("_Peer")


class TimerWheel(Generic[_Peer]):
    """Peers by the tick of `tick_s` seconds at which they are due; `slots` ticks and it comes round.

    No peer comes up late. One that is due more than a round ahead comes up early, with its time in `due_s`.
    """

    __slots__ = ("_buckets", "_origin_s", "_slot_of", "_tick", "_tick_s")

    def __init__(self, tick_s: float, slots: int, now_s: float) -> None:
        if tick_s <= 0 or slots < 2:
            raise ValueError(f"a wheel needs ticks over 0 s and at least 2 slots, not {tick_s} s and {slots}")
        self._tick_s = tick_s
        self._origin_s = now_s
        self._tick = 0
        self._buckets: list[dict[_Peer, float]] = [{} for _ in range(slots)]
        self._slot_of: dict[_Peer, int] = {}

    def __len__(self) -> int:
        return len(self._slot_of)

    def place(self, peer: _Peer, due_s: float, ticks_later: int = 0) -> None:
        """Put a peer under the first tick at or after `due_s` that is still to come, or `ticks_later` after it."""
        slot_of, buckets, tick = self._slot_of, self._buckets, self._tick
        if peer in slot_of:
            self.discard(peer)
        slots = len(buckets)
        ahead = ceil((due_s - self._origin_s) / self._tick_s) + ticks_later - tick
        if not 0 < ahead < slots:
            ahead = 1 if ahead < 1 else slots - 1
        slot_of[peer] = slot = (tick + ahead) % slots
        buckets[slot][peer] = due_s

    def discard(self, peer: _Peer) -> None:
        """Take a peer off; one that is not on the wheel is ignored."""
        slot = self._slot_of.pop(peer, None)
        if slot is not None:
            del self._buckets[slot][peer]

    def come_up(self, now_s: float) -> Iterator[tuple[_Peer, float]]:
        """Take off, one by one, the peers whose tick has come; each with its `due_s`.

        The next one is looked for when it is asked for: peers may be placed and discarded meanwhile, and a caller that
        stops early finds the others at the next call.
        """
        slots = len(self._buckets)
        last_tick = floor((now_s - self._origin_s) / self._tick_s)
        self._tick = max(self._tick, last_tick - slots + 1)  # a round holds everybody
        while True:
            bucket = self._buckets[self._tick % slots]
            while bucket:
                peer, due_s = bucket.popitem()
                del self._slot_of[peer]
                yield peer, due_s
            if self._tick >= last_tick:
                return
            self._tick += 1


class Heartbeats:
    """Pings peers that were silent for `interval_s`, and again each interval, `unanswered_max` times in all; an
    interval after the last ping the peer is dropped.
    """

    __slots__ = ("_interval_s", "_unanswered_max", "_wheel")

    def __init__(self, interval_s: float, unanswered_max: int, clock: Callable[[], float]) -> None:
        if interval_s <= 0 or unanswered_max < 1:
            raise ValueError(f"a heartbeat needs an interval over 0 s and a ping, not {interval_s} s, {unanswered_max}")
        self._interval_s = interval_s
        self._unanswered_max = unanswered_max
        tick_s = interval_s / TICKS_AN_INTERVAL
        self._wheel: TimerWheel[HeartbeatPeer] = TimerWheel(tick_s, TICKS_AN_INTERVAL + 3, clock())

    def __len__(self) -> int:
        return len(self._wheel)

    def add(self, peer: HeartbeatPeer) -> None:
        self._wheel.place(peer, peer.life_s + self._interval_s)

    def discard(self, peer: HeartbeatPeer) -> None:
        """Forget a peer that has closed or left. One that is not here is ignored."""
        self._wheel.discard(peer)

    def tick(self, now_s: float) -> int:
        """See to those whose time has come, at most TOUCHES_A_TICK. Returns how many that were.

        Call it TICKS_AN_INTERVAL times an interval; what one call leaves, the next begins with.
        """
        touches = 0
        for peer, due_s in self._wheel.come_up(now_s):
            touches += 1
            self._see_to(peer, due_s, now_s)
            if touches == TOUCHES_A_TICK:
                break
        return touches

    def _see_to(self, peer: HeartbeatPeer, due_s: float, now_s: float) -> None:
        silent_until_s = peer.life_s + self._interval_s
        if silent_until_s > due_s:  # it was alive since it was placed
            peer.pings = 0
            due_s = silent_until_s
        if due_s > now_s:
            self._wheel.place(peer, due_s)
        elif peer.pings < self._unanswered_max:
            peer.pings += 1
            # Before the ping, which may find the peer gone. A tick later than it is due, so that one that answers at
            # once has been silent for an interval by then, and is touched no more often than that.
            self._wheel.place(peer, now_s + self._interval_s, 1)
            peer.send_ping()
        else:
            peer.drop_silent()


def gather_pongs(
    services: Services, handle: Callable[[list[tuple[int, int]]], None], events: list[tuple[int, int]]
) -> bool:
    """While nothing but answers to pings comes, wait a little for the next of them: they follow one another as fast as
    the peers answer, and with very many peers a turn for each costs more than they do. Returns whether the last events,
    which are handled, were anything else.
    """
    for _ in range(PONG_PAUSES_MAX):
        only, services.pongs = 0 < services.pongs == len(events), 0
        if not only:
            return bool(events)
        time.sleep(PONG_PAUSE_S)
        events = services.poller.poll(0)
        handle(events)
    return False
