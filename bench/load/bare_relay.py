"""Two processes that do the least a forwarded publish needs: one answers, the other passes requests and answers on.

What the way by way of the other takes longer is two more wake-ups and their system calls, and nothing of a broker.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

_READ_BYTES = 1 << 16


@contextmanager
def bare_relay(answer_bytes: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection to the process that answers, and one to the process that passes on to it. Each read is a request."""
    answering, passing = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    address = answering.getsockname()
    children = [_forked(lambda: _answer(answering, bytes(answer_bytes))), _forked(lambda: _pass_on(passing, address))]
    try:
        with ExitStack() as stack:
            socks = [stack.enter_context(_connected(each.getsockname())) for each in (answering, passing)]
            for listener in (answering, passing):
                listener.close()
            yield socks[0], socks[1]
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _forked(serve: Callable[[], None]) -> int:
    """Returns the id of a child that serves."""
    pid = os.fork()
    if not pid:
        try:
            serve()
        finally:
            os._exit(0)
    return pid


def _connected(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _accepted(listener: socket.socket) -> socket.socket:
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _answer(listener: socket.socket, answer: bytes) -> None:
    """Answer two connections: the generator's, and that of the other process."""
    socks = [_accepted(listener) for _ in range(2)]
    _serve({sock: lambda _request, sock=sock: sock.send(answer) for sock in socks})  # type: ignore[misc]


def _pass_on(listener: socket.socket, address: tuple[str, int]) -> None:
    behind = _connected(address)
    before = _accepted(listener)
    _serve({before: behind.send, behind: before.send})


def _serve(takers: dict[socket.socket, Callable[[bytes], int]]) -> None:
    """Give each read of a socket to its taker, and wait as a broker's worker does."""
    poller = select.epoll()
    socks = {sock.fileno(): sock for sock in takers}
    for fd in socks:
        poller.register(fd, select.EPOLLIN)
    while True:
        for fd, _ in poller.poll():
            data = socks[fd].recv(_READ_BYTES)
            if not data:
                return
            takers[socks[fd]](data)
