"""Non-blocking connections: opening many at once, waiting for them, and receiving without copying.

With MSG_TRUNC the kernel throws a socket's bytes away and returns how many there were.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from bench.load.limits import Deadline, LoadError, PeerClosed
from bench.load.tls import secured
from bench.peers.base import RequestStep
from tailrace.shard.unix_socket import connect_unix

DRAIN_BYTES = 32 * 1024 * 1024  # more than any receive buffer holds
READ_BYTES = 1024 * 1024
DIAL_AT_ONCE = 64  # handshakes under way at one time; the shortest listen queue here is 100 (mosquitto)
_STEP_BYTES_MAX = 1024 * 1024
_CONNECT_TIMEOUT_S = 5.0
_WAIT_S = 0.25

# The kernel never writes to it, so it never becomes memory.
_NOWHERE = bytearray(DRAIN_BYTES)


def drain(sock: socket.socket, bytes_max: int = DRAIN_BYTES) -> int:
    """Throw away received data and return its bytes; 0 if there is nothing. Raises PeerClosed at the end."""
    return read_into(sock, _NOWHERE, min(bytes_max, DRAIN_BYTES), socket.MSG_TRUNC)


def drain_undecrypted(sock: socket.socket) -> int:
    """As `drain`, of the encrypted bytes of a connection under TLS, of which nothing can be decrypted afterwards."""
    return _received(partial(socket.socket.recv_into, sock, _NOWHERE, DRAIN_BYTES, socket.MSG_TRUNC))


def read_into(sock: socket.socket, memory: bytearray, bytes_max: int = 0, flags: int = 0) -> int:
    """Receive up to `bytes_max` (0: the size of `memory`) and return the bytes; 0 if there is nothing."""
    return _received(partial(sock.recv_into, memory, bytes_max, flags))


def _received(receive: Callable[[], int]) -> int:
    try:
        count = receive()
    except BlockingIOError:
        return 0
    except ConnectionError as error:
        raise PeerClosed(f"the server dropped a connection: {error}") from error
    if not count:
        raise PeerClosed("the server closed a connection")
    return count


def read(sock: socket.socket, bytes_max: int = READ_BYTES) -> bytes:
    """Receive up to `bytes_max`; b"" if there is nothing. Raises PeerClosed at the end of the stream."""
    try:
        data = sock.recv(bytes_max)
    except BlockingIOError:
        return b""
    except ConnectionError as error:
        raise PeerClosed(f"the server dropped a connection: {error}") from error
    if not data:
        raise PeerClosed("the server closed a connection")
    return data


def send_some(sock: socket.socket, view: memoryview) -> int:
    """Send what fits and return its bytes; 0 if the socket is full. Raises PeerClosed if the server is gone."""
    try:
        return sock.send(view)
    except BlockingIOError:
        return 0
    except ConnectionError as error:
        raise PeerClosed(f"the server dropped a connection that was being written: {error}") from error


class SocketPoller:
    """Waits for sockets, until a deadline. Use it in a `with` block."""

    def __init__(self, deadline: Deadline, socks: Iterable[socket.socket] = ()) -> None:
        self._deadline = deadline
        self._epoll = select.epoll()
        for sock in socks:
            self.add(sock)

    def __enter__(self) -> SocketPoller:
        return self

    def __exit__(self, *_error: object) -> None:
        self._epoll.close()

    def add(self, sock: socket.socket) -> None:
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def remove(self, fd: int) -> None:
        self._epoll.unregister(fd)

    def watch_writable(self, sock: socket.socket, writable: bool) -> None:
        self._epoll.modify(sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if writable else 0))

    def wait(self, doing: str, wait_s: float = _WAIT_S, events_max: int = -1) -> list[tuple[int, int]]:
        """Ready descriptors with their events, or none after `wait_s`. Raises LoadTimeout once the deadline passed."""
        self._deadline.check(doing)
        return self._epoll.poll(self._deadline.left_s(wait_s), events_max)


class OpeningSteps:
    """One connection on its way through its opening steps."""

    __slots__ = ("_seen", "_step", "_steps", "sock")

    def __init__(self, sock: socket.socket, steps: Sequence[RequestStep]) -> None:
        self.sock = sock
        self._steps = iter(steps)
        self._step = RequestStep(b"")
        self._seen = b""

    def advance(self) -> bool:
        """Take all steps that the received bytes allow; True once all are done."""
        while self._step.until in self._seen:
            following = next(self._steps, None)
            if following is None:
                return True
            self._step, self._seen = following, b""
            # Steps are short: one that does not fit an empty socket buffer is a fault of the peer's description.
            if following.send and self.sock.send(following.send) != len(following.send):
                raise LoadError(f"a step of {len(following.send)} bytes does not fit the socket's buffer")
        return False

    def receive(self) -> bool:
        """Receive, and advance. Raises LoadError if the server closes the connection or sends too much."""
        try:
            self._seen += read(self.sock)
        except PeerClosed as error:
            raise PeerClosed(f"{error}; waited for {self.waiting_for()}") from error
        if len(self._seen) > _STEP_BYTES_MAX:
            raise LoadError(f"waiting for {self._step.until!r}, got {len(self._seen)} bytes without it")
        return self.advance()

    def waiting_for(self) -> str:
        return f"{self._step.until!r} after {self._step.send[:80]!r}, have {self._seen[-200:]!r}"


@contextmanager
def dialled(
    port: int, scripts: Sequence[Sequence[RequestStep]], deadline: Deadline, tls: ssl.SSLContext | None = None
) -> Iterator[list[socket.socket]]:
    """One non-blocking connection per script, all steps done; closed at the end. Raises LoadError if one fails."""
    socks: list[socket.socket] = []
    waiting: dict[int, OpeningSteps] = {}
    try:
        with SocketPoller(deadline) as poller:
            # A step may wait for seconds without holding up the rest: only the opening is limited in number.
            for script in scripts:
                socks.append(_connect(port, len(socks) + 1, tls))
                call = OpeningSteps(socks[-1], script)
                if not call.advance():
                    waiting[call.sock.fileno()] = call
                    poller.add(call.sock)
                if waiting and len(waiting) % DIAL_AT_ONCE == 0:
                    _advance(waiting, poller, 0.01)
            while waiting:
                _advance(waiting, poller, _WAIT_S)
        yield socks
    finally:
        for sock in socks:
            sock.close()


def _connect(port: int, number: int, tls: ssl.SSLContext | None) -> socket.socket:
    try:
        sock = secured(socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_TIMEOUT_S), tls)
    except OSError as error:
        raise LoadError(f"connection {number} to port {port}: {error}") from error
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _advance(waiting: dict[int, OpeningSteps], poller: SocketPoller, wait_s: float) -> None:
    first = next(iter(waiting.values()))
    for fd, _ in poller.wait(f"{len(waiting)} connections wait, one of them for {first.waiting_for()}", wait_s):
        if waiting[fd].receive():
            poller.remove(fd)
            del waiting[fd]


def take_steps(port: int, steps: Sequence[RequestStep], deadline: Deadline, tls: ssl.SSLContext | None = None) -> None:
    """Take `steps` on a new connection. Raises LoadError if that fails."""
    with dialled(port, [steps], deadline, tls):
        pass


def administer(path: Path, step: RequestStep, deadline: Deadline) -> None:
    """Give a node a command at its socket of administration. Raises LoadError without the answer."""
    with socket.socket(socket.AF_UNIX) as sock, SocketPoller(deadline) as poller:
        try:
            connect_unix(sock, path)
        except OSError as error:
            raise LoadError(f"{path}: {error}") from error
        sock.setblocking(False)
        poller.add(sock)
        call = OpeningSteps(sock, [step])
        is_over = call.advance()
        while not is_over:
            is_over = bool(poller.wait(f"a command waits for {call.waiting_for()}")) and call.receive()


def steps_succeed(port: int, steps: Sequence[RequestStep], timeout_s: float, tls: ssl.SSLContext | None = None) -> bool:
    """Return whether a new connection gets through `steps` now."""
    with suppress(LoadError):
        take_steps(port, steps, Deadline(timeout_s), tls)
        return True
    return False
