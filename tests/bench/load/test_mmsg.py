from __future__ import annotations

import select
import socket

import pytest

from bench.load.mmsg import BATCH, Receiving, Sending


def _bound() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


@pytest.mark.parametrize("subscribers", [1, 3, BATCH])
def test_what_is_sent_comes_to_the_addresses_in_turn(subscribers: int) -> None:
    socks = [_bound() for _ in range(subscribers)]
    sending = Sending(b"hello", [sock.getsockname() for sock in socks])
    with _bound() as publisher:
        assert sending.send(publisher.fileno(), 1_000) == sending.count <= BATCH
    for sock in socks:
        with sock:
            assert [sock.recv(100) for _ in range(sending.count // subscribers)] == [b"hello"] * (
                sending.count // subscribers
            )


def test_no_more_is_sent_than_is_wanted() -> None:
    with _bound() as publisher, _bound() as sock:
        assert Sending(b"x", [sock.getsockname()]).send(publisher.fileno(), 2) == 2
        assert [sock.recv(100), sock.recv(100)] == [b"x", b"x"]
        assert not select.select([sock], [], [], 0)[0]


def test_received_datagrams_are_counted() -> None:
    receiving = Receiving()
    with _bound() as publisher, _bound() as sock:
        assert receiving.receive(sock.fileno()) == 0
        for _ in range(BATCH + 3):
            publisher.sendto(b"x", sock.getsockname())
        assert receiving.receive(sock.fileno()) == BATCH
        assert receiving.receive(sock.fileno()) == 3
        assert receiving.receive(sock.fileno()) == 0


def test_an_error_of_the_system_is_raised() -> None:
    with pytest.raises(OSError, match="EBADF"):
        Receiving().receive(-1)
    with pytest.raises(OSError, match="EMSGSIZE"), _bound() as sock:
        Sending(bytes(70_000), [sock.getsockname()]).send(sock.fileno(), 1)
