"""Ports of this machine to serve on, which nobody else who asks here is given.

Tests and benchmarks run side by side, and between the choice of a port and the server that listens on it, or while a
server is started again, it looks free.
"""

from __future__ import annotations

import atexit
import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Self

PORTS = range(10_000, 32_000)
BLOCK_PORTS = 500
"""Those of one process: more than it ever serves on at a time."""
_CONNECTIONS_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the ports that the kernel gives to who connects


class PortBlock:
    """Some ports that are this process's own until it closes this, or ends."""

    def __init__(self, ports: range, mark: socket.socket) -> None:
        self.ports = ports
        self._mark = mark
        self._next: Iterator[int] = cycle(ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others have them."""
        self._mark.close()

    def free_port(self) -> int:
        """One that nobody has now; each time another, until all had their turn. Raises OSError."""
        for _ in self.ports:
            port = next(self._next)
            with socket.socket() as sock:
                try:
                    sock.bind(("127.0.0.1", port))
                except OSError:  # somebody has it, or had it a moment ago
                    continue
            return port
        raise OSError(f"no port from {self.ports[0]} to {self.ports[-1]} is free")


def reserve() -> PortBlock:
    """A block that no other process has. Raises OSError if all are taken.

    What marks it is a name in the abstract namespace of Unix sockets: it belongs to one process,
    ends with it in any case, and like a port belongs to one network namespace.
    """
    ports = _ports()
    starts = ports[: len(ports) - BLOCK_PORTS + 1 : BLOCK_PORTS]
    for start in random.SystemRandom().sample(starts, len(starts)):
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0tailrace-ports-{start}")
        except OSError:
            mark.close()
            continue
        return PortBlock(range(start, start + BLOCK_PORTS), mark)
    raise OSError(f"all ports from {ports[0]} to {ports[-1]} are taken, in blocks of {BLOCK_PORTS}")


def _ports() -> range:
    """All but the kernel's ports for connections; all if that leaves too few."""
    connections_begin = int(_CONNECTIONS_FILE.read_text().split()[0])
    ports = range(PORTS.start, min(PORTS.stop, connections_begin))
    return ports if len(ports) >= BLOCK_PORTS else PORTS


@cache
def _own() -> PortBlock:
    """This process's, from the first time that it needs a port."""
    block = reserve()
    atexit.register(block.close)
    return block


def free_port() -> int:
    """A loopback TCP port nobody has now, that nobody else who asks here gets, nor anybody who connects.

    A port that the kernel had chosen could be some connection's own before the server listens on it. Raises OSError.
    """
    return _own().free_port()
