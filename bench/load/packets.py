"""Each message in a packet of its own: datagrams, or over TCP a `send` for each.

Nothing holds a publisher of datagrams back: `pour` sends as fast as the system takes them and counts what the server
has taken. In `spread` the publisher is ahead of the deliveries by WINDOW of them at most; those that do not come within
LOST_S are lost, and the publisher goes on.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from bench.load.base import Load, Stop
from bench.load.limits import LoadError
from bench.load.meter import Spent
from bench.load.mmsg import Receiving
from bench.load.publishing import Pushed
from bench.load.receiving import make_counter
from bench.load.sockets import SocketPoller
from bench.peers.udp import HOST, DatagramPeer

BURST: Final = 32
"""Messages sent one after the other, before the deliveries are looked at."""
WINDOW: Final = 2_048
LOST_S: Final = 0.05
_UDP_SEGMENT: Final = 103  # of linux/udp.h; the generator is to be faster than the servers
_RECEIVE_BYTES: Final = 4 << 20
_ANSWER_BYTES: Final = 1_000
_STEADY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Delivered:
    published: int
    deliveries: int
    lost: int
    spent: Spent


class PacketPublisher(Protocol):
    def send_burst(self) -> None:
        """Send BURST messages. Raises OSError."""

    def finish(self) -> int:
        """Wait until the server takes no more; all messages that it has taken. Raises LoadError, OSError."""


class DatagramPublisher:
    """Equal datagrams, BURST with a system call as segments of one, which the kernel takes apart for the receiver."""

    def __init__(self, load: Load, peer: DatagramPeer, sock: socket.socket, name: str) -> None:
        datagram = peer.datagram(name, load.payload)
        self._load, self._peer, self._sock = load, peer, sock
        self._burst = datagram * BURST
        sock.setsockopt(socket.IPPROTO_UDP, _UDP_SEGMENT, len(datagram))

    def send_burst(self) -> None:
        self._sock.send(self._burst)

    def finish(self) -> int:
        taken = -1
        while (now := self._peer.taken(self._load.target.port)) != taken:
            self._load.deadline.check(f"{now} messages are taken")
            taken = now
            time.sleep(_STEADY_S)
        return taken


class StreamPublisher:
    """A `send` for each message on a connection that does not wait to fill its packets."""

    def __init__(self, load: Load, sock: socket.socket, name: str) -> None:
        self._load, self._sock, self._name = load, sock, name
        self._message = load.peer.publish(name, load.payload)
        self._sent = 0
        sock.setblocking(True)

    def send_burst(self) -> None:
        for _ in range(BURST):
            self._sock.sendall(self._message)
        self._sent += BURST

    def finish(self) -> int:
        step = self._load.peer.barrier(self._name)
        self._sock.sendall(step.send)
        answer = b""
        while answer != step.until:
            answer += self._sock.recv(_ANSWER_BYTES)
            if not step.until.startswith(answer):
                raise LoadError(f"expected {step.until!r} after the publishes, got {answer!r}")
        return self._sent


def pour(load: Load, name: str, stop: Stop) -> Pushed:
    """Publish for `stop.seconds`. `messages` are those that the server took. Raises LoadError, OSError."""
    with _publisher(load, name) as publisher:
        publisher.send_burst()
        before, meter = publisher.finish(), load.meter()
        end_s = time.perf_counter() + stop.seconds
        while time.perf_counter() < end_s:
            publisher.send_burst()
        spent = meter.stop()
        taken = publisher.finish()
        return Pushed(taken - before, taken, spent)


def spread(load: Load, name: str, subscribers: int, stop: Stop) -> Delivered:
    """Publish for `stop.seconds`, and count what all subscribers got. Raises LoadError, OSError."""
    with (
        _receivers(load, name, subscribers) as takers,
        _publisher(load, name) as publisher,
        SocketPoller(load.deadline) as poller,
    ):
        for sock in takers:
            poller.add(sock)
        run = _FanOut(publisher, poller, {sock.fileno(): take for sock, take in takers.items()})
        meter = load.meter()
        run.run(time.perf_counter() + stop.seconds)
        spent = meter.stop()
        return Delivered(run.published, run.got, run.lost, spent)


class _FanOut:
    def __init__(self, publisher: PacketPublisher, poller: SocketPoller, takers: dict[int, Callable[[], int]]) -> None:
        self.published = self.got = self.lost = 0
        self._publisher, self._poller, self._takers = publisher, poller, takers
        self._came_s = 0.0

    def run(self, end_s: float) -> None:
        self._came_s = time.perf_counter()
        while (now_s := time.perf_counter()) < end_s or self._due():
            if now_s < end_s and self._due() < WINDOW:
                self._publisher.send_burst()
                self.published += BURST
            self._take(0 if self._due() < WINDOW and now_s < end_s else LOST_S)

    def _due(self) -> int:
        return self.published * len(self._takers) - self.got - self.lost

    def _take(self, wait_s: float) -> None:
        for fd, _events in self._poller.wait(f"{self.got} messages are delivered", wait_s):
            self.got += self._takers[fd]()
            self._came_s = time.perf_counter()
        if time.perf_counter() - self._came_s > LOST_S:
            self.lost += self._due()
            self._came_s = time.perf_counter()


@contextmanager
def _publisher(load: Load, name: str) -> Iterator[PacketPublisher]:
    if isinstance(load.peer, DatagramPeer):
        with _connected_udp(load) as sock:
            yield DatagramPublisher(load, load.peer, sock, name)
    else:
        with load.connected(load.peer.publisher(0, [name])) as (sock,):
            yield StreamPublisher(load, sock, name)


@contextmanager
def _receivers(load: Load, name: str, subscribers: int) -> Iterator[dict[socket.socket, Callable[[], int]]]:
    """Each subscriber's socket, and what counts the messages that have come to it."""
    peer = load.peer
    if isinstance(peer, DatagramPeer):
        with ExitStack() as stack:
            socks = [stack.enter_context(_connected_udp(load)) for _ in range(subscribers)]
            for sock in socks:
                peer.subscribe(sock, name)
            nbytes = peer.delivered_datagram_bytes(name, len(load.payload))
            yield {sock: Receiving(sock, nbytes).receive for sock in socks}
    else:
        scripts = [peer.subscriber(name, client) for client in range(1, subscribers + 1)]
        with load.connected(*scripts) as socks:
            one_bytes = load.delivered_bytes(name, 1)
            yield {sock: _stream_counter(load, sock, one_bytes) for sock in socks}


def _connected_udp(load: Load) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
    sock.connect((HOST, load.target.port))
    return sock


def _stream_counter(load: Load, sock: socket.socket, one_bytes: int) -> Callable[[], int]:
    """All messages have the same length."""
    counter, rest = make_counter(load.peer, len(load.payload), sock), 0

    def take() -> int:
        nonlocal rest
        messages, rest = divmod(rest + counter.take(), one_bytes)
        return messages

    return take
