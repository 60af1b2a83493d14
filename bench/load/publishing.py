"""Publishers: one connection as fast as the server takes it (`ingest`), or many, one message each in turn (`turns`).

`turns` is what many small devices do. After each turn the generator waits until it was executed, so that no server has
several messages of one connection to read at once: the cost of a single message is measured. If the server answers, all
answers are awaited; if not, one connection after the other sends its barrier, and all of them at the end.
"""

from __future__ import annotations

import select
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from socket import socket

from bench.load.base import Load, Stop
from bench.load.limits import LoadError, PeerClosed
from bench.load.meter import Spent
from bench.load.receiving import make_answers
from bench.load.sockets import SocketPoller, read, send_some
from bench.peers.base import RequestFeed, RequestStep


@dataclass(frozen=True, slots=True)
class Pushed:
    """`messages` were timed; the streams hold `stored`, which includes those sent before."""

    messages: int
    stored: int
    spent: Spent


def ingest(load: Load, names: list[str], feed: RequestFeed, stop: Stop, warm: RequestFeed | None = None) -> Pushed:
    """Publish `feed` to the new streams `names` until `stop`; over when all is answered, or the barriers are.

    `warm` is published before the measurement begins, which leaves out the making of the streams.
    """
    return ingest_feeds(load, names, _repeated(feed, stop), warm)


def ingest_feeds(load: Load, names: list[str], feeds: Iterable[RequestFeed], warm: RequestFeed | None = None) -> Pushed:
    """Publish each feed once, on one connection. Raises LoadError if the server sends an unexpected answer."""
    with load.connected(load.peer.publisher(0, names)) as (sock,), SocketPoller(load.deadline, [sock]) as poller:
        publisher = _Publisher(load, names, sock, poller)
        if warm is not None:
            publisher.publish(warm)
            publisher.await_all()
        before, meter = publisher.messages, load.meter()
        for feed in feeds:
            publisher.publish(feed)
        publisher.await_all()
        return Pushed(publisher.messages - before, publisher.messages, meter.stop())


def _repeated(feed: RequestFeed, stop: Stop) -> Iterator[RequestFeed]:
    """Yield `feed` until `stop`; the time runs from the first one."""
    messages, end = 0, time.perf_counter() + stop.seconds
    while messages < stop.messages or time.perf_counter() < end:
        yield feed
        messages += feed.messages


class _Publisher:
    """One publishing connection and the answers to it."""

    def __init__(self, load: Load, names: list[str], sock: socket, poller: SocketPoller) -> None:
        self.messages = 0
        self._requests = 0
        self._peer = load.peer
        self._names = names
        self._sock = sock
        self._poller = poller
        self._answers = make_answers(load.peer, sock)
        self._answered = 0  # bytes or marks, see `Peer.answers_due`

    def publish(self, feed: RequestFeed) -> None:
        """Send all of `feed`, as soon as the window allows it."""
        self.messages += feed.messages
        self._requests += feed.requests
        window = self._peer.window_requests
        if window and self._requests > window:
            self._await_answers(self._peer.answers_due(self._names, self._requests - window))
        self._send(feed.data)

    def await_all(self) -> None:
        """Wait until every request was answered; for silent peers, the barriers that are sent after them."""
        if self._peer.acked:
            due = self._peer.answers_due(self._names, self._requests)
            self._await_answers(due)
            require_no_more(self._answered, due)
        else:
            for name in self._peer.ends(self._names):
                self._await_barrier(self._peer.barrier(name))

    def _send(self, data: bytes) -> None:
        view, sent = memoryview(data), 0
        self._poller.watch_writable(self._sock, True)
        while sent < len(view):
            for _, events in self._poller.wait(f"{len(view) - sent} bytes wait to be sent"):
                if events & ~select.EPOLLOUT:
                    self._answered += self._answers.take()
                if events & select.EPOLLOUT:
                    sent += send_some(self._sock, view[sent:])
        self._poller.watch_writable(self._sock, False)

    def _await_answers(self, due: int) -> None:
        while self._answered < due:
            if self._poller.wait(f"{self._answered} of {due} of the answers have come"):
                self._answered += self._answers.take()

    def _await_barrier(self, step: RequestStep) -> None:
        self._send(step.send)
        seen = b""
        while seen != step.until:
            if self._poller.wait(f"waiting for {step.until!r}"):
                seen += read(self._sock)
            if not step.until.startswith(seen):
                raise LoadError(f"expected {step.until!r} after the publishes, got {seen[:200]!r}")


