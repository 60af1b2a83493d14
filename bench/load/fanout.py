"""One publisher, many subscribers, everything delivered.

The publisher may be ahead of the deliveries by a window of bytes, all subscribers together. The window is the same for
every server. It is far more than is needed to keep a server busy, and less than what makes NATS drop a subscriber.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from socket import socket

from bench.load.base import Load, Stop
from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.load.receiving import Acknowledged, Counter, Drained, Silent, make_counter
from bench.load.sockets import SocketPoller, send_some
from bench.peers.base import RequestFeed, make_feed

WINDOW_BYTES = 64 * 1024 * 1024
_PIECES = 8  # pieces that fill the window
_PIECE_BYTES_MAX = 256 * 1024
_EVENTS_MAX = 256  # sockets drained between two visits to the publisher
_WAIT_S, _BLOCKED_WAIT_S = 0.1, 0.001


@dataclass(frozen=True, slots=True)
class FannedOut:
    messages: int
    deliveries: int
    spent: Spent


def fan_out(load: Load, name: str, subscribers: int, stop: Stop) -> FannedOut:
    """Publish to the new stream `name`; over when every subscriber has every byte. LoadError if one has more."""
    scripts = [load.peer.subscriber(name, client) for client in range(subscribers)]
    # The subscribers first: the publisher's connection is the last to be made.
    with load.connected(*scripts, load.peer.publisher(subscribers, [name])) as socks:
        spread = _Spread(load, name, socks)
        meter = load.meter()
        spread.run(_piece(load, name, subscribers), stop)
        return FannedOut(spread.messages, spread.messages * subscribers, meter.stop())


def _piece(load: Load, name: str, subscribers: int) -> RequestFeed:
    messages = max(1, WINDOW_BYTES // (subscribers * load.delivered_bytes(name, 1) * _PIECES))
    one_bytes = len(load.peer.publish(name, load.payload))
    return make_feed(load.peer, [name], load.payload, min(messages * one_bytes, _PIECE_BYTES_MAX))


def _counter(load: Load, name: str, sock: socket) -> Counter:
    if load.peer.acknowledges:
        return Acknowledged(load.peer, load.delivered_bytes(name, 1), sock)
    return make_counter(load.peer, len(load.payload), sock)


class _Spread:
    """The publisher, its subscribers, and how far each side is."""

    def __init__(self, load: Load, name: str, socks: list[socket]) -> None:
        self.messages = 0
        self._load = load
        self._name = name
        self._socks = socks
        *subscribers, self._publisher = socks
        self._subscribers = len(subscribers)
        self._takers = {sock.fileno(): _counter(load, name, sock).take for sock in subscribers}
        # A publisher that is acknowledged throws its answers away: the deliveries are what counts.
        self._answers = Drained(self._publisher) if load.peer.acked else Silent(self._publisher)
        self._pending = memoryview(b"")
        self._got_bytes = 0

    def run(self, feed: RequestFeed, stop: Stop) -> None:
        with SocketPoller(self._load.deadline, self._socks) as poller:
            end = time.perf_counter() + stop.seconds
            while not self._over(stop, end):
                self._publish(feed, stop, end)
                wait_s = _BLOCKED_WAIT_S if self._pending else _WAIT_S
                doing = f"{self._got_bytes} of {self._due_bytes()} bytes delivered"
                for fd, _ in poller.wait(doing, wait_s, _EVENTS_MAX):
                    if fd == self._publisher.fileno():
                        self._answers.take()
                    else:
                        self._got_bytes += self._takers[fd]()

    def _over(self, stop: Stop, end: float) -> bool:
        if self._wants_more(stop, end) or self._pending:
            return False
        due_bytes = self._due_bytes()
        if self._got_bytes > due_bytes:
            raise LoadError(f"{self._got_bytes} bytes delivered where {due_bytes} were due")
        return self._got_bytes == due_bytes

    def _wants_more(self, stop: Stop, end: float) -> bool:
        return self.messages < stop.messages or time.perf_counter() < end

    def _publish(self, feed: RequestFeed, stop: Stop, end: float) -> None:
        """Send what the window and the socket allow."""
        while True:
            if not self._pending:
                ahead_bytes = self._due_bytes() - self._got_bytes
                if not self._wants_more(stop, end) or ahead_bytes >= WINDOW_BYTES:
                    return
                self._pending = memoryview(feed.data)
                self.messages += feed.messages
            sent = send_some(self._publisher, self._pending)
            self._pending = self._pending[sent:]
            if not sent:
                return

    def _due_bytes(self) -> int:
        return self._load.delivered_bytes(self._name, self.messages) * self._subscribers
