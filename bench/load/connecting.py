"""Connecting from one address: timed, one after the other, or as noise of many a second."""

from __future__ import annotations

import socket
import struct
import time
from collections import deque

from bench.load.base import Load
from bench.load.limits import Deadline, LoadError
from bench.load.noise import Noise, SharedNumber

HELD = 200  # connections of the noise that are open at a time
CONNECT_TIMEOUT_S = 10.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: no port stays behind in TIME_WAIT


def timed_connects(load: Load, source: str, count: int, per_s: float) -> list[int]:
    """Nanoseconds from the beginning of each connect to the answer to a first ping."""
    times_ns = []
    begin_s = time.monotonic()
    for number in range(count):
        load.deadline.check(f"{number} of {count} connects are timed")
        time.sleep(max(begin_s + number / per_s - time.monotonic(), 0.0))
        began_ns = time.perf_counter_ns()
        with connect_from(load.target.port, source) as sock:
            sock.sendall(b"ping\r\n")
            if sock.recv(64) != b"ok pong\r\n":
                raise LoadError("a new connection was not served")
            times_ns.append(time.perf_counter_ns() - began_ns)
    return times_ns


def connecting(port: int, source: str, per_s: float, deadline: Deadline) -> Noise:
    """A client that makes `per_s` connections a second and says nothing; they count as its bytes."""

    def body(made: SharedNumber) -> None:
        held: deque[socket.socket] = deque()
        begin_s = time.monotonic()
        while True:
            time.sleep(max(begin_s + made.value / per_s - time.monotonic(), 0.0))
            held.append(connect_from(port, source))
            made.value += 1
            if len(held) > HELD:
                held.popleft().close()

    return Noise(deadline, body)


def connect_from(port: int, source: str) -> socket.socket:
    """A connection from this address of loopback."""
    sock = socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S, (source, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    return sock
