"""Very many subscribers that are quiet nearly all the time: joining, being idle, and all hearing one message.

Each connection costs the generator a socket and an entry in two tables. What they hear is read into one buffer and held
against what the first of them heard, byte for byte: every delivery of one message is the same for every connection.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.load.dial import DIAL_AT_ONCE, dialled
from bench.load.ingest import Target
from bench.load.limits import Deadline, LoadError, PeerClosed
from bench.load.meter import ProcessTree, Spent
from bench.peers.base import Peer, Step
from tailrace.protocol.messages import CHUNK_HEAD

CONNECTIONS_A_SOURCE = 4_000  # connections from each of 127.0.0.1, 127.0.0.2, ...: each has ports of its own
WARM_PART = 20  # one connection in so many is made before the others are measured
IDLE_SLOT_S = 0.5
QUIET_SHARE, QUIET_SLOTS = 0.01, 4  # of one core
HEARTBEAT_S = 30.0  # the interval of tailrace's pings, the shortest of all: each connection has one in that time
_BIND_ADDRESS_NO_PORT = 24  # linux/in.h; the socket module has it from Python 3.12 on
_READ_BYTES = 64 * 1024
_EVENTS_MAX = 4_096
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class Gathered:
    """`resident_bytes` is what the server grew by, for each connection, once all have heard all messages.

    `idle_shares` are shares of a core, slot after slot from the moment the last had joined; `heard_s` the seconds that
    each message took to the last of them.
    """

    joined_per_s: float
    resident_bytes: float
    idle_shares: list[float]
    heard_s: list[float]
    spent: Spent


def gather(
    peer: Peer,
    target: Target,
    name: str,
    payload: bytes,
    connections: int,
    messages: int,
    idle_s: float,
    deadline: Deadline,
) -> Gathered:
    """Let all join the fresh stream `name`, leave them alone for `idle_s`, then publish `messages` one by one."""
    tree = ProcessTree(target.pid)
    with dialled(target.port, [peer.publisher(0, [name])], deadline) as (publisher,), select.epoll() as poller:
        crowd = Crowd(peer, target.port, name, poller, deadline)
        try:
            warm = max(1, connections // WARM_PART)
            crowd.join(warm)
            before_bytes, begin = tree.rss_bytes(), time.perf_counter()
            crowd.join(connections - warm)
            joined_s = time.perf_counter() - begin
            idle_shares = [crowd.idle_share(tree, IDLE_SLOT_S) for _ in range(max(2, round(idle_s / IDLE_SLOT_S)))]
            busy_s, begin = tree.busy_s(), time.perf_counter()
            heard_s = [crowd.hear(publisher, payload, number) for number in range(messages)]
            spent = Spent(time.perf_counter() - begin, tree.busy_s() - busy_s)
            crowd.rest(_WAIT_S)
            resident_bytes = (tree.rss_bytes() - before_bytes) / (connections - warm)
            return Gathered((connections - warm) / joined_s, resident_bytes, idle_shares, heard_s, spent)
        finally:
            crowd.leave()


class _Joining:
    """One connection on its way through its steps."""

    __slots__ = ("_seen", "_steps", "_until")

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = iter(steps)
        self._until = self._seen = b""

    def advance(self, sock: socket.socket, data: bytes) -> bool:
        """Whether it has joined, now that `data` was received."""
        self._seen += data
        while self._until in self._seen:
            step = next(self._steps, None)
            if step is None:
                return True
            self._until, self._seen = step.until, b""
            if sock.send(step.send) != len(step.send):
                raise LoadError(f"a step of {len(step.send)} bytes does not fit the socket's buffer")
        return False


class Crowd:
    """Subscribers of stream `name`. LoadError if any of them hears anything but the messages, or one of them twice."""

    def __init__(self, peer: Peer, port: int, name: str, poller: select.epoll, deadline: Deadline) -> None:
        self._peer = peer
        self._port = port
        self._name = name
        self._poller = poller
        self._deadline = deadline
        self._socks: dict[int, socket.socket] = {}
        self._joining: dict[int, _Joining] = {}
        self._heard: dict[int, int] = {}  # the last message that was heard
        self._parts: dict[int, bytes] = {}  # of messages that came in pieces
        self._buffer = bytearray(_READ_BYTES)

    def join(self, count: int) -> None:
        """Until so many more have joined, DIAL_AT_ONCE at a time."""
        wanted = len(self._socks) + count
        while len(self._socks) < wanted or self._joining:
            while len(self._socks) < wanted and len(self._joining) < DIAL_AT_ONCE:
                self._open(len(self._socks))
            self._deadline.check(f"{len(self._socks)} of {wanted} have connected, {len(self._joining)} have not joined")
            for fd, _ in self._poller.poll(self._deadline.left_s(_WAIT_S), _EVENTS_MAX):
                if fd in self._joining:
                    self._advance(fd)
                else:
                    self._answer(fd)

    def rest(self, seconds: float) -> None:
        """Answer what has to be answered; LoadError if anything else is said."""
        end = time.perf_counter() + seconds
        while (left_s := end - time.perf_counter()) > 0:
            for fd, _ in self._poller.poll(left_s, _EVENTS_MAX):
                self._answer(fd)

    def idle_share(self, tree: ProcessTree, seconds: float) -> float:
        """The server's use of processors while nobody wants anything; 1.0 is one core."""
        begin, busy_s = time.perf_counter(), tree.busy_s()
        self.rest(seconds)
        return (tree.busy_s() - busy_s) / (time.perf_counter() - begin)

    def hear(self, publisher: socket.socket, payload: bytes, number: int) -> float:
        """Publish the `number`th message, from 0; the seconds until the last has all of it."""
        due_bytes = self._due_bytes(len(payload), number)
        left, first = len(self._socks), b""
        buffer, heard, receivers = self._buffer, self._heard, {fd: sock.recv_into for fd, sock in self._socks.items()}
        publish = self._peer.publish(self._name, payload, number)
        begin = time.perf_counter()
        publisher.send(publish)
        while left:
            self._deadline.check(f"{left} of {len(self._socks)} have not heard message {number}")
            for fd, _ in self._poller.poll(self._deadline.left_s(_WAIT_S), _EVENTS_MAX):
                count = _receive(receivers[fd], buffer)
                if count != due_bytes and not self._piece(fd, count, due_bytes):
                    continue
                first = first or self._checked(bytes(buffer[:due_bytes]), payload)
                if heard[fd] >= number or not buffer.startswith(first):
                    raise LoadError(f"message {number} came as {bytes(buffer[:due_bytes])!r}, or twice")
                heard[fd] = number
                left -= 1
        return time.perf_counter() - begin

    def leave(self) -> None:
        for sock in self._socks.values():
            sock.close()
        self._socks.clear()

    def _open(self, client: int) -> None:
        sock = socket.socket()
        try:
            # The port is chosen when it connects, so that only pairs of addresses have to differ.
            sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
            sock.bind((f"127.0.0.{1 + client // CONNECTIONS_A_SOURCE}", 0))
            sock.connect(("127.0.0.1", self._port))
        except OSError as error:
            sock.close()
            raise LoadError(f"connection {client + 1}: {error}") from error
        sock.setblocking(False)
        fd = sock.fileno()
        self._socks[fd] = sock
        self._heard[fd] = -1
        joining = _Joining(self._peer.listener(self._name, client))
        if not joining.advance(sock, b""):
            self._joining[fd] = joining
        self._poller.register(fd, select.EPOLLIN)

    def _advance(self, fd: int) -> None:
        sock = self._socks[fd]
        if self._joining[fd].advance(sock, self._received(sock)):
            del self._joining[fd]

    def _answer(self, fd: int) -> None:
        data = self._received(self._socks[fd])
        if data not in self._peer.chatter:
            raise LoadError(f"a connection that should have been left alone was told {data[:200]!r}")
        self._socks[fd].send(self._peer.chatter[data])

    def _received(self, sock: socket.socket) -> bytes:
        return bytes(self._buffer[: _receive(sock.recv_into, self._buffer)])

    def _piece(self, fd: int, count: int, due_bytes: int) -> bool:
        """Whether a message is whole in the buffer now; chatter is answered."""
        data = self._parts.pop(fd, b"") + bytes(self._buffer[:count])
        if len(data) > due_bytes:
            raise LoadError(f"a connection heard {data[:400]!r} where {due_bytes} bytes were due")
        if data in self._peer.chatter:
            self._socks[fd].send(self._peer.chatter[data])
        elif len(data) < due_bytes:
            self._parts[fd] = data
        else:
            self._buffer[:due_bytes] = data
            return True
        return False

    def _due_bytes(self, payload_bytes: int, number: int) -> int:
        until, before = (self._peer.delivered_bytes(self._name, count, payload_bytes) for count in (number + 1, number))
        return until - before + (CHUNK_HEAD.size if self._peer.framed else 0)

    def _checked(self, data: bytes, payload: bytes) -> bytes:
        if payload not in data:
            raise LoadError(f"{data!r} is no delivery of the payload that was published")
        return data


def _receive(receive: Callable[[bytearray], int], buffer: bytearray) -> int:
    try:
        count = receive(buffer)
    except ConnectionError as error:
        raise PeerClosed(f"the server dropped a connection that subscribes: {error}") from error
    if not count:
        raise PeerClosed("the server closed a connection that subscribes")
    return count


def quiet_after_s(idle_shares: Sequence[float]) -> float:
    """When the first QUIET_SLOTS began in which the server did next to nothing; the end of all slots if none did."""
    for first in range(len(idle_shares)):
        if max(idle_shares[first : first + QUIET_SLOTS]) <= QUIET_SHARE:
            return first * IDLE_SLOT_S
    return len(idle_shares) * IDLE_SLOT_S


def settled_share(idle_shares: Sequence[float]) -> float:
    """The mean of the last HEARTBEAT_S, or of the later half where there is no more than that."""
    last = round(HEARTBEAT_S / IDLE_SLOT_S)
    if len(idle_shares) <= last:
        last = max(1, len(idle_shares) // 2)
    return sum(idle_shares[-last:]) / last
