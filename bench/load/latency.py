"""Latency from `send` to `recv` at a steady rate, at one subscriber or at several at once.

One process publishes and subscribes, so that there is one clock (CLOCK_MONOTONIC) and the machine's other core is the
server's. Each payload carries the moment just before its `send`; the sample ends when `recv` has returned. A message
that could not be sent on time is sent at once, and the rate that was reached is part of the result.
"""

from __future__ import annotations

import ctypes
import select
import time
from dataclasses import dataclass
from socket import socket

from bench.load.base import Load
from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.load.sockets import dialled, read
from bench.load.stamps import STAMP_BYTES, StampedPublisher, make_stamps
from bench.peers.base import Contestant

_PR_SET_TIMERSLACK = 29
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Timed:
    latencies_ns: list[int]
    spent: Spent


@dataclass(frozen=True, slots=True)
class Hopped:
    """The latencies of the same messages at the master and at its slave."""

    master_ns: list[int]
    slave_ns: list[int]
    spent: Spent


def latency(load: Load, name: str, rate: int, messages: int) -> Timed:
    """Send `messages` to the new stream `name`, `rate` per second, and time each."""
    scripts = [load.peer.subscriber(name, 0), load.peer.publisher(0, [name])]
    with load.connected(*scripts) as (subscriber, publisher):
        timing = _Timing(load, name, publisher, [subscriber])
        meter = load.meter()
        timing.send(messages, rate)
        return Timed(timing.latencies_ns()[0], meter.stop())


def hop(load: Load, slave_port: int, name: str, rate: int, messages: int) -> Hopped:
    """Do the same with a subscriber at the master and one at its slave.

    The first message goes alone: once it has come to both, the slave follows the stream.
    """
    scripts = [load.peer.subscriber(name, 1), load.peer.publisher(0, [name])]
    with (
        dialled(slave_port, [load.peer.subscriber(name, 0)], load.deadline) as (slave,),
        load.connected(*scripts) as (master, publisher),
    ):
        timing = _Timing(load, name, publisher, [master, slave])
        timing.send(1, rate)
        meter = load.meter()
        timing.send(messages - 1, rate)
        spent = meter.stop()
        master_ns, slave_ns = timing.latencies_ns()
        return Hopped(master_ns, slave_ns, spent)


class _Listener:
    """A subscriber whose messages are timed."""

    def __init__(self, peer: Contestant, name: str, sock: socket) -> None:
        self.latencies_ns: list[int] = []
        self._sock = sock
        self._stamps = make_stamps(peer)
        self._puller = peer.live_puller(name)
        if self._puller is not None:
            sock.send(self._puller.open())

    def take(self) -> None:
        data = read(self._sock)
        now_ns = time.perf_counter_ns()
        request = self._puller.feed(data) if self._puller is not None else b""
        if request:
            self._sock.send(request)
        self.latencies_ns += [now_ns - stamp_ns for stamp_ns in self._stamps.feed(data)]


class _Timing:
    """A publisher at a steady rate, and its subscribers."""

    def __init__(self, load: Load, name: str, publisher: socket, subscribers: list[socket]) -> None:
        if len(load.payload) < STAMP_BYTES:
            raise ValueError(f"a payload of {len(load.payload)} bytes has no room for a stamp of {STAMP_BYTES}")
        _wake_precisely()
        self._deadline = load.deadline
        self._stamped = StampedPublisher(load.peer, name, load.payload, publisher)
        self._listeners = {sock: _Listener(load.peer, name, sock) for sock in subscribers}
        self._socks = [*subscribers, publisher]
        self._sent = 0

    def latencies_ns(self) -> list[list[int]]:
        """For each subscriber, those of its messages."""
        return [listener.latencies_ns for listener in self._listeners.values()]

    def send(self, messages: int, rate: int) -> None:
        """Send, and wait until all have come to all. LoadError if more come, or the server does not take the rate."""
        latencies_ns, end = self.latencies_ns(), self._sent + messages
        gap_ns = 1_000_000_000 // rate
        next_ns = time.perf_counter_ns() + gap_ns
        while min(map(len, latencies_ns)) < end:
            now_ns = time.perf_counter_ns()
            if self._sent < end and now_ns >= next_ns:
                self._stamped.send()
                self._sent += 1
                next_ns += gap_ns
            else:
                self._receive((next_ns - now_ns) / 1e9 if self._sent < end else _WAIT_S)
        if max(map(len, latencies_ns)) > end:
            raise LoadError(f"{max(map(len, latencies_ns))} messages delivered where {end} were sent")

    def _receive(self, wait_s: float) -> None:
        self._deadline.check(f"{self._sent} messages were sent; {[*map(len, self.latencies_ns())]} have come")
        ready, _, _ = select.select(self._socks, (), (), max(0.0, min(wait_s, _WAIT_S)))
        for sock in ready:
            listener = self._listeners.get(sock)
            if listener is not None:
                listener.take()
            else:
                read(sock)  # acknowledgements


def _wake_precisely() -> None:
    """Let timers of this process fire within a nanosecond's slack instead of the usual 50 us."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0) != 0:
        raise LoadError(f"prctl(PR_SET_TIMERSLACK): errno {ctypes.get_errno()}")
