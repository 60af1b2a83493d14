"""Noisy clients, each in a process of its own: one that replays a stream again and again, and floods of requests.

They run at a lower priority (`NICE`): the broker's division of its own time is measured, not the kernel's
division of the generator's core.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from itertools import count
from types import TracebackType
from typing import Protocol, Self

from bench.load.base import Load
from bench.load.limits import Deadline, LoadError
from bench.load.reading import PushedLane
from bench.load.sockets import SocketPoller
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.places import From
from tailrace.shard.epochs import EpochStart

NICE = 10
_END_S = 5.0
_POLL_S = 0.005
_READ_BYTES = 1 << 20
_AT_ONCE = 256
_NODE = "0123456789abcdef"

Script = Callable[[int], Iterator[bytes]]
"""Yields requests without end. Its argument: how many streams exist, of which few are open at a time."""


class SharedNumber(Protocol):
    """Shared memory; one process writes, the other reads."""

    value: int


class Noise:
    """A noisy client. Entering starts it and waits for its first bytes; leaving ends it."""

    def __init__(self, deadline: Deadline, body: Callable[[SharedNumber], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._nbytes: SharedNumber = context.RawValue("Q", 0)
        self._deadline = deadline
        self._process = context.Process(target=self._run, args=(body,), daemon=True)
        self._begin, self._begin_bytes = 0.0, 0

    @property
    def nbytes(self) -> int:
        """Bytes that it has received or sent so far. LoadError if it has ended by itself."""
        if not self._process.is_alive():
            raise LoadError("the noisy client has ended; its traceback is above")
        return self._nbytes.value

    def per_s(self) -> float:
        """Bytes per second since it was entered, what the load does between its measurements included."""
        return (self.nbytes - self._begin_bytes) / (time.monotonic() - self._begin)

    def __enter__(self) -> Self:
        self._process.start()
        try:
            while not self.nbytes:
                self._deadline.check("waiting for the noisy client's first bytes")
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise
        self._begin, self._begin_bytes = time.monotonic(), self.nbytes
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join(_END_S)

    def _run(self, body: Callable[[SharedNumber], None]) -> None:
        os.nice(NICE)
        body(self._nbytes)


def replaying(load: Load, name: str, messages: int) -> Noise:
    """A subscriber that replays the first `messages` of a stored stream again and again; received bytes count."""

    def body(received: SharedNumber) -> None:
        while True:
            with load.connected(load.peer.replayer(name, 0)) as (sock,), SocketPoller(load.deadline, [sock]) as poller:
                lane = PushedLane(load, sock, name, messages)
                lane.start()
                before_bytes, over = received.value, False
                while not over:
                    if poller.wait(f"the noisy subscriber has {lane.got_bytes} bytes of this replay"):
                        over = lane.take()
                    received.value = before_bytes + lane.got_bytes

    return Noise(load.deadline, body)


def flooding(port: int, script: Script, streams: int, deadline: Deadline) -> Noise:
    """A client that sends the requests of `script` as fast as the broker takes them; sent bytes count."""

    def body(sent: SharedNumber) -> None:
        rest, parts = memoryview(b""), script(streams)
        with socket.create_connection(("127.0.0.1", port)) as sock, select.epoll() as poller:
            sock.setblocking(False)
            poller.register(sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
            while True:
                for _fd, events in poller.poll():
                    if events & select.EPOLLIN and not sock.recv(_READ_BYTES):
                        raise LoadError("the broker has closed the noisy client's connection")
                    if events & select.EPOLLOUT:
                        rest = rest or memoryview(next(parts))
                        taken = sock.send(rest)
                        rest, sent.value = rest[taken:], sent.value + taken

    return Noise(deadline, body)


def make_streams(_streams: int) -> Iterator[bytes]:
    """Make a stream with each line."""
    for first in count(step=_AT_ONCE):
        yield b"".join(b"pub made%d |\r\n" % number for number in range(first, first + _AT_ONCE))


def fill_streams(streams: int) -> bytes:
    """Make the streams that the other scripts use."""
    return b"".join(b"pub there%d |x\r\n" % number for number in range(streams))


def come_and_go(streams: int) -> Iterator[bytes]:
    """Subscribe to one stream after the other, and unsubscribe at once."""
    for first in count(step=_AT_ONCE):
        names = [b"there%d" % (number % streams) for number in range(first, first + _AT_ONCE)]
        yield b"".join(b"sub %s 0\r\nunsub %s\r\n" % (name, name) for name in names)


def claim(_streams: int) -> Iterator[bytes]:
    """Claim one stream in one term after the other, as a node that has become its master does."""
    yield _hello()
    for first in count(2, _AT_ONCE):
        terms = range(first, first + _AT_ONCE)
        yield b"".join(m.pack(r.Claim(term, b"there0", (EpochStart(term, 1, _NODE),))) for term in terms)


def follow(streams: int) -> Iterator[bytes]:
    """Follow one stream after the other, as a node with a copy does, and end that at once."""
    yield _hello()
    start = From("seq", 0)
    for number in count(1):
        name = b"there%d" % (number % streams)
        yield m.pack(r.Follow(number, name, 0, 1, "", None, start)) + m.pack(m.Unsubscribe(number))


def _hello() -> bytes:
    return m.pack(m.Hello(m.VERSION, (r.FEATURE,), "bench", node=_NODE, address=":1"))
