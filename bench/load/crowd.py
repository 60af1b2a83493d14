"""Very many subscribers that are quiet nearly all the time: they join, are idle, and all receive the same messages.

Each connection costs the generator a socket and an entry in two tables. Received data goes into one buffer and is
compared byte by byte with the first connection's: each delivery of one message is the same for every connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.load.base import Load
from bench.load.limits import LoadError, PeerClosed
from bench.load.meter import ProcessTree, Spent
from bench.load.sockets import DIAL_AT_ONCE, OpeningSteps, SocketPoller
from bench.load.tls import secured
from tailrace.protocol.messages import CHUNK_HEAD

CONNECTIONS_PER_SOURCE = 4_000  # connections from each of 127.0.0.1, 127.0.0.2, ...: each has ports of its own
WARM_PART = 20  # one connection in 20 is made before the others are measured
IDLE_SLOT_S = 0.5
QUIET_SHARE, QUIET_SLOTS = 0.01, 4  # of one core
HEARTBEAT_S = 30.0  # the interval of tailrace's pings, the shortest of all: each connection has one in that time
_BIND_ADDRESS_NO_PORT = 24  # linux/in.h; the socket module has it from Python 3.12 on
_READ_BYTES = 64 * 1024
_EVENTS_MAX = 4_096
_WAIT_S = 0.1


@dataclass(frozen=True, slots=True)
class CrowdFigures:
    """What a crowd costs.

    `resident_bytes`: the growth of the server per connection, once all have received all messages. `idle_shares`:
    shares of a core, slot after slot since the last join. `heard_s`: the seconds until the last one had each message.
    """

    joined_per_s: float
    resident_bytes: float
    idle_shares: list[float]
    heard_s: list[float]
    spent: Spent


def gather(load: Load, name: str, connections: int, messages: int, idle_s: float) -> CrowdFigures:
    """Let all join the new stream `name`, leave them alone for `idle_s`, then publish `messages` one by one."""
    tree, warm = ProcessTree(load.target.pid), max(1, connections // WARM_PART)
    joining, slots = connections - warm, max(2, round(idle_s / IDLE_SLOT_S))
    with load.connected(load.peer.publisher(0, [name])) as (publisher,), Crowd(load, name) as crowd:
        crowd.join(warm)
        before_bytes, begin = tree.rss_bytes(), time.perf_counter()
        crowd.join(joining)
        joined_s = time.perf_counter() - begin
        idle_shares = [crowd.idle_share(tree, IDLE_SLOT_S) for _ in range(slots)]
        busy_s, begin = tree.busy_s(), time.perf_counter()
        heard_s = [crowd.hear(publisher, number) for number in range(messages)]
        spent = Spent(time.perf_counter() - begin, tree.busy_s() - busy_s)
        crowd.rest(_WAIT_S)
        resident_bytes = (tree.rss_bytes() - before_bytes) / joining
        return CrowdFigures(joining / joined_s, resident_bytes, idle_shares, heard_s, spent)


class Crowd:
    """Subscribers of the stream `name`. LoadError if one receives anything but the messages, or one of them twice."""

    def __init__(self, load: Load, name: str) -> None:
        self._load = load
        self._peer = load.peer
        self._name = name
        self._poller = SocketPoller(load.deadline)
        self._socks: dict[int, socket.socket] = {}
        self._joining: dict[int, OpeningSteps] = {}
        self._heard: dict[int, int] = {}  # the last message of each
        self._parts: dict[int, bytes] = {}  # of messages that came in pieces
        self._buffer = bytearray(_READ_BYTES)

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_error: object) -> None:
        for sock in self._socks.values():
            sock.close()
        self._poller.__exit__()

    def join(self, count: int) -> None:
        """Let `count` more join, DIAL_AT_ONCE at a time."""
        wanted = len(self._socks) + count
        while len(self._socks) < wanted or self._joining:
            while len(self._socks) < wanted and len(self._joining) < DIAL_AT_ONCE:
                self._open(len(self._socks))
            doing = f"{len(self._socks)} of {wanted} have connected, {len(self._joining)} have not joined"
            for fd, _ in self._poller.wait(doing, _WAIT_S, _EVENTS_MAX):
                if fd not in self._joining:
                    self._answer(fd)
                elif self._joining[fd].receive():
                    del self._joining[fd]

    def rest(self, seconds: float) -> None:
        """Answer chatter; LoadError if anything else comes."""
        end = time.perf_counter() + seconds
        while (left_s := end - time.perf_counter()) > 0:
            for fd, _ in self._poller.wait("resting", left_s, _EVENTS_MAX):
                self._answer(fd)

    def idle_share(self, tree: ProcessTree, seconds: float) -> float:
        """Return the server's use of processors while the crowd rests; 1.0 is one core."""
        begin, busy_s = time.perf_counter(), tree.busy_s()
        self.rest(seconds)
        return (tree.busy_s() - busy_s) / (time.perf_counter() - begin)

    def hear(self, publisher: socket.socket, number: int) -> float:
        """Publish message `number` and return the seconds until the last subscriber has all of it."""
        payload, due_bytes = self._load.payload, self._due_bytes(number)
        left, first = len(self._socks), b""
        buffer, heard, receivers = self._buffer, self._heard, {fd: sock.recv_into for fd, sock in self._socks.items()}
        publish, acknowledges = self._peer.publish(self._name, payload, number), self._peer.acknowledges
        begin = time.perf_counter()
        publisher.send(publish)
        while left:
            doing = f"{left} of {len(self._socks)} have not heard message {number}"
            for fd, _ in self._poller.wait(doing, _WAIT_S, _EVENTS_MAX):
                count = _receive(receivers[fd], buffer)
                if count != due_bytes and not self._piece(fd, count, due_bytes):
                    continue
                first = first or self._checked(bytes(buffer[:due_bytes]))
                if heard[fd] >= number or not buffer.startswith(first):
                    raise LoadError(f"message {number} came as {bytes(buffer[:due_bytes])!r}, or twice")
                if acknowledges:
                    self._socks[fd].send(self._peer.receipts(bytes(buffer[:due_bytes]), due_bytes))
                heard[fd] = number
                left -= 1
        return time.perf_counter() - begin

    def _open(self, client: int) -> None:
        sock = socket.socket()
        try:
            # The port is chosen when it connects, so that only pairs of addresses have to differ.
            sock.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
            sock.bind((f"127.0.0.{1 + client // CONNECTIONS_PER_SOURCE}", 0))
            sock.connect(("127.0.0.1", self._load.target.port))
            sock = secured(sock, self._peer.tls)
        except OSError as error:
            sock.close()
            raise LoadError(f"connection {client + 1}: {error}") from error
        sock.setblocking(False)
        fd = sock.fileno()
        self._socks[fd] = sock
        self._heard[fd] = -1
        call = OpeningSteps(sock, self._peer.listener(self._name, client))
        if not call.advance():
            self._joining[fd] = call
        self._poller.add(sock)

    def _answer(self, fd: int) -> None:
        data = bytes(self._buffer[: _receive(self._socks[fd].recv_into, self._buffer)])
        if data not in self._peer.chatter:
            raise LoadError(f"a connection that should have been left alone was sent {data[:200]!r}")
        self._socks[fd].send(self._peer.chatter[data])

    def _piece(self, fd: int, count: int, due_bytes: int) -> bool:
        """Add a piece; True if a whole message is in the buffer now. Chatter is answered."""
        data = self._without_chatter(fd, self._parts.pop(fd, b"") + bytes(self._buffer[:count]), due_bytes)
        if len(data) > due_bytes:
            raise LoadError(f"a connection was sent {data[:400]!r} where {due_bytes} bytes were due")
        if len(data) < due_bytes:
            self._parts[fd] = data
            return False
        self._buffer[:due_bytes] = data
        return True

    def _without_chatter(self, fd: int, data: bytes, due_bytes: int) -> bytes:
        """Answer chatter before a message, and behind one: a server may send both at once."""
        for said, answer in self._peer.chatter.items():
            if data.startswith(said):
                self._socks[fd].send(answer)
                data = data[len(said) :]
            if data[due_bytes:] == said:
                self._socks[fd].send(answer)
                data = data[:due_bytes]
        return data

    def _due_bytes(self, number: int) -> int:
        """The bytes of the delivery of message `number`."""
        until, before = (self._load.delivered_bytes(self._name, messages) for messages in (number + 1, number))
        return until - before + (CHUNK_HEAD.size if self._peer.framed else 0)

    def _checked(self, data: bytes) -> bytes:
        if self._load.payload not in data:
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
    """Return when the first QUIET_SLOTS began in which the server did almost nothing; the end if none did."""
    for first in range(len(idle_shares)):
        if max(idle_shares[first : first + QUIET_SLOTS]) <= QUIET_SHARE:
            return first * IDLE_SLOT_S
    return len(idle_shares) * IDLE_SLOT_S


def settled_share(idle_shares: Sequence[float]) -> float:
    """Return the mean of the last HEARTBEAT_S, or of the later half if there is no more than that."""
    last = round(HEARTBEAT_S / IDLE_SLOT_S)
    if len(idle_shares) <= last:
        last = max(1, len(idle_shares) // 2)
    return sum(idle_shares[-last:]) / last
