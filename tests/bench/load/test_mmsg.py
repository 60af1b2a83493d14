from __future__ import annotations

import socket

import pytest

from bench.load.mmsg import BATCH, Receiving


def _bound() -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("127.0.0.1", 0))
    return sock


def test_received_datagrams_are_counted() -> None:
    with _bound() as publisher, _bound() as sock:
        receiving = Receiving(sock, 2)
        assert receiving.receive() == 0
        for _ in range(BATCH + 3):
            publisher.sendto(b"xx", sock.getsockname())
        assert [receiving.receive() for _ in range(3)] == [BATCH, 3, 0]


def test_those_that_the_kernel_has_joined_are_counted_too() -> None:
    with _bound() as publisher, _bound() as sock:
        receiving = Receiving(sock, 3)
        publisher.setsockopt(socket.IPPROTO_UDP, 103, 3)  # UDP_SEGMENT
        for _ in range(2):
            publisher.sendto(b"abcabcabcabc", sock.getsockname())
        assert receiving.receive() == 8


def test_an_error_of_the_system_is_raised() -> None:
    with _bound() as sock:
        receiving = Receiving(sock, 1)
    with pytest.raises(OSError, match="EBADF"):
        receiving.receive()
