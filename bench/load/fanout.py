"""One publisher, many subscribers, everything delivered.

The publisher may be ahead of the deliveries by a window of so many bytes, all subscribers together. The window is the
same for every server, is far more than is ever needed to keep one busy, and is below what makes NATS drop a subscriber.
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass

from bench.load.counting import make_counter
from bench.load.dial import dialled
from bench.load.drain import drain, read, send_some
from bench.load.ingest import Stop, Target
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Meter, Spent
from bench.peers.base import Feed, Peer, make_feed

WINDOW_BYTES = 64 * 1024 * 1024
_PIECES = 8  # the window is filled in so many pieces
_PIECE_BYTES_MAX = 256 * 1024
_EVENTS_MAX = 256  # sockets drained between two looks at the publisher
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class FannedOut:
    messages: int
    deliveries: int
    spent: Spent


def fan_out(
    peer: Peer, target: Target, name: str, payload: bytes, subscribers: int, stop: Stop, deadline: Deadline
) -> FannedOut:
    """Publish to the fresh stream `name`; over when every subscriber has every byte. LoadError if one has more."""
    feed = _piece(peer, name, payload, subscribers)
    scripts = [peer.subscriber(name, client) for client in range(subscribers)]
    # The subscribers first: the publisher's connection is the last to be made.
    with dialled(target.port, [*scripts, peer.publisher(subscribers, [name])], deadline) as socks:
        spread = _Spread(peer, name, len(payload), socks, deadline)
        meter = Meter(target.pid)
        spread.run(feed, stop)
        return FannedOut(spread.messages, spread.messages * subscribers, meter.stop())


def _piece(peer: Peer, name: str, payload: bytes, subscribers: int) -> Feed:
    line_bytes = peer.delivered_bytes(name, 1, len(payload))
    messages = max(1, WINDOW_BYTES // (subscribers * line_bytes * _PIECES))
    one = len(peer.publish(name, payload))
    return make_feed(peer, [name], payload, min(messages * one, _PIECE_BYTES_MAX))


class _Spread:
    def __init__(
        self, peer: Peer, name: str, payload_bytes: int, socks: list[socket.socket], deadline: Deadline
    ) -> None:
        self.messages = 0
        self._peer = peer
        self._name = name
        self._payload_bytes = payload_bytes
        *subscribers, self._publisher = socks
        self._takers = {sock.fileno(): make_counter(peer, payload_bytes, sock).take for sock in subscribers}
        self._deadline = deadline
        self._pending = memoryview(b"")
        self._got_bytes = 0

    def run(self, feed: Feed, stop: Stop) -> None:
        end = time.perf_counter() + stop.seconds
        with select.epoll() as poller:
            for fd in (*self._takers, self._publisher.fileno()):
                poller.register(fd, select.EPOLLIN)
            while not self._over(stop, end):
                self._publish(feed, stop, end)
                self._deadline.check(f"{self._got_bytes} of {self._due_bytes()} bytes delivered")
                wait_s = 0.001 if self._pending else _WAIT_S
                for fd, _ in poller.poll(self._deadline.left_s(wait_s), _EVENTS_MAX):
                    self._take(fd)

    def _over(self, stop: Stop, end: float) -> bool:
        if self._wants_more(stop, end) or self._pending:
            return False
        due = self._due_bytes()
        if self._got_bytes > due:
            raise LoadError(f"{self._got_bytes} bytes delivered where {due} were due")
        return self._got_bytes == due

    def _wants_more(self, stop: Stop, end: float) -> bool:
        return self.messages < stop.messages or time.perf_counter() < end

    def _publish(self, feed: Feed, stop: Stop, end: float) -> None:
        """Send what the window and the socket allow."""
        while True:
            if not self._pending:
                ahead = self._due_bytes() - self._got_bytes
                if not self._wants_more(stop, end) or ahead >= WINDOW_BYTES:
                    return
                self._pending = memoryview(feed.data)
                self.messages += feed.messages
            sent = send_some(self._publisher, self._pending)
            self._pending = self._pending[sent:]
            if not sent:
                return

    def _due_bytes(self) -> int:
        each = self._peer.delivered_bytes(self._name, self.messages, self._payload_bytes)
        return each * len(self._takers)

    def _take(self, fd: int) -> None:
        if fd != self._publisher.fileno():
            self._got_bytes += self._takers[fd]()
            return
        if self._peer.acked:
            drain(self._publisher)
            return
        said = read(self._publisher)
        if said:
            raise LoadError(f"the server should have said nothing to the publisher, but said {said[:200]!r}")
