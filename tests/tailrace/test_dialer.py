"""A socket on its way to an address."""

from __future__ import annotations

import select
import socket

import pytest

from tailrace.address import Address
from tailrace.dialer import Dialer, DialError, SocketAddress, is_numeric, resolve


def dial(dialer: Dialer) -> None:
    """Until it is connected. Raises DialError."""
    while not dialer.proceed():
        poller = select.poll()
        poller.register(dialer.sock, select.POLLOUT)  # type: ignore[arg-type]
        assert poller.poll(5_000)


def free_address() -> SocketAddress:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return socket.AF_INET, listener.getsockname()


def test_the_first_address_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialer = Dialer([free_address(), (socket.AF_INET, listener.getsockname())])
        dial(dialer)
        assert dialer.sock is not None
        assert dialer.sock.getpeername() == listener.getsockname()
        assert dialer.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        dialer.close()
        dialer.close()


def test_none_that_answers() -> None:
    with pytest.raises(DialError, match="Connection refused; is the broker running there"):
        dial(Dialer([free_address(), free_address()]))


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
