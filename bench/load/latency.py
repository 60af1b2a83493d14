"""End-to-end latency of one publisher and one subscriber at a steady rate.

One process does both, so that there is one clock (CLOCK_MONOTONIC) and the machine's other core is the server's. Each
payload carries the moment just before its `send`; the sample ends when `recv` has returned. A message that could not be
sent on time is sent at once, and the rate that was reached is part of the result.
"""

from __future__ import annotations

import ctypes
import select
import socket
import time
from dataclasses import dataclass

from bench.load.dial import dialled
from bench.load.drain import read
from bench.load.ingest import Target
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Meter, Spent
from bench.load.stamps import STAMP_BYTES, StampedPublisher, make_stamps
from bench.peers.base import Peer, Puller

_PR_SET_TIMERSLACK = 29
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Timed:
    latencies_ns: list[int]
    spent: Spent


def latency(
    peer: Peer, target: Target, name: str, payload: bytes, rate: int, messages: int, deadline: Deadline
) -> Timed:
    """Send `messages` to the fresh stream `name`, `rate` a second, and time each."""
    if len(payload) < STAMP_BYTES:
        raise ValueError(f"a payload of {len(payload)} bytes has no room for a stamp of {STAMP_BYTES}")
    wake_precisely()
    scripts = [peer.subscriber(name, 0), peer.publisher(0, [name])]
    with dialled(target.port, scripts, deadline) as (subscriber, publisher):
        pair = _Pair(peer, name, payload, publisher, subscriber, deadline)
        meter = Meter(target.pid)
        pair.run(rate, messages)
        return Timed(pair.latencies_ns, meter.stop())


class _Pair:
    def __init__(
        self,
        peer: Peer,
        name: str,
        payload: bytes,
        publisher: socket.socket,
        subscriber: socket.socket,
        deadline: Deadline,
    ) -> None:
        self.latencies_ns: list[int] = []
        self._publisher = publisher
        self._stamped = StampedPublisher(peer, name, payload, publisher)
        self._subscriber = subscriber
        self._puller: Puller | None = peer.live_puller(name)
        self._deadline = deadline
        self._stamps = make_stamps(peer)

    def run(self, rate: int, messages: int) -> None:
        if self._puller is not None:
            self._subscriber.send(self._puller.open())
        gap_ns = 1_000_000_000 // rate
        sent, next_ns = 0, time.perf_counter_ns() + gap_ns
        while len(self.latencies_ns) < messages:
            now_ns = time.perf_counter_ns()
            while sent < messages and now_ns >= next_ns:
                self._stamped.send()
                sent, next_ns = sent + 1, next_ns + gap_ns
                now_ns = time.perf_counter_ns()
            self._receive((next_ns - now_ns) / 1e9 if sent < messages else _WAIT_S)
        if len(self.latencies_ns) > messages:
            raise LoadError(f"{len(self.latencies_ns)} messages delivered where {messages} were sent")

    def _receive(self, wait_s: float) -> None:
        self._deadline.check(f"{len(self.latencies_ns)} messages have come")
        ready, _, _ = select.select((self._subscriber, self._publisher), (), (), max(0.0, min(wait_s, _WAIT_S)))
        if self._subscriber in ready:
            data = read(self._subscriber)
            now_ns = time.perf_counter_ns()
            request = self._puller.feed(data) if self._puller is not None else b""
            if request:
                self._subscriber.send(request)
            self.latencies_ns += [now_ns - stamp_ns for stamp_ns in self._stamps.feed(data)]
        if self._publisher in ready:
            read(self._publisher)  # acknowledgements


def wake_precisely() -> None:
    """Timers of this process fire within a nanosecond's slack instead of the usual 50 us."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) != 0:
        raise LoadError(f"prctl(PR_SET_TIMERSLACK): errno {ctypes.get_errno()}")
