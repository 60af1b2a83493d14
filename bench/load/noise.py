"""A subscriber that replays a stored stream again and again, as fast as it gets it, in a process of its own.

It stands back for others on the processors (`NICE`): how the broker divides its own time is what its noise is to show,
not how the kernel divides the generator's core.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import time
from types import TracebackType
from typing import Protocol, Self

from bench.load.dial import dialled
from bench.load.limits import Deadline, LoadError
from bench.load.replay import PushedLane
from bench.peers.base import Peer

NICE = 10
_END_S = 5.0
_WAIT_S = 0.25
_POLL_S = 0.005


class _Counter(Protocol):
    """Shared memory; one process writes, the other reads."""

    value: int


class Noise:
    """Entering starts it and waits for its first bytes; leaving ends it."""

    def __init__(self, peer: Peer, port: int, name: str, messages: int, payload_bytes: int, deadline: Deadline) -> None:
        self._context = multiprocessing.get_context("fork")
        self._received: _Counter = self._context.RawValue("Q", 0)
        self._deadline = deadline
        arguments = (peer, port, name, messages, payload_bytes, deadline, self._received)
        self._process = self._context.Process(target=_replay_again_and_again, args=arguments, daemon=True)
        self._begin = 0.0

    @property
    def received_bytes(self) -> int:
        """So far. LoadError if it has ended by itself."""
        if not self._process.is_alive():
            raise LoadError("the noisy subscriber has ended; its traceback is above")
        return self._received.value

    def per_s(self) -> float:
        """Bytes received a second, since it began."""
        return self.received_bytes / (time.monotonic() - self._begin)

    def __enter__(self) -> Self:
        self._process.start()
        try:
            while not self.received_bytes:
                self._deadline.check("waiting for the noisy subscriber's first bytes")
                time.sleep(_POLL_S)
        except BaseException:
            self._end()
            raise
        self._begin = time.monotonic()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.join(_END_S)


def _replay_again_and_again(
    peer: Peer, port: int, name: str, messages: int, payload_bytes: int, deadline: Deadline, received: _Counter
) -> None:
    os.nice(NICE)
    while True:
        with dialled(port, [peer.replayer(name, 0)], deadline) as (sock,), select.epoll() as poller:
            lane = PushedLane(peer, sock, name, messages, payload_bytes)
            poller.register(sock.fileno(), select.EPOLLIN)
            lane.start()
            before_bytes, over = received.value, False
            while not over:
                deadline.check(f"the noisy subscriber has {lane.got_bytes} bytes of this replay")
                for _ in poller.poll(deadline.left_s(_WAIT_S)):
                    over = lane.take()
                received.value = before_bytes + lane.got_bytes