def require_no_more(answered: int, due: int) -> None:
    if answered > due:
        raise LoadError(f"{answered} came as answers although {due} were due: the server sent something else")


def turns(load: Load, names: list[str], connections: int, stop: Stop) -> Pushed:
    """Publish one message a turn on each connection, number i to names[i % len(names)], all of them new streams."""
    scripts = [load.peer.publisher(client, [names[client % len(names)]]) for client in range(connections)]
    with load.connected(*scripts) as socks, SocketPoller(load.deadline, socks) as poller:
        ring = _Ring(load, names, socks, poller)
        # The first turn makes the streams and is not timed.
        ring.turn()
        ring.finish()
        before, meter = ring.messages, load.meter()
        end = time.perf_counter() + stop.seconds
        while ring.messages - before < stop.messages or time.perf_counter() < end:
            ring.turn()
        ring.finish()
        return Pushed(ring.messages - before, ring.messages, meter.stop())


class _Ring:
    """The connections that publish in turn."""

    def __init__(self, load: Load, names: list[str], socks: list[socket], poller: SocketPoller) -> None:
        self.messages = 0
        self._peer = load.peer
        self._names = names
        self._poller = poller
        publish, payload = load.peer.publish, load.payload
        named = [(sock, names[client % len(names)]) for client, sock in enumerate(socks)]
        self._sends = [(sock.send, publish(name, payload, i, i)) for i, (sock, name) in enumerate(named)]
        self._barriers = [(sock, load.peer.barrier(name)) for sock, name in named]
        self._socks = {sock.fileno(): sock for sock in socks}
        self._answers = {sock.fileno(): make_answers(load.peer, sock) for sock in socks}
        self._answered = 0  # bytes or marks, see `Peer.answers_due`
        self._next_asked = 0

    def turn(self) -> None:
        try:
            for send, publish in self._sends:
                send(publish)
        except OSError as error:
            raise PeerClosed(f"a connection did not take its {self.messages}th message: {error}") from error
        self.messages += len(self._sends)
        if self._peer.acked:
            self._await_answers()
        else:
            self._await_barriers([self._barriers[self._next_asked]])
            self._next_asked = (self._next_asked + 1) % len(self._barriers)

    def finish(self) -> None:
        if not self._peer.acked:
            self._await_barriers(self._barriers)

    def _await_answers(self) -> None:
        due = self._peer.answers_due(self._names, self.messages)
        while self._answered < due:
            for fd, _ in self._poller.wait(f"{self._answered} of {due} of the answers have come"):
                self._answered += self._answers[fd].take()
        require_no_more(self._answered, due)

    def _await_barriers(self, asked: list[tuple[socket, RequestStep]]) -> None:
        for sock, step in asked:
            sock.send(step.send)
        waiting = {sock.fileno(): step.until for sock, step in asked}
        while waiting:
            for fd, _ in self._poller.wait(f"{len(waiting)} connections wait for the answers to their barriers"):
                until, seen = waiting.get(fd, b""), read(self._socks[fd])
                if not until.startswith(seen):
                    raise LoadError(f"the server should have sent nothing but {until!r}, but sent {seen[:200]!r}")
                waiting[fd] = until[len(seen) :]
                if not waiting[fd]:
                    del waiting[fd]
