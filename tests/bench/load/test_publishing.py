from __future__ import annotations

import os
import socket
from collections.abc import Callable

import pytest

from bench.load.base import Load, ServerProcess, Stop
from bench.load.limits import Deadline, LoadError, LoadTimeout, PeerClosed
from bench.load.publishing import ingest, turns
from bench.peers.base import make_feed, make_payload, stream_names
from bench.peers.plain import Plain
from bench.peers.tailrace import Tailrace
from bench.server import PeerServer
from tests.bench.load.conftest import PATIENCE_S, StuckAt, load_on
from tests.bench.load.serving import serving

NAMES, PAYLOAD = ["b.000000"], make_payload(100)


def test_whole_feeds_until_the_messages_are_sent(plain_server: PeerServer, plain: Plain) -> None:
    feed = make_feed(plain, NAMES, PAYLOAD, 100_000)
    pushed = ingest(load_on(plain_server, plain), NAMES, feed, Stop(messages=5_000))
    assert pushed.messages == pushed.stored == -(-5_000 // feed.messages) * feed.messages
    assert pushed.spent.wall_s > 0


def test_what_is_sent_before_is_not_timed(plain_server: PeerServer, plain: Plain) -> None:
    plain.window_requests = 100 if plain.acked else 0
    feed, warm = make_feed(plain, NAMES, PAYLOAD, 0, 25), make_feed(plain, NAMES, PAYLOAD, 0)
    pushed = ingest(load_on(plain_server, plain), NAMES, feed, Stop(messages=2_000), warm)
    assert (pushed.messages, pushed.stored) == (2_000, 2_001)


def _after_the_first_byte(text: bytes) -> Callable[[socket.socket], None]:
    """Takes the opening step, then sends `text` and reads until the end."""

    def behave(sock: socket.socket) -> None:
        opening = sock.recv(64)
        sock.sendall(b"ok ack on\r\n" if b"ack" in opening else b"ok pong\r\n")
        sock.recv(1)
        sock.sendall(text)
        while sock.recv(1 << 20):
            pass

    return behave


def _ingest(port: int, deadline: Deadline | None = None, *, acked: bool = False) -> None:
    peer = Tailrace(acked=acked)
    feed = make_feed(peer, NAMES, PAYLOAD, 0)
    load = Load(peer, ServerProcess(port, os.getpid()), PAYLOAD, deadline or Deadline(PATIENCE_S))
    ingest(load, NAMES, feed, Stop(messages=1))


def test_a_server_that_never_answers_ends_in_a_timeout() -> None:
    waiting = "waiting for b'ok pong"
    with serving(_after_the_first_byte(b"")) as port, pytest.raises(LoadTimeout, match=waiting):
        _ingest(port, StuckAt(waiting))


def test_answers_that_never_come_end_in_a_timeout() -> None:
    answer, some = b"ok pub b.000000", "15 of 19 of the answers"
    with serving(_after_the_first_byte(answer)) as port, pytest.raises(LoadTimeout, match=some):
        _ingest(port, StuckAt(some), acked=True)


def test_answers_too_many_are_an_error() -> None:
    answer = b"ok pub b.000000 0\r\nerr overloaded x\r\n"
    with serving(_after_the_first_byte(answer)) as port, pytest.raises(LoadError, match="19 were due"):
        _ingest(port, acked=True)


def test_a_complaint_is_told_in_its_own_words() -> None:
    complaint = b"err full no space\r\n"
    with serving(_after_the_first_byte(complaint)) as port, pytest.raises(LoadError, match="err full no space"):
        _ingest(port)


def test_a_connection_that_is_closed_is_told() -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(64)
        sock.sendall(b"ok pong\r\n")

    with serving(behave) as port, pytest.raises(PeerClosed):
        _ingest(port)


def test_turns_go_round_whole_and_the_first_is_not_timed(plain_server: PeerServer, plain: Plain) -> None:
    pushed = turns(load_on(plain_server, plain), stream_names(4), 20, Stop(messages=1_010))
    assert (pushed.messages, pushed.stored) == (1_020, 1_040)


def test_one_turn_is_the_least(plain_server: PeerServer, plain: Plain) -> None:
    pushed = turns(load_on(plain_server, plain), stream_names(1), 5, Stop(messages=1))
    assert pushed.messages == 5
