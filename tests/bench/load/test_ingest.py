from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from bench.load.ingest import Stop, Target, ingest
from bench.load.limits import Deadline, LoadError, LoadTimeout, PeerClosed
from bench.peers.base import make_feed, make_payload
from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.server import Server
from tests.bench.load.serving import serving

NAMES, PAYLOAD = ["b.000000"], make_payload(100)


def test_whole_feeds_until_the_messages_are_sent(plain_server: Server, plain: Plain) -> None:
    feed = make_feed(plain, NAMES, PAYLOAD, 100_000)
    pushed = ingest(plain, plain_server.target, NAMES, feed, Stop(messages=5_000), Deadline(20))
    assert pushed.messages == pushed.stored == -(-5_000 // feed.messages) * feed.messages
    assert pushed.spent.wall_s > 0


def test_what_is_sent_before_is_not_timed(plain_server: Server, plain: Plain) -> None:
    plain.window_requests = 100 if plain.acked else 0
    feed, warm = make_feed(plain, NAMES, PAYLOAD, 0, 25), make_feed(plain, NAMES, PAYLOAD, 0)
    pushed = ingest(plain, plain_server.target, NAMES, feed, Stop(messages=2_000), Deadline(20), warm)
    assert (pushed.messages, pushed.stored) == (2_000, 2_001)


def _after_the_first_byte(text: bytes) -> Callable[[socket.socket], None]:
    """Takes the opening step, then says `text` and reads until the end."""

    def behave(sock: socket.socket) -> None:
        opening = sock.recv(64)
        sock.sendall(b"ok ack on\r\n" if b"ack" in opening else b"ok pong\r\n")
        sock.recv(1)
        sock.sendall(text)
        while sock.recv(1 << 20):
            pass

    return behave


def _ingest(port: int, timeout_s: float, *, acked: bool = False) -> None:
    peer = Tailrace(acked=acked)
    feed = make_feed(peer, NAMES, PAYLOAD, 0)
    ingest(peer, Target(port, os.getpid()), NAMES, feed, Stop(messages=1), Deadline(timeout_s))


def test_a_server_that_never_answers_ends_in_a_timeout() -> None:
    with serving(_after_the_first_byte(b"")) as port, pytest.raises(LoadTimeout, match=r"waiting for b'ok pong"):
        _ingest(port, 0.4)


def test_answers_that_never_come_end_in_a_timeout() -> None:
    answer = b"ok pub b.000000"
    with serving(_after_the_first_byte(answer)) as port, pytest.raises(LoadTimeout, match="15 of 19 of the answers"):
        _ingest(port, 0.4, acked=True)


def test_answers_too_many_are_an_error() -> None:
    answer = b"ok pub b.000000 0\r\nerr overloaded x\r\n"
    with serving(_after_the_first_byte(answer)) as port, pytest.raises(LoadError, match="19 were due"):
        _ingest(port, 5, acked=True)


def test_a_complaint_is_told_in_its_own_words() -> None:
    complaint = b"err full no space\r\n"
    with serving(_after_the_first_byte(complaint)) as port, pytest.raises(LoadError, match="err full no space"):
        _ingest(port, 5)


def test_a_connection_that_is_closed_is_told() -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(64)
        sock.sendall(b"ok pong\r\n")

    with serving(behave) as port, pytest.raises(PeerClosed):
        _ingest(port, 5)
