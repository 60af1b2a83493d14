"""A client that asks for expensive things as fast as it can, in a process of its own.

It stands back for others on the processors, as other noise does (`bench.load.noise`).
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

from bench.load.limits import Deadline, LoadError
from bench.load.noise import NICE
from tailrace.protocol import messages as m
from tailrace.protocol import replication as r
from tailrace.protocol.places import From
from tailrace.shard.epochs import EpochStart

_AT_ONCE = 256
_END_S = 5.0
_POLL_S = 0.02
_READ_BYTES = 1 << 20
_NODE = "0123456789abcdef"

Script = Callable[[int], Iterator[bytes]]
"""What to send without end, of how many streams that there are, few of them open at a time."""


class _Counter(Protocol):
    """Shared memory; one process writes, the other reads."""

    value: int


def make_streams(_streams: int) -> Iterator[bytes]:
    """A stream with each line."""
    for first in count(step=_AT_ONCE):
        yield b"".join(b"pub made%d |\r\n" % number for number in range(first, first + _AT_ONCE))


def fill_streams(streams: int) -> bytes:
    """Make the streams that the others go over."""
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
    for first in count(1, _AT_ONCE):
        for number in range(first, first + _AT_ONCE):
            name = b"there%d" % (number % streams)
            yield m.pack(r.Follow(number, name, 0, 1, "", None, start)) + m.pack(m.Unsubscribe(number))


def _hello() -> bytes:
    return m.pack(m.Hello(m.VERSION, (r.FEATURE,), "bench", node=_NODE, address=":1"))


class Flood:
    """Entering starts it, leaving ends it. `sent_bytes`: what the broker has taken so far."""

    def __init__(self, port: int, script: Script, streams: int, deadline: Deadline) -> None:
        self._context = multiprocessing.get_context("fork")
        self._sent: _Counter = self._context.RawValue("Q", 0)
        self._deadline = deadline
        self._process = self._context.Process(target=_send_all, args=(port, script(streams), self._sent), daemon=True)

    @property
    def sent_bytes(self) -> int:
        """LoadError if it has ended by itself."""
        if not self._process.is_alive():
            raise LoadError("the noisy client has ended; its traceback is above")
        return self._sent.value

    def __enter__(self) -> Self:
        self._process.start()
        try:
            while not self.sent_bytes:
                self._deadline.check("waiting for the noisy client's first bytes")
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join(_END_S)


def _send_all(port: int, parts: Iterator[bytes], sent: _Counter) -> None:
    """What the broker takes, and read what it answers."""
    os.nice(NICE)
    with socket.create_connection(("127.0.0.1", port)) as sock, select.epoll() as poller:
        sock.setblocking(False)
        poller.register(sock.fileno(), select.EPOLLIN | select.EPOLLOUT)
        rest = memoryview(b"")
        while True:
            for _fd, mask in poller.poll():
                if mask & select.EPOLLIN and not sock.recv(_READ_BYTES):
                    raise LoadError("the broker has closed the noisy client's connection")
                if mask & select.EPOLLOUT:
                    rest = rest or memoryview(next(parts))
                    taken = sock.send(rest)
                    rest, sent.value = rest[taken:], sent.value + taken
