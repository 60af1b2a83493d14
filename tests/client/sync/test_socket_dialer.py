"""Sockets on their way to an address."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest

from tailrace.core.address_selector import STAGGER_S
from tailrace.sockets import DialError, SocketAddress
from tailrace.sync.socket_dialer import SocketDialer

PATIENCE_S = 20.0


def dial(dialer: SocketDialer) -> socket.socket:
    """Until it is connected. Raises DialError."""
    until_s = time.monotonic() + PATIENCE_S
    while (sock := dialer.proceed(time.monotonic())) is None:
        poller = select.poll()
        for each in dialer.socks:
            poller.register(each, select.POLLOUT)
        poller.poll(1_000 * max(0.0, min(dialer.due_s, until_s) - time.monotonic()))
        assert time.monotonic() < until_s
    return sock


def free_address() -> SocketAddress:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.AF_INET, listener.getsockname()


@pytest.fixture
def deaf() -> Iterator[SocketAddress]:
    """An address without an answer: the queue of its listener is full, so the kernel drops packets."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        waiting = []
        for _ in range(3):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(address)
            waiting.append(sock)
        yield socket.AF_INET, address
        for sock in waiting:
            sock.close()


def test_the_first_address_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialer = SocketDialer([free_address(), (socket.AF_INET, listener.getsockname())], 5.0)
        sock = dial(dialer)
        assert sock.getpeername() == listener.getsockname()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
        dialer.close()
        dialer.close()
        assert sock.fileno() == -1


def test_an_address_that_answers_nothing_is_joined_by_the_next(deaf: SocketAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialer = SocketDialer([deaf, (socket.AF_INET, listener.getsockname())])
        assert dialer.proceed(100.0) is None and len(dialer.socks) == 1 and dialer.due_s == 100.0 + STAGGER_S
        assert dialer.proceed(100.5) is None and len(dialer.socks) == 1
        dialer.due_s = time.monotonic()  # the second is over
        sock = dial(dialer)
        assert sock.getpeername() == listener.getsockname() and dialer.socks == [sock]
        sock.close()


def test_none_that_answers() -> None:
    with pytest.raises(DialError, match="Connection refused; is the broker running there"):
        dial(SocketDialer([free_address(), free_address()]))
