"""One connection that publishes as fast as the server takes it."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass

from bench.load.dial import dialled
from bench.load.drain import drain, read, send_some
from bench.load.limits import Deadline, LoadError
from bench.load.meter import Meter, Spent
from bench.peers.base import Feed, Peer

_WAIT_S = 0.25


@dataclass(frozen=True, slots=True)
class Target:
    """A running server: its port, and the process whose tree is metered."""

    port: int
    pid: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Publish whole feeds until this many seconds have passed and this many messages are sent, whichever is later."""

    seconds: float = 0.0
    messages: int = 0


@dataclass(frozen=True, slots=True)
class Pushed:
    """`messages` were timed; the streams hold `stored` of them, those before included."""

    messages: int
    stored: int
    spent: Spent


def ingest(
    peer: Peer, target: Target, names: list[str], feed: Feed, stop: Stop, deadline: Deadline, warm: Feed | None = None
) -> Pushed:
    """Publish `feed` again and again on one connection; over when everything was answered, or the barriers were.

    `names` are the streams of the feed, fresh ones. `warm` is published before the measurement begins, so that the
    making of the streams is not in it. LoadError if the server answers anything else than it should.
    """
    with dialled(target.port, [peer.publisher(0, names)], deadline) as (sock,):
        publisher = _Publisher(peer, names, sock, deadline)
        if warm is not None:
            publisher.publish(warm)
            publisher.await_all()
        before = publisher.messages
        meter = Meter(target.pid)
        end = time.perf_counter() + stop.seconds
        while publisher.messages - before < stop.messages or time.perf_counter() < end:
            publisher.publish(feed)
        publisher.await_all()
        return Pushed(publisher.messages - before, publisher.messages, meter.stop())


def ingest_once(peer: Peer, target: Target, names: list[str], feeds: list[Feed], deadline: Deadline) -> Pushed:
    """Publish each feed once, on one connection; over as `ingest` is. LoadError as there."""
    with dialled(target.port, [peer.publisher(0, names)], deadline) as (sock,):
        publisher = _Publisher(peer, names, sock, deadline)
        meter = Meter(target.pid)
        for feed in feeds:
            publisher.publish(feed)
        publisher.await_all()
        return Pushed(publisher.messages, publisher.messages, meter.stop())


class _Silent:
    """Nothing may come; if something does, it is a complaint."""

    units = 0

    def take(self, sock: socket.socket) -> None:
        data = read(sock)
        if data:
            raise LoadError(f"the server should have said nothing, but said {data[:200]!r}")


class _Drained:
    """Answers of known length: only their bytes count."""

    units = 0

    def take(self, sock: socket.socket) -> None:
        self.units += drain(sock)


class _Marked:
    """Answers of unknown length, each with one mark in it."""

    def __init__(self, mark: bytes) -> None:
        self.units = 0
        self._mark = mark

    def take(self, sock: socket.socket) -> None:
        self.units += read(sock).count(self._mark)


_Answers = _Silent | _Drained | _Marked


class _Publisher:
    """One publishing connection and the answers to it."""

    def __init__(self, peer: Peer, names: list[str], sock: socket.socket, deadline: Deadline) -> None:
        self.messages = 0
        self._requests = 0
        self._peer = peer
        self._names = names
        self._sock = sock
        self._deadline = deadline
        self._answers = _Marked(peer.answer_mark) if peer.answer_mark else _Drained() if peer.acked else _Silent()
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)

    def publish(self, feed: Feed) -> None:
        """All of `feed`, as soon as the window allows it."""
        self.messages += feed.messages
        self._requests += feed.requests
        window = self._peer.window_requests
        if window and self._requests > window:
            self._await_units(self._peer.answers_bytes(self._names, self._requests - window))
        self._send(feed.data)

    def await_all(self) -> None:
        """Until every message was answered, or the barriers that are sent after them."""
        if not self._peer.acked:
            for name in self._peer.ends(self._names):
                self._await_barrier(name)
            return
        due = self._requests if self._peer.answer_mark else self._peer.answers_bytes(self._names, self._requests)
        self._await_units(due)
        if self._answers.units > due:
            raise LoadError(f"{self._answers.units} came as answers where {due} were due: something else was said")

    def _send(self, data: bytes) -> None:
        """All of it, taking what comes meanwhile."""
        view, sent = memoryview(data), 0
        self._poller.modify(self._sock, select.POLLIN | select.POLLOUT)
        while sent < len(view):
            events = self._wait(f"{len(view) - sent} bytes wait to be sent")
            if events & ~select.POLLOUT:
                self._answers.take(self._sock)
            if events & select.POLLOUT:
                sent += send_some(self._sock, view[sent:])

    def _await_units(self, units: int) -> None:
        """Until so many bytes (or marks) of answers have come."""
        self._poller.modify(self._sock, select.POLLIN)
        while self._answers.units < units:
            self._wait(f"{self._answers.units} of {units} of the answers have come")
            self._answers.take(self._sock)

    def _await_barrier(self, name: str) -> None:
        step, seen = self._peer.barrier(name), b""
        self._send(step.send)
        self._poller.modify(self._sock, select.POLLIN)
        while seen != step.until:
            self._wait(f"waiting for {step.until!r}")
            seen += read(self._sock)
            if not step.until.startswith(seen):
                raise LoadError(f"expected {step.until!r} after the publishes, got {seen[:200]!r}")

    def _wait(self, doing: str) -> int:
        while True:
            self._deadline.check(doing)
            events = self._poller.poll(self._deadline.left_s(_WAIT_S) * 1000)
            if events:
                return events[0][1]
