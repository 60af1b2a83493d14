"""Making many connections at once and taking each through its opening steps."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from bench.load.drain import read
from bench.load.limits import Deadline, LoadError, PeerClosed
from bench.peers.base import Step

DIAL_AT_ONCE = 64  # handshakes under way at one time; the shortest listen queue here is 100 (mosquitto)
_STEP_BYTES_MAX = 1024 * 1024
_WAIT_S = 0.25


class _Call:
    """One connection on its way through its steps."""

    def __init__(self, port: int, steps: Sequence[Step]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._steps = iter(steps)
        self._step = Step(b"")
        self._seen = b""

    def advance(self) -> bool:
        """Go as far as what was received allows; True once all steps are done."""
        while self._step.until in self._seen:
            following = next(self._steps, None)
            if following is None:
                return True
            self._step, self._seen = following, b""
            self._send(following.send)
        return False

    def receive(self) -> None:
        self._seen += read(self.sock)
        if len(self._seen) > _STEP_BYTES_MAX:
            raise LoadError(f"waiting for {self._step.until!r}, got {len(self._seen)} bytes without it")

    def waiting_for(self) -> str:
        return f"{self._step.until!r} after {self._step.send[:80]!r}, have {self._seen[-200:]!r}"

    def _send(self, data: bytes) -> None:
        """Steps are short: one that does not fit an empty socket buffer is a fault of the peer's description."""
        if data and self.sock.send(data) != len(data):
            raise LoadError(f"a step of {len(data)} bytes does not fit the socket's buffer")


@contextmanager
def dialled(port: int, scripts: Sequence[Sequence[Step]], deadline: Deadline) -> Iterator[list[socket.socket]]:
    """One non-blocking connection a script, all steps done; closed at the end. LoadError if one cannot be made."""
    calls: list[_Call] = []
    try:
        waiting: dict[int, _Call] = {}
        with select.epoll() as poller:
            # A step may wait for seconds without holding up the rest: only the opening is limited in number.
            for script in scripts:
                _open(port, script, calls, waiting, poller)
                if len(waiting) % DIAL_AT_ONCE == 0:
                    _turn(waiting, poller, deadline, 0.01)
            while waiting:
                _turn(waiting, poller, deadline, _WAIT_S)
        yield [call.sock for call in calls]
    finally:
        for call in calls:
            call.sock.close()


def _open(
    port: int, script: Sequence[Step], calls: list[_Call], waiting: dict[int, _Call], poller: select.epoll
) -> None:
    try:
        call = _Call(port, script)
    except OSError as error:
        raise LoadError(f"connection {len(calls) + 1} to port {port}: {error}") from error
    calls.append(call)
    if not call.advance():
        waiting[call.sock.fileno()] = call
        poller.register(call.sock.fileno(), select.EPOLLIN)


def _turn(waiting: dict[int, _Call], poller: select.epoll, deadline: Deadline, wait_s: float) -> None:
    if waiting:
        deadline.check(f"{len(waiting)} connections wait, one of them for {next(iter(waiting.values())).waiting_for()}")
    for fd, _ in poller.poll(deadline.left_s(wait_s)):
        call = waiting[fd]
        try:
            call.receive()
        except PeerClosed as error:
            raise LoadError(f"{error}; waited for {call.waiting_for()}") from error
        if call.advance():
            poller.unregister(fd)
            del waiting[fd]


def steps_succeed(port: int, steps: Sequence[Step], timeout_s: float) -> bool:
    """Whether a new connection gets through `steps` now."""
    with suppress(LoadError), dialled(port, [steps], Deadline(timeout_s)):
        return True
    return False
