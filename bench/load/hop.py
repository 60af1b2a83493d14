"""What one hop adds: each message is timed at a subscriber of the master and at one of its slave.

One process publishes and subscribes to both, so that there is one clock (see `bench.load.latency`).
"""

from __future__ import annotations

import select
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench.load.dial import dialled
from bench.load.drain import read
from bench.load.ingest import Target
from bench.load.latency import wake_precisely
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Meter, Spent
from bench.load.stamps import StampedPublisher, make_stamps
from bench.peers.base import Peer

_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Hopped:
    """The latencies of the same messages at both."""

    master_ns: list[int]
    slave_ns: list[int]
    spent: Spent


class _Listener:
    def __init__(self, peer: Peer, sock: socket.socket) -> None:
        self.latencies_ns: list[int] = []
        self._sock = sock
        self._stamps = make_stamps(peer)

    def take(self) -> None:
        data = read(self._sock)
        now_ns = time.perf_counter_ns()
        self.latencies_ns += [now_ns - stamp_ns for stamp_ns in self._stamps.feed(data)]


def hop(
    peer: Peer,
    target: Target,
    slave_port: int,
    name: str,
    payload: bytes,
    rate: int,
    messages: int,
    deadline: Deadline,
) -> Hopped:
    """Send `messages` to the fresh stream `name`, `rate` a second, and time each at both.

    The first goes alone: when it has come to both, the slave follows the stream.
    """
    wake_precisely()
    with ExitStack() as stack:
        (slave,) = stack.enter_context(dialled(slave_port, [peer.subscriber(name, 0)], deadline))
        scripts = [peer.subscriber(name, 1), peer.publisher(0, [name])]
        master, publisher = stack.enter_context(dialled(target.port, scripts, deadline))
        run = _Run(peer, name, payload, publisher, (master, slave), deadline)
        run.send(1, rate)
        meter = Meter(target.pid)
        run.send(messages - 1, rate)
        spent = meter.stop()
        at_master, at_slave = run.latencies_ns()
        return Hopped(at_master, at_slave, spent)


class _Run:
    def __init__(
        self,
        peer: Peer,
        name: str,
        payload: bytes,
        publisher: socket.socket,
        subscribers: tuple[socket.socket, socket.socket],
        deadline: Deadline,
    ) -> None:
        self._publisher = publisher
        self._stamped = StampedPublisher(peer, name, payload, publisher)
        self._listeners = {sock: _Listener(peer, sock) for sock in subscribers}
        self._deadline = deadline
        self._sent = 0

    def latencies_ns(self) -> list[list[int]]:
        return [listener.latencies_ns for listener in self._listeners.values()]

    def send(self, messages: int, rate: int) -> None:
        """Until all have come to both. LoadError when more come, or the master takes no more."""
        gap_ns, end = 1_000_000_000 // rate, self._sent + messages
        next_ns = time.perf_counter_ns()
        while min(map(len, self.latencies_ns())) < end:
            now_ns = time.perf_counter_ns()
            if self._sent < end and now_ns >= next_ns:
                self._stamped.send()
                self._sent += 1
                next_ns += gap_ns
                continue
            self._receive((next_ns - now_ns) / 1e9 if self._sent < end else _WAIT_S)
        if max(map(len, self.latencies_ns())) > end:
            raise LoadError(f"{max(map(len, self.latencies_ns()))} messages delivered where {end} were sent")

    def _receive(self, wait_s: float) -> None:
        self._deadline.check(
            f"{self._sent} messages were sent; {[len(each) for each in self.latencies_ns()]} have come"
        )
        socks = [*self._listeners, self._publisher]
        ready, _, _ = select.select(socks, (), (), max(0.0, min(wait_s, _WAIT_S)))
        for sock in ready:
            listener = self._listeners.get(sock)
            if listener is not None:
                listener.take()
            else:
                read(sock)  # acknowledgements
