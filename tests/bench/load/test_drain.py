from __future__ import annotations

import socket

import pytest

from bench.load.drain import drain, read, send_some
from bench.load.limits import Deadline, PeerClosed


def test_drained_bytes_are_counted_and_gone(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    assert drain(ours) == 0
    theirs.sendall(b"x" * 10_000)
    got, deadline = 0, Deadline(5)
    while got < 10_000:
        deadline.check("draining")
        got += drain(ours)
    assert (got, drain(ours), read(ours)) == (10_000, 0, b"")


def test_no_more_is_drained_or_read_than_was_asked_for(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"abcdefghij")
    deadline = Deadline(5)
    while not drain(ours, 3):
        deadline.check("draining")
    assert read(ours, 2) == b"de"
    assert read(ours) == b"fghij"


def test_the_end_is_an_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.shutdown(socket.SHUT_WR)
    ours.settimeout(5)
    with pytest.raises(PeerClosed):
        drain(ours)
    with pytest.raises(PeerClosed):
        read(ours)


def test_a_full_socket_takes_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    view = memoryview(bytes(1 << 20))
    for _ in range(1_000):
        if not send_some(ours, view):
            return
    raise AssertionError("a socket that nobody reads took a gigabyte")
