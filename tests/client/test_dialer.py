"""Sockets on their way to an address."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator

import pytest

from tailrace.address import Address
from tailrace.dialer import Dialer, DialError, SocketAddress, is_numeric, resolve, transit, tune
from tailrace.dialling import STAGGER_S

PATIENCE_S = 20.0


def dial(dialer: Dialer) -> socket.socket:
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
        dialer = Dialer([free_address(), (socket.AF_INET, listener.getsockname())], 5.0)
        sock = dial(dialer)
        assert sock.getpeername() == listener.getsockname()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5_000
        dialer.close()
        dialer.close()
        assert sock.fileno() == -1


def test_an_address_that_answers_nothing_is_joined_by_the_next(deaf: SocketAddress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialer = Dialer([deaf, (socket.AF_INET, listener.getsockname())])
        assert dialer.proceed(100.0) is None and len(dialer.socks) == 1 and dialer.due_s == 100.0 + STAGGER_S
        assert dialer.proceed(100.5) is None and len(dialer.socks) == 1
        dialer.due_s = time.monotonic()  # the second is over
        sock = dial(dialer)
        assert sock.getpeername() == listener.getsockname() and dialer.socks == [sock]
        sock.close()


def test_none_that_answers() -> None:
    with pytest.raises(DialError, match="Connection refused; is the broker running there"):
        dial(Dialer([free_address(), free_address()]))


def test_what_is_under_way_is_known() -> None:
    """The peer's kernel acknowledges bytes up to its buffers, whether or not a program reads them."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        tune(sock, 5.0)
        before, _waiting = transit(sock)
        sock.sendall(b"x" * 1_000)
        until_s = time.monotonic() + PATIENCE_S
        while transit(sock).waiting:
            assert time.monotonic() < until_s
        assert transit(sock).acknowledged - before == 1_000
        sock.setblocking(False)
        while select.select([], [sock], [], 0.2)[1]:
            sock.send(b"x" * 100_000)
        assert transit(sock).waiting > 0, "nobody reads it"
        assert transit(sock, 7).waiting == transit(sock).waiting + 7
    assert transit(sock) == (0, 0), "nothing is known of one that is closed"


def test_what_a_name_stands_for() -> None:
    assert (socket.AF_INET, ("127.0.0.1", 5_050)) in resolve(Address("127.0.0.1"))
    assert resolve(Address("localhost"))
    for host in ("no.such.host.invalid", "a" * 80):
        with pytest.raises(DialError, match="host"):
            resolve(Address(host))


@pytest.mark.parametrize(
    ("host", "numeric"), [("127.0.0.1", True), ("::1", True), ("localhost", False), ("\u3042", False)]
)
def test_what_needs_no_resolver(host: str, numeric: bool) -> None:
    assert is_numeric(host) == numeric
