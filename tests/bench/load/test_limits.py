"""Whatever a server does, a measurement ends, and says what it saw."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.load.apart import apart
from bench.load.dial import dialled, steps_succeed
from bench.load.drain import drain, read
from bench.load.ingest import Stop, Target, ingest
from bench.load.limits import Deadline, LoadError, LoadTimeout, PeerClosed
from bench.peers.base import Step, make_feed, make_payload
from bench.peers.tailrace import Tailrace

NAMES = ["b.000000"]


@contextmanager
def serving(behave: Callable[[socket.socket], None]) -> Iterator[int]:
    """The port of a server that does `behave` with one connection after the other."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                    with sock:
                        behave(sock)
                except OSError:
                    return

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def _answering(text: bytes) -> Callable[[socket.socket], None]:
    """Takes the opening ping, then says `text` and reads until the end."""

    def behave(sock: socket.socket) -> None:
        sock.recv(64)
        sock.sendall(b"ok pong\r\n")
        sock.recv(1)
        sock.sendall(text)
        while sock.recv(1 << 20):
            pass

    return behave


def _ingest(port: int, timeout_s: float) -> None:
    peer = Tailrace()
    feed = make_feed(peer, NAMES, make_payload(100), 1_000)
    ingest(peer, Target(port, os.getpid()), NAMES, feed, Stop(messages=1), Deadline(timeout_s))


def test_a_server_that_never_answers_ends_in_a_timeout() -> None:
    with serving(_answering(b"")) as port, pytest.raises(LoadTimeout, match=r"waiting for b'ok pong"):
        _ingest(port, 0.4)


def test_a_complaint_is_told_in_its_own_words() -> None:
    with serving(_answering(b"err full no space\r\n")) as port, pytest.raises(LoadError, match="err full no space"):
        _ingest(port, 5)


def test_a_connection_that_is_closed_is_told() -> None:
    def behave(sock: socket.socket) -> None:
        sock.recv(64)
        sock.sendall(b"ok pong\r\n")

    with serving(behave) as port, pytest.raises(PeerClosed):
        _ingest(port, 5)


def test_a_step_that_is_not_answered_says_what_it_waited_for() -> None:
    deadline = Deadline(0.3)
    with (
        serving(lambda sock: time.sleep(0.5)) as port,
        pytest.raises(LoadTimeout, match=r"wait.*b'never'"),
        dialled(port, [[Step(b"hello", b"never")]], deadline),
    ):
        pass


def test_steps_fail_where_nobody_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        assert not steps_succeed(sock.getsockname()[1], [Step(b"", b"")], 1.0)


def test_drain_counts_and_forgets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        ours.setblocking(False)
        assert drain(ours) == 0
        assert read(ours) == b""
        theirs.sendall(b"x" * 10_000)
        theirs.close()
        got, deadline = 0, Deadline(5)
        with pytest.raises(PeerClosed):
            while True:
                deadline.check("draining")
                got += drain(ours)
        assert got == 10_000


def test_apart_gives_results_and_errors() -> None:
    assert apart(10, divmod, 17, 5) == (3, 2)
    with pytest.raises(LoadError, match="went wrong"):
        apart(10, _fail)


def test_apart_ends_what_takes_too_long() -> None:
    begin = time.monotonic()
    with pytest.raises(LoadTimeout):
        apart(0.2, time.sleep, 60)
    assert time.monotonic() - begin < 30


def test_apart_tells_of_a_process_that_died() -> None:
    with pytest.raises(LoadError, match="without a result"):
        apart(10, os._exit, 3)


def _fail() -> None:
    raise LoadError("it went wrong")


def test_a_deadline_waits_no_longer_than_it_lasts() -> None:
    deadline = Deadline(0.05)
    assert 0 < deadline.left_s(10) <= 0.05
    assert deadline.left_s(0.001) <= 0.001
    while deadline.left_s(1):
        pass
    with pytest.raises(LoadTimeout, match=r"doing it: not finished after 0\.05 s"):
        deadline.check("doing it")
