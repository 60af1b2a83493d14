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
    messages: int
    spent: Spent


def ingest(peer: Peer, target: Target, names: list[str], feed: Feed, stop: Stop, deadline: Deadline) -> Pushed:
    """Publish `feed` again and again on one connection; over when everything was answered, or the barrier was.

    `names` are the streams of the feed, fresh ones. LoadError if the server answers anything else.
    """
    with dialled(target.port, [peer.publisher(0)], deadline) as (sock,):
        meter = Meter(target.pid)
        pusher = _Pusher(sock, deadline)
        answers = _Marked(peer.answer_mark) if peer.answer_mark else _Drained() if peer.acked else _Silent()
        messages, end = 0, time.perf_counter() + stop.seconds
        while messages < stop.messages or time.perf_counter() < end:
            messages += feed.messages
            if peer.window_messages and messages > peer.window_messages:
                pusher.await_units(answers, peer.answers_bytes(names, messages - peer.window_messages))
            pusher.send(feed.data, answers)
        _await_all(peer, pusher, answers, names, messages)
        return Pushed(messages, meter.stop())


def _await_all(peer: Peer, pusher: _Pusher, answers: _Answers, names: list[str], messages: int) -> None:
    """Until every message was answered, or the barrier that was sent after them."""
    if not peer.acked:
        pusher.await_barrier(peer)
        return
    due = messages if peer.answer_mark else peer.answers_bytes(names, messages)
    pusher.await_units(answers, due)
    if answers.units > due:
        raise LoadError(f"{answers.units} came as answers where {due} were due: something else was said")


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


class _Pusher:
    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._sock = sock
        self._deadline = deadline
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN | select.POLLOUT)

    def send(self, data: bytes, answers: _Answers) -> None:
        """All of `data`, taking what comes meanwhile."""
        view, sent = memoryview(data), 0
        self._poller.modify(self._sock, select.POLLIN | select.POLLOUT)
        while sent < len(view):
            events = self._wait(f"{len(view) - sent} bytes wait to be sent")
            if events & ~select.POLLOUT:
                answers.take(self._sock)
            if events & select.POLLOUT:
                sent += send_some(self._sock, view[sent:])

    def await_units(self, answers: _Answers, units: int) -> None:
        """Until so many bytes (or marks) of answers have come."""
        self._poller.modify(self._sock, select.POLLIN)
        while answers.units < units:
            self._wait(f"{answers.units} of {units} of the answers have come")
            answers.take(self._sock)

    def await_barrier(self, peer: Peer) -> None:
        step, seen = peer.barrier(), b""
        self.send(step.send, _Silent())
        self._poller.modify(self._sock, select.POLLIN)
        while step.until not in seen:
            self._wait(f"waiting for {step.until!r}")
            seen += read(self._sock)
            if not step.until.startswith(seen[: len(step.until)]):
                raise LoadError(f"expected {step.until!r} after the publishes, got {seen[:200]!r}")

    def _wait(self, doing: str) -> int:
        while True:
            self._deadline.check(doing)
            events = self._poller.poll(self._deadline.left_s(_WAIT_S) * 1000)
            if events:
                return events[0][1]
