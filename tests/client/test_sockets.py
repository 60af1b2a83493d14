"""What both drivers do with sockets."""

from __future__ import annotations

import select
import socket
import time

import pytest

from tailrace.core.address import Address
from tailrace.sockets import DialError, is_numeric, resolve, transit, tune

PATIENCE_S = 20.0


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
